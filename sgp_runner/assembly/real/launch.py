"""Launch of a real run's ranks on this machine; no process remains afterwards."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from torch.distributed.distributed_c10d import PrefixStore, Store

from sgp_runner.assembly.real.program_objects import write_objects
from sgp_runner.assembly.real.watchdog import BUILT, CAME, SIGNAL
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.plugins.loading import OPTION, Plugin
from sgp_runner.distributed.children import Child, start
from sgp_runner.distributed.private_folder import private_folder
from sgp_runner.distributed.store import LocalStore
from sgp_runner.distributed.vote import DEAD, LOST
from sgp_runner.recording.checkpoint import resume_hint, stopped, stopped_unsaved
from sgp_runner.recording.recorder import read_summary
from sgp_runner.utils.devices import device_of
from sgp_runner.utils.errors import ConfigError, Diverged, RankFailed, Stopped
from sgp_runner.utils.launchers import PARENT, QUIET_LIBRARIES, STORE, loopback_interface
from sgp_runner.utils.messages import logger
from sgp_runner.utils.signals import (
    ENDING,
    INTERRUPTED,
    SAVED,
    exit_code,
    interruptible,
    signal_state,
    stop_signals,
)
from sgp_runner.utils.units import counted, num_bytes

# Time from the first failure until the other ranks are killed; they usually stop before.
GRACE_SECONDS = 6.0
QUIET_SECONDS = 30.0  # longest time between two lines while ranks start
STARTED = "SGP_RUN_STARTED"  # environment variable of a rank: `Experiment.started`


def launch(
    experiment: Experiment,
    program: Sequence[str] = ("-m", "sgp_runner.assembly.rank_process"),
    fork: bool = False,
) -> dict[str, object]:
    """Start one Python process per rank, and return the summary that rank 0 has written.

    program, fork: as in `start`; ranks with GPUs are not forked, as GPUs do not work in forks

    Each process reads the run's ``config.yaml`` and the objects of a Python program, and loads the
    plug-ins named by its options. Raises RankFailed or Diverged as the first failing rank, the
    ConfigError that all ranks agree on, or Stopped or KeyboardInterrupt after a signal.
    """
    with interruptible(), private_folder() as private:
        write_objects(private)
        return launch_with(experiment, program, fork, private / "store")


def launch_with(
    experiment: Experiment, program: Sequence[str], fork: bool, path: Path
) -> dict[str, object]:
    """Launch ranks that meet in the file store ``path`` and use the loopback interface."""
    ranks = experiment.run.ranks
    (experiment.directory / "summary.json").unlink(missing_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    environment = {
        "OMP_NUM_THREADS": threads,
        **QUIET_LIBRARIES,
        **os.environ,
        STORE: str(path),
        PARENT: str(os.getpid()),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "NCCL_SOCKET_IFNAME": loopback_interface(),
        "WORLD_SIZE": str(ranks),
        STARTED: str(experiment.started),
    }
    arguments = [str(experiment.directory / "config.yaml")]
    arguments += [experiment.group] if experiment.group else []
    plugins = [plugin for plugin in experiment.plugins if isinstance(plugin, Plugin)]
    arguments += [f"{OPTION}={plugin.where}" for plugin in plugins]
    network = experiment.run.network
    fork = fork and network.name == "gloo" and device_of(network) == "cpu"
    children: list[Child] = []
    received: list[int] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        received.append(number)
        for child in children:  # an interpreter that starts would answer SIGINT with a traceback
            child.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    logger.info(f"starting {counted(ranks, 'rank')}")
    with stop_signals(forward):
        try:
            for rank in range(ranks):
                identity = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(start(program, arguments, {**environment, **identity}, fork))
            store = LocalStore(path)  # which must not be open in a fork
            alarm = PrefixStore("alarm 0", store)
            for number in received[:1]:  # also to ranks that had not been started
                forward(number)
            survives = experiment.run.on_failure == "continue"
            codes = wait_for(
                children,
                (lambda dead: alarm.set(DEAD, json.dumps(dead))) if survives else None,
                Heartbeat(alarm, ranks),
            )
        finally:
            stop(children)
    if survives and not codes[0]:
        codes = codes[:1]
    if alarm.check(["stopped"]):
        number, saved = json.loads(alarm.get("stopped"))
        raise stopped(received[0] if received else number, saved)
    if (ended := ended_by(codes, alarm, received)) is not None:
        if exit_code(ended) == INTERRUPTED:
            raise KeyboardInterrupt
        raise Stopped(stopped_unsaved(ended, experiment), ended)
    if sentence := failure(codes, alarm, experiment):
        if alarm.check(["setting"]):
            raise ConfigError(str(alarm.get("setting"), "utf-8"), sentence)
        if alarm.check(["diverged"]):
            raise Diverged(*json.loads(alarm.get("diverged")))
        raise RankFailed(sentence)
    summary = read_summary(experiment.directory)
    if summary is None:
        raise RankFailed("rank 0 ended without writing its summary")
    signal_state.asked = next(iter(received), None)  # too late to save the run
    return summary


def ended_by(codes: list[int], alarm: Store, received: list[int]) -> int | None:
    """Return the signal on which ranks ended without saving; None if none did.

    It may have killed a rank whose handlers were not installed yet.

    received: signals of this process
    """
    if not any(code in (SAVED, INTERRUPTED) or -code in ENDING for code in codes):
        return None
    told = [int(alarm.get(SIGNAL))] if alarm.check([SIGNAL]) else []
    killed = [-code for code in codes if -code in ENDING]
    signals = [*received, *told, *killed]
    return next(iter(signals), signal.SIGINT if INTERRUPTED in codes else signal.SIGTERM)


def failure(codes: list[int], alarm: Store, experiment: Experiment) -> str | None:
    """Return why the run failed; None if it did not.

    A lost rank is reported first, with the remaining checkpoint, because it causes the errors of
    other ranks.
    """
    killed = [
        f"rank {rank} was killed by signal {signal.Signals(-code).name}{memory_limit()}"
        for rank, code in enumerate(codes)
        if code < 0
    ]
    sentence = str(alarm.get("failed"), "utf-8") if alarm.check(["failed"]) else None
    if sentence is not None and not alarm.check([LOST]):
        return f"{killed[0]}; {sentence}" if killed else sentence
    exited = [f"rank {rank} exited with code {code}" for rank, code in enumerate(codes) if code]
    if killed or (exited and sentence is None):
        return f"{[*killed, *exited][0]}. {resume_hint(experiment)}"
    return sentence


def memory_limit() -> str:
    """Return a hint about the memory limit of this process and its ranks; "" if unlimited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f", perhaps because it may use only {num_bytes(limit)} of memory (ulimit -v)"


class Heartbeat:
    """Prints the number of running ranks every 30 seconds until rank 0 shows progress."""

    def __init__(self, alarm: Store, ranks: int) -> None:
        self.alarm, self.ranks = alarm, ranks
        self.due = time.monotonic() + QUIET_SECONDS

    def __call__(self) -> None:
        if time.monotonic() < self.due:
            return
        self.due += QUIET_SECONDS
        if not self.alarm.check([BUILT]):
            came = self.alarm.add(CAME, 0)
            where = (
                "they load data and connect" if came == self.ranks else "the others are starting"
            )
            logger.info(f"  {came} of {self.ranks} ranks are up; {where}")


def wait_for(
    children: list[Child],
    tell: Callable[[list[int]], object] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[int]:
    """Return exit codes; 0 for processes still running some seconds after the first failure.

    tell: called with the ranks of all failed processes after each failure; the others continue
    tick: called repeatedly while waiting
    """
    deadline, told = float("inf"), list[int]()
    while None in (codes := [child.poll() for child in children]) and time.monotonic() < deadline:
        failed = [rank for rank, code in enumerate(codes) if code]
        if tell is not None and failed != told:
            told = failed
            tell(failed)
        if failed if tell is None else codes[0] is not None:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        tick()
        time.sleep(0.02)
    return [code or 0 for code in codes]


def stop(children: list[Child]) -> None:
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()

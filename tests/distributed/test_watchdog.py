"""A run that stands still ends on all ranks, and one report says who waits for whom."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.commands import Command
from helpers.processes import check_no_rank_is_left, wait_for_ranks
from torch.distributed import HashStore

from sgp_runner.assembly.real.watchdog import Watchdog, leave, outlast
from sgp_runner.core.problem import Compute
from sgp_runner.core.scheduler import RealClock
from sgp_runner.core.survivors import LossDetection
from sgp_runner.distributed.rank import Rank
from sgp_runner.distributed.vote import Vote
from sgp_runner.utils.waits import longest_wait, stall_report, waiting_for

START = "waits for all ranks to come together|waits for no rank"  # a rank stopped before
WAITS = {
    "sgp": rf"waits for a message from rank [012]|{START}",
    "ar_sgd": rf"waits for the mean of gradient \d+|{START}",
    "local_sgd": rf"waits for all-reduce \d+|{START}",
}


@pytest.mark.parametrize(
    "algo",
    ["sgp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ar_sgd", "local_sgd"))],
)
def test_a_rank_that_is_stopped_ends_the_run_with_one_report(algo: str, tmp_path: Path) -> None:
    overrides = (
        "network=gloo",
        "network.timeout_seconds=5",
        "nodes=3",
        "model=mlp",
        "epochs=100000",
    )
    with Command(*overrides, "logger=jsonl", f"algo={algo}", f"results={tmp_path}") as process:
        stopped = wait_for_ranks(tmp_path, 3)[1]
        os.kill(stopped, signal.SIGSTOP)
        _, error = process.communicate()
    assert process.returncode == 1
    heading, *ranks, last = error.splitlines()
    assert heading == "The run stalled:" and len(ranks) == 3
    (silent,) = (
        rank for rank, line in enumerate(ranks) if line == f"  rank {rank} does not answer"
    )
    assert all(
        re.fullmatch(rf"  rank {rank} ({WAITS[algo]}) for \d+\.\d s", line)
        for rank, line in enumerate(ranks)
        if rank != silent
    )
    sentence = (
        rf"sgp-run: the run stalled \(network.timeout_seconds\): rank \d ({WAITS[algo]}) for "
        rf"[\d.]+ s; rank {silent} does not answer."
    )
    assert re.fullmatch(sentence, last)
    check_no_rank_is_left(tmp_path)


def test_the_host_of_the_store_leaves_once_the_others_have_read_the_cause() -> None:
    store, ends = HashStore(), []
    watches = [
        SimpleNamespace(
            world=SimpleNamespace(alarm=store), vote=Vote(store, rank, 2, LossDetection())
        )
        for rank in range(2)
    ]

    def end_rank_0() -> None:
        leave(watches[0])  # type: ignore[arg-type]
        outlast(watches[0])  # type: ignore[arg-type]
        ends.append(0)

    with ThreadPoolExecutor() as pool:
        host = pool.submit(end_rank_0)
        while not store.check(["left 0"]):
            pass
        outlast(watches[1])  # type: ignore[arg-type]
        ends.append(1)
        leave(watches[1])  # type: ignore[arg-type]
        host.result(timeout=300)
    assert ends == [1, 0]


@pytest.mark.parametrize(("begun", "seconds"), [(False, 120.0), (True, 5.0)])
def test_the_timeout_of_the_network_counts_from_the_first_step(begun: bool, seconds: float) -> None:
    run = SimpleNamespace(network=SimpleNamespace(timeout_seconds=5.0))
    watch = Watchdog(
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(run=run),  # type: ignore[arg-type]
        start_seconds=120.0,
        begun=lambda: begun,
    )
    assert watch.longest_allowed_wait() == seconds


def test_a_step_that_a_device_does_not_finish_is_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host makes two more steps; the device is at the first of them, and then comes on."""
    finished: list[str] = []

    def record_event() -> SimpleNamespace:
        step = f"step {rank_worker.step}"
        return SimpleNamespace(query=lambda: step in finished)

    rank, nothing = Rank.__new__(Rank), SimpleNamespace(end_of_step=lambda *_: None)
    rank.problem = SimpleNamespace(compute=Compute("cuda:1"))  # type: ignore[assignment]
    rank.comm, rank.listener = SimpleNamespace(transport=nothing), nothing  # type: ignore[assignment]
    rank.clock = RealClock()
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=record_event)
    )
    for step in (7, 8):
        rank_worker = SimpleNamespace(step=step)
        rank.end_of_step(rank_worker)  # type: ignore[arg-type]
    assert longest_wait() > 0
    said = [rf"waits for its device to finish step {step} for \d+\.\d s" for step in (7, 8)]
    assert re.fullmatch("; ".join(said), stall_report())
    finished.append("step 7")
    assert re.fullmatch(said[1], stall_report())
    finished.append("step 8")
    assert (longest_wait(), stall_report()) == (0.0, "waits for no rank")


def test_waits_have_names_while_they_last() -> None:
    assert (longest_wait(), stall_report()) == (0.0, "waits for no rank")
    with waiting_for("waits for rain"), waiting_for(lambda: "waits for sun"):
        assert longest_wait() > 0
        assert re.fullmatch(
            r"waits for rain for \d+\.\d s; waits for sun for \d+\.\d s", stall_report()
        )
    assert stall_report() == "waits for no rank"

"""Seeded schedules of kills and stops against the processes of real runs, which continue without
the lost ranks.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event

import pytest
from helpers.experiments import make_experiment
from helpers.processes import check_no_rank_is_left, processes_of, ranks_of

from sgp_runner.assembly.real.launch import launch
from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.recorder import metrics_path, read_lines, read_metrics
from sgp_runner.utils.errors import RankFailed

SETTINGS = (
    "model=mlp",
    "batch_size=32",
    "network=gloo",
    "network.vote_seconds=2",
    "network.silence_seconds=2",
    "on_failure=continue",
    "log_every=1",
    "eval_every=100",
    "epochs=25",
)
LONGEST_SECONDS = 900.0


class Schedule:
    """Signals to the ranks of a run, as (seconds after the previous one, signal, rank)."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.algo = random.choice(["sgp", "sgp", "osgp", "d_psgd", "ad_psgd"])
        self.nodes = random.choice([3, 4])
        self.begin = random.choice([0.0, random.uniform(0, 1), random.uniform(0, 3)])
        self.events: list[tuple[float, int, int]] = []
        ranks = random.sample(range(self.nodes), random.randint(1, self.nodes - 1))
        if random.random() < 0.8:
            ranks = [rank for rank in ranks if rank] or [1]
        self.killed, self.stopped = set[int](), set[int]()
        for rank in ranks:
            pause = random.choice([0.0, random.uniform(0, 0.3), random.uniform(0, 3)])
            if random.random() < 0.7:
                self.killed.add(rank)
                self.events.append((pause, signal.SIGKILL, rank))
                continue
            self.stopped.add(rank)
            self.events.append((pause, signal.SIGSTOP, rank))
            if random.random() < 0.5:
                self.events.append((random.uniform(0, 8), signal.SIGCONT, rank))

    def __repr__(self) -> str:
        return f"{self.algo} nodes={self.nodes} begin={self.begin:.2f} {self.events}"


def perform(schedule: Schedule, experiment: Experiment, folder: Path, ended: Event) -> set[int]:
    """Send the signals of a schedule; return the killed ranks. Raises TimeoutError."""
    first = metrics_path(experiment.directory, 0)
    while not (first.exists() and first.stat().st_size):
        if ended.wait(0.01):
            return set()
    processes = processes_of(folder)
    ended.wait(schedule.begin)
    killed = set()
    for pause, number, rank in schedule.events:
        if ended.wait(pause):
            return killed
        with suppress(ProcessLookupError):
            os.kill(processes[rank], number)
        if number == signal.SIGKILL:
            killed.add(rank)
    if ended.wait(LONGEST_SECONDS):
        return killed
    for pid in ranks_of(folder):
        os.kill(pid, signal.SIGKILL)
    raise TimeoutError(f"the run of {schedule} hangs")


def last_step(experiment: Experiment, rank: int) -> int:
    records = read_lines(metrics_path(experiment.directory, rank))
    return max(int(str(record["step"])) for record in records if record["kind"] == "train")


def run(schedule: Schedule, experiment: Experiment, folder: Path) -> None:
    ended = Event()
    with ThreadPoolExecutor(1) as executor:
        events = executor.submit(perform, schedule, experiment, folder, ended)
        try:
            summary = launch(experiment)
        except RankFailed as error:
            summary = None
            assert 0 in schedule.killed | schedule.stopped, (schedule, error)
        finally:
            ended.set()
        killed = events.result()
    check_no_rank_is_left(folder)
    if summary is None:
        return
    lost = {*summary.get("lost", ())}  # type: ignore[call-overload]
    assert lost <= schedule.killed | schedule.stopped, schedule
    changes = [record for record in read_metrics(experiment.directory) if record["kind"] == "lost"]
    assert lost == {rank for change in changes for rank in change["ranks"]}  # type: ignore[attr-defined]
    for rank in killed - lost:  # it had finished before
        assert last_step(experiment, rank) >= last_step(experiment, 0) - schedule.nodes, schedule


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_the_survivors_finish_in_any_schedule(first: int, tmp_path: Path) -> None:
    schedules = [Schedule(seed) for seed in range(first, first + 10)]
    folders = [tmp_path / str(number) for number in range(10)]
    experiments = [
        make_experiment(folder, *SETTINGS, f"algo={schedule.algo}", f"nodes={schedule.nodes}")
        for folder, schedule in zip(folders, schedules, strict=True)
    ]
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(run, schedules, experiments, folders))

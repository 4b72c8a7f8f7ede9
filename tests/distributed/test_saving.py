"""Runs on real processes that are killed, or asked to stop, and started again: synchronous ones end
with the same bytes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
import torch
from helpers.commands import Command
from helpers.experiments import distance, make_experiment, steps_taken
from helpers.paths import RANKS
from helpers.processes import check_no_rank_is_left, ranks_of, wait_for_ranks
from helpers.variants import run_in_turn

from sgp_runner.assembly.real.launch import launch
from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.checkpoint import saved_steps
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.utils.errors import RankFailed, Stopped

REAL_RANK, SLOW_RANK = str(RANKS / "real_rank.py"), str(RANKS / "slow_real_rank.py")
SETTINGS = (
    "network=gloo",
    "nodes=3",
    "model=mlp",
    "batch_size=16",
    "epochs=15",
    "log_every=1",
    "eval_every=1000",
)
LED = ("nodes=2", "gpus_per_node=2", "network.gossip=leader", "checkpoint.every_steps=40")
SYNCHRONOUS: dict[
    str, tuple[signal.Signals | str, ...]
] = {  # with the signal that one process gets
    "ar_sgd": (signal.SIGKILL, "nodes=2", "model=resnet8", "epochs=2", "checkpoint.every_steps=9"),
    "sgp": (signal.SIGUSR1, "algo.topology.peers=2"),
    "ps_sgd": (signal.SIGTERM, "nodes=2", "epochs=10"),
}
MORE: dict[str, tuple[signal.Signals | str, ...]] = {
    "d_psgd": (signal.SIGKILL,),
    "slowmo": (
        signal.SIGKILL,
        "algo.tau=7",
        "checkpoint.every_steps=null",
        "checkpoint.every_minutes=0.005",
    ),
    "local_sgd": (signal.SIGUSR2, "algo.tau=5"),
    "pipe_sgd": (signal.SIGKILL, "algo.depth=3"),
    "pipe_sgd compressed": (signal.SIGUSR1, "algo.compression=quantize8"),
    "hybrid": (signal.SIGKILL, "algo.switch_epoch=7"),
    "sgp on nodes of two devices": (signal.SIGUSR1, "nodes=2", "gpus_per_node=2"),
    "d_psgd on nodes whose first device leads": (signal.SIGUSR1, *LED, "model=resnet8", "epochs=6"),
}


def run_to_the_end(experiment: Experiment, random: Random, number: int, times: int) -> int:
    """Start the run until it ends. Until it was cut off ``times`` times, a process of it gets
    ``number`` once there is a new checkpoint.
    """
    cut_off = 0

    def strike(before: int) -> None:
        while not ended and max(saved_steps(experiment.checkpoints), default=0) <= before:
            time.sleep(0.01)
        time.sleep(random.random() * 0.2)
        if not ended and (ranks := ranks_of(experiment.directory)):
            os.kill(random.choice(ranks), number)

    while True:
        ended = False
        striker = Thread(
            target=strike,
            args=(
                max(saved_steps(experiment.checkpoints), default=0) if cut_off < times else 10**9,
            ),
        )
        striker.start()
        try:
            launch(experiment, program=(REAL_RANK, "-1"))
            return cut_off
        except Stopped as stopped:
            assert (
                f"stopped by {signal.Signals(number).name}; saved in {experiment.checkpoints}/step-"
                in str(stopped)
            )
        except RankFailed as failed:
            assert "was killed by signal SIGKILL" in str(failed)
        finally:
            ended = True
            striker.join()
            check_no_rank_is_left(experiment.directory)
        cut_off += 1


def training_losses(experiment: Experiment) -> list[tuple[object, object, object]]:
    records = [record for record in read_metrics(experiment.directory) if record["kind"] == "train"]
    return sorted((str(record["rank"]), record["step"], record["loss"]) for record in records)


def synchronous(folder: Path, name: str) -> tuple[Experiment, signal.Signals]:
    """A run of `SYNCHRONOUS` or `MORE`, and its signal."""
    number, *settings = (SYNCHRONOUS | MORE)[name]
    algo, *_ = name.split()
    overrides = (*SETTINGS, f"algo={algo}", "checkpoint.every_steps=60", *map(str, settings))
    return make_experiment(folder, *overrides), signal.Signals(number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Experiment]:
    """The runs of `SYNCHRONOUS`, without interruption; those of as many ranks share a launch."""
    folder = tmp_path_factory.mktemp("whole")
    experiments = {name: synchronous(folder, name)[0] for name in SYNCHRONOUS}
    run_in_turn(experiments.values())
    return experiments


def check_same_end(whole: Experiment, folder: Path, name: str, times: int) -> None:
    cut, number = synchronous(folder, name)
    assert run_to_the_end(cut, Random(len(name.split(maxsplit=1)[0])), number, times) == times
    assert distance(whole, cut) == 0
    assert training_losses(whole) == training_losses(cut)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_run_that_was_cut_off_ends_with_the_same_bytes(
    name: str, whole: dict[str, Experiment], tmp_path: Path
) -> None:
    check_same_end(whole[name], tmp_path, name, times=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SYNCHRONOUS, *MORE])
def test_a_run_that_was_cut_off_repeatedly_ends_with_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    whole, _ = synchronous(tmp_path / "whole", name)
    launch(whole, program=(REAL_RANK, "-1"))
    check_same_end(whole, tmp_path / "cut", name, times=3)


WRITING: dict[str, tuple[str, ...]] = {
    "ar_sgd": ("nodes=2", "epochs=2"),
    "sgp on nodes of two devices": ("nodes=2", "gpus_per_node=2", "epochs=2"),
}


def kill_while_writing(experiment: Experiment, random: Random, all_ranks: bool) -> None:
    """Start the run; kill a rank, or all, while a checkpoint after the first one is written."""
    folder, ended = experiment.checkpoints, Event()

    def strike() -> None:
        while not (saved_steps(folder) and [*folder.glob(".part-*/rank*.pt")]):
            if ended.wait(0.001):
                return
        ended.wait(random.random() * 0.4)
        ranks = ranks_of(experiment.directory)
        for rank in ranks if all_ranks else ranks and [random.choice(ranks)]:
            os.kill(rank, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(strike)
        try:
            with pytest.raises(RankFailed, match="was killed by signal SIGKILL"):
                launch(experiment, program=(SLOW_RANK, "-1"))
        finally:
            ended.set()


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("ar_sgd", 1),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in WRITING),
    ],
)
def test_a_rank_killed_while_checkpoints_are_written(
    name: str, kills: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint is then damaged where only the last rank reads it."""
    algo, *_ = name.split()
    overrides = (*SETTINGS, f"algo={algo}", "checkpoint.every_steps=12", *WRITING[name])
    whole, cut = (make_experiment(tmp_path / label, *overrides) for label in ("whole", "cut"))
    launch(whole, program=(REAL_RANK, "-1"))
    random = Random(kills)
    for number in range(kills):
        kill_while_writing(cut, random, all_ranks=number % 2 == 1)
    newest = cut.checkpoints / f"step-{saved_steps(cut.checkpoints)[0]}"
    last = newest / f"rank{cut.run.ranks - 1}.pt"
    keys = torch.load(last, weights_only=True)["worker"].keys()
    assert ("push_sum" in keys) is ("comm" in keys) is (cut.run.gpus_per_node == 1)
    last.write_bytes(last.read_bytes()[:-1])
    capfd.readouterr()
    launch(cut, program=(SLOW_RANK, "-1"))
    warning = f"the checkpoint {newest} is not used: {last.name} is damaged."
    assert capfd.readouterr().err.count(warning) == 1
    assert distance(whole, cut) == 0
    assert training_losses(whole) == training_losses(cut)


def test_a_full_disk_on_one_rank_ends_the_run_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FULL_ON_RANK", "1")
    overrides = ("nodes=2", "algo=ar_sgd", "epochs=100", "checkpoint.every_steps=50")
    experiment = make_experiment(tmp_path, *SETTINGS, *overrides)
    sentence = (
        r"^cannot write the checkpoint \S+/step-100: No space left on device; earlier records and "
        "checkpoints are intact.$"
    )
    with pytest.raises(RankFailed, match=sentence):
        launch(experiment, program=(SLOW_RANK, "-1"))
    assert [path.name for path in experiment.checkpoints.iterdir()] == ["step-50"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "algo=ad_psgd",
        "algo=gap_aware",
        "algo=async_diloco algo.period=2 algo.momentum=0 algo.lr=1",
        "algo=ad_psgd gpus_per_node=2",
        "algo=a2cid2",
        "algo=halos algo.regions=2 algo.period=2 algo.momentum=0 algo.lr=1 algo.delay=1 "
        "algo.arrivals=2 algo.alpha=0.5 algo.global_lr=0.5 algo.global_momentum=0",
        "algo=rennala optim.momentum=0.9",
        "algo=ringleader optim.lr=0.3",
        "algo=ringmaster algo.stop=true",
        "algo=swarm_sgd",
    ],
)
def test_an_asynchronous_run_goes_on_with_what_is_left_of_its_budget(
    settings: str, tmp_path: Path
) -> None:
    experiment = make_experiment(
        tmp_path,
        *SETTINGS,
        "nodes=2",
        "model=resnet8",
        "epochs=12",
        *settings.split(),
        "checkpoint.every_steps=40",
    )
    assert run_to_the_end(experiment, Random(3), signal.SIGUSR1, 1) == 1
    assert sum(steps_taken(experiment)[:2]) == 2 * 12 * 44
    assert read_summary(experiment.directory)["average"] > 0.93  # type: ignore[index, operator]
    times = [
        float(str(record["time_s"]))
        for record in read_metrics(experiment.directory)
        if record.get("rank") == 0
    ]
    assert times == sorted(times)


def test_the_command_passes_the_signal_on_and_says_so_once(tmp_path: Path) -> None:
    overrides = ("network=gloo", "algo=osgp", "model=mlp", "nodes=2", "epochs=200", "logger=jsonl")
    process = Command(*overrides, f"results={tmp_path}")
    wait_for_ranks(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate()
    assert process.returncode == 75
    assert re.fullmatch(
        (
            r"sgp-run: stopped by SIGTERM; saved in \S+/checkpoints/step-\d+. Run the same "
            r"command again to resume.\n"
        ),
        error,
    )
    assert "Traceback" not in out


@pytest.mark.slow
def test_torchrun_starts_its_ranks_again_and_they_go_on(tmp_path: Path) -> None:
    torchrun = [
        str(Path(sys.executable).with_name("torchrun")),
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "-m",
        "sgp_runner",
    ]
    overrides = [
        "network=gloo",
        "nodes=2",
        "model=mlp",
        "epochs=10",
        "checkpoint.every_steps=300",
        "eval_every=1000",
        "logger=jsonl",
    ]
    subprocess.run(
        [*torchrun, *overrides, "name=whole"], cwd=tmp_path, check=True, capture_output=True
    )
    process = subprocess.Popen(
        [*torchrun, *overrides, "name=run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    directory, whole = (tmp_path / "results" / "runs" / name for name in ("run", "whole"))
    while process.poll() is None and not saved_steps(directory / "checkpoints"):
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    out, _ = process.communicate(timeout=1000)
    assert process.returncode == 0
    assert "This run resumes from step" in out
    assert read_summary(directory) is not None
    learned, expected = (
        [
            (record["rank"], record["step"], record["loss"])
            for record in read_metrics(folder)
            if record["kind"] in ("train", "eval")
        ]
        for folder in (directory, whole)
    )
    assert sorted(map(str, learned)) == sorted(map(str, expected))

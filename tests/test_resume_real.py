"""Runs on real processes that are killed, or asked to stop, and started again: synchronous ones end with the same bytes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from threading import Thread

import pytest
import torch
from experiments import final_parameters, make_experiment
from processes import ranks_of

from sgp_runner.checkpoint import saved_steps
from sgp_runner.errors import RankFailed, Stopped
from sgp_runner.launch import launch
from sgp_runner.recorder import read_metrics
from sgp_runner.run import Experiment

REAL_RANK = str(Path(__file__).with_name("real_rank.py"))
SETTINGS = ("network=gloo", "nodes=3", "model=mlp", "batch_size=16", "epochs=2", "log_every=1", "eval_every=100")
SYNCHRONOUS = {
    "ar_sgd": ("model=resnet8",),
    "d_psgd": (),
    "sgp": ("algo.topology.peers=2",),
    "slowmo": ("algo.tau=7",),
    "local_sgd": ("algo.tau=5",),
    "pipe_sgd": ("algo.depth=3",),
    "pipe_sgd compressed": ("algo.compression=quantize8",),
    "ps_sgd": (),
    "hybrid": ("algo.switch_epoch=2",),
    "pipe_sgd compressed, on nodes of two devices": ("nodes=2", "gpus_per_node=2", "algo.compression=quantize8"),
}


def run_to_the_end(experiment: Experiment, random: Random, number: int) -> int:
    """Start the run until it ends. Twice, once it has a new checkpoint, ``number`` is sent to one of its processes; how often it was."""
    sent = 0

    def strike(before: int) -> None:
        nonlocal sent
        while not ended and max(saved_steps(experiment.checkpoints), default=0) <= before:
            time.sleep(0.01)
        time.sleep(random.random() * 0.2)
        if not ended and (ranks := ranks_of(experiment.directory)):
            os.kill(random.choice(ranks), number)
            sent += 1

    while True:
        ended = False
        striker = Thread(target=strike, args=(max(saved_steps(experiment.checkpoints), default=0) if sent < 2 else 10**9,))
        striker.start()
        try:
            launch(experiment, program=(REAL_RANK, "-1"))
            return sent
        except Stopped as stopped:
            assert f"stopped by {signal.Signals(number).name}; saved in {experiment.checkpoints}/step-" in str(stopped)
        except RankFailed as failed:
            assert "was killed by signal SIGKILL" in str(failed)
        finally:
            ended = True
            striker.join()
            assert not ranks_of(experiment.directory)


def training_losses(experiment: Experiment) -> list[tuple[object, object, object]]:
    records = [record for record in read_metrics(experiment.directory) if record["kind"] == "train"]
    return sorted((str(record["rank"]), record["step"], record["loss"]) for record in records)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_killed_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    settings = (*SETTINGS, f"algo={name.split(maxsplit=1)[0]}", *SYNCHRONOUS[name])
    whole = make_experiment(tmp_path / "whole", *settings)
    launch(whole, program=(REAL_RANK, "-1"))
    cut = make_experiment(tmp_path / "cut", *settings, "checkpoint.every_steps=9")
    number = (signal.SIGKILL, signal.SIGUSR1)[len(name) % 2]
    assert run_to_the_end(cut, Random(len(name)), number) > 0
    for a, b in zip(final_parameters(whole), final_parameters(cut), strict=True):
        assert torch.equal(a, b)
    assert training_losses(whole) == training_losses(cut)

"""States of workers on a GPU: they are read and copied without memory beside the worker's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_rig.ranks import START, D, Ranks, base_run
from gpu_rig.streams import address
from gpu_rig.test_launches import peak

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.saving import check_fits
from sgp_runner.config.run import Run
from sgp_runner.core.optim import AdamW, Constant
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import read

META = torch.device("meta")  # stands for a GPU: another device than that of the file


def run_of_adamw() -> Run:
    return replace(base_run(), optim=AdamW(Constant()))


def saved_worker(path: Path) -> Worker:
    """Return a worker with two named vectors that share memory [2 D], and save it."""
    worker = Ranks(run_of_adamw(), torch.device("cpu")).workers[0]
    both = torch.arange(2.0 * D)
    worker.state.update(first=both[:D], pair=[both[D:], 3])
    torch.save(worker.state_dict(), path)
    return worker


def test_a_resumed_worker_copies_its_state_in_place(tmp_path: Path) -> None:
    """Only named vectors are new on the device: 2 D numbers, of 5 D in the file."""
    saved_worker(tmp_path / "rank0.pt")
    saved = read(tmp_path / "rank0.pt", mapped=True)
    assert torch.equal(saved["push_sum"][:-1], START[:-1])
    worker = Ranks(run_of_adamw(), META).workers[0]
    places = [*map(address, (worker.push_sum, *worker.buffers.values()))]
    worker.load_state_dict(saved)
    assert [*map(address, (worker.push_sum, *worker.buffers.values()))] == places
    named = worker.state["first"], worker.state["pair"][0]
    assert [(t.device, t.storage_offset()) for t in named] == [(META, 0), (META, D)]
    assert address(named[0]) == address(named[1])
    assert named[0].untyped_storage().nbytes() == 8 * D


@pytest.mark.parametrize("fits", [True, False])
def test_whether_a_state_fits_is_seen_without_memory(fits: bool) -> None:
    """Before, the check made the parameters and the buffers of AdamW again."""
    problem = build_problem(run_of_adamw())
    n = sum(problem.flat.layers)
    worker = {"push_sum": torch.empty(n + fits), "model_buffers": problem.flat.initial}
    moments = dict.fromkeys(("mean", "square"), torch.empty(n))
    worker |= {"buffers": {**moments, "steps": torch.empty(())}}
    counts = dict.fromkeys(("step", "steps_taken", "gradients", "taken", "num_bytes_sent"), 0)
    others = dict.fromkeys(("state", "comm", "loss", "observed"))
    saved: Any = {"worker": {**worker, **counts, **others}, "now": 1.0, "devices": []}
    world: Any = SimpleNamespace(cut=None, layout=SimpleNamespace(devices=1))

    def check() -> None:
        check_fits(saved, problem, run_of_adamw().optim, world)

    if fits:
        assert peak(check) == 0
    else:
        with pytest.raises(ValueError, match="^its number of parameters differs$"):
            check()

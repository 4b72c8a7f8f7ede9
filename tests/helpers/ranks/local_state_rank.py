"""Two ranks of training loops with `Averager` that treat the state of ranks in different ways.

``local_state_rank.py FOLDER``: each rank saves ``RANK.pt``: case -> parameters, BatchNorm's
statistics and the state of the optimizer, after the last step and before `finish`.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sgp_runner import Averager
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.utils.errors import Diverged, RankLost

Make = Callable[..., torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, 0.9)


LOCAL = {"tau": 2}
SLOWMO = SlowMo(LocalSGD(None), tau=2, buffers="average")
#: Case -> algorithm, optimizer, steps of both ranks, and what `Averager` is told.
CASES: dict[str, tuple[Any, Make, tuple[int, int], dict[str, Any]]] = {
    "adam local": ("local_sgd", torch.optim.Adam, (2, 2), LOCAL),
    "adam mean": ("local_sgd", torch.optim.Adam, (2, 2), {**LOCAL, "optimizer_state": "mean"}),
    "adam reset": ("local_sgd", torch.optim.Adam, (2, 2), {**LOCAL, "optimizer_state": "reset"}),
    "buffers": ("local_sgd", torch.optim.Adam, (2, 2), {**LOCAL, "buffers": "mean"}),
    "sgd local": ("diloco", sgd, (2, 2), {"period": 2}),
    "sgd mean": ("diloco", sgd, (2, 2), {"period": 2, "optimizer_state": "mean"}),
    "last": ("diloco", sgd, (2, 2), {"period": 9, "steps": 2, "optimizer_state": "mean"}),
    "within": ("diloco", sgd, (2, 2), {"period": 3, "optimizer_state": "mean"}),
    "slowmo": (SLOWMO, sgd, (3, 3), {}),
    "slowmo mean": (
        "slowmo",
        sgd,
        (3, 3),
        {"tau": 2, "base": "local_sgd", "optimizer_state": "mean"},
    ),
    "sgd kept": ("diloco", sgd, (3, 3), {"period": 2}),
    "sgp joined": ("sgp", sgd, (2, 5), {"join": True}),
    "sgp skipped": ("sgp", sgd, (5, 5), {}),
    "local joined": ("local_sgd", sgd, (5, 0), {**LOCAL, "join": True}),
    "local skipped": ("local_sgd", sgd, (5, 5), LOCAL),
}
#: Case -> the rank, and the first of its steps that it skips as a rank that has joined does.
SKIPPED = {"sgp skipped": (0, 2), "local skipped": (1, 0)}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def train(case: str, rank: int) -> dict[str, Any]:
    algo, make, steps, settings = CASES[case]
    model = net()
    optimizer = make(model.parameters())
    averager = Averager(algo, model, optimizer, **settings)
    random = torch.Generator().manual_seed(rank)
    for step in range(steps[rank]):
        x = torch.randn(6, 3, generator=random, dtype=torch.float64)
        model(x).square().mean().backward()
        who, first = SKIPPED.get(case, (None, 0))
        if rank == who and step >= first:
            vars(averager)["found_inf"] = torch.ones(1)  # as GradScaler does
        averager.step()
    state = [value.clone() for p in model.parameters() for value in optimizer.state[p].values()]
    buffers = [buffer.clone() for buffer in averager.buffers]
    saved = copy.deepcopy(averager.state_dict()) if case == "sgd kept" else None
    averager.finish()
    params = averager.runtime.worker.params
    return {"params": params, "buffers": buffers, "optimizer": state, "saved": saved}


def fail(rank: int) -> str:
    """Return the error of a run in which the gradient of rank 1 is not finite in its third step."""
    model = net()
    averager = Averager("local_sgd", model, sgd(model.parameters()), tau=1)
    try:
        for step in range(4):
            model(torch.ones(6, 3).double()).square().mean().backward()
            if (step, rank) == (2, 1):
                model[2].weight.grad = torch.full_like(model[2].weight, torch.nan)
            averager.step()
    except (Diverged, RankLost) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(folder: Path, rank: int) -> None:
    store = dist.FileStore(str(folder / "loops"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    results: dict[str, Any] = {case: train(case, rank) for case in CASES}
    torch.save({**results, "error": fail(rank)}, folder / f"{rank}.pt")
    os.kill(os.getpid(), signal.SIGKILL)  # rank 0 is then without rank 1, whose run has failed


if __name__ == "__main__":
    sgd(nn.Linear(1, 1).parameters())  # imports what both ranks need
    children = []
    for rank in (0, 1):
        if (child := os.fork()) == 0:
            main(Path(sys.argv[1]), rank)
        children.append(child)
    assert all(os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL for child in children)

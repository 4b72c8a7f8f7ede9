"""Two ranks whose models or optimizers `Averager` refuses: ``refused_rank.py FOLDER``.

The rank is in the environment. Each rank leaves ``RANK.json``: case -> error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from sgp_runner import Averager
from sgp_runner.utils.errors import ConfigError, RankFailed

RANK = int(os.environ["RANK"])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def average(model: nn.Module, optimizer: Any = None) -> None:
    Averager("sgp", model, optimizer or sgd(model)).finish()


def twice() -> None:
    model = nn.Linear(2, 1)
    with Averager("sgp", model, sgd(model)):
        average(DistributedDataParallel(model))


def part() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with Averager("sgp", model[0], sgd(model[0])):
        average(model)


def hook() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    average(model)


def post_local() -> None:
    model = nn.Linear(2, 1)
    average(model, PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=4)))


def closure() -> None:
    model = nn.Linear(2, 1)
    average(model, torch.optim.LBFGS(model.parameters()))


def names() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.add_module("tail" if RANK else "head", nn.Linear(2, 2))
    average(model)


def shapes() -> None:
    average(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 + RANK)))


def count() -> None:
    average(nn.Sequential(*(nn.Linear(2, 2) for _ in range(2 - RANK))))


def frozen() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(not RANK)
    average(model)


def buffer() -> None:
    model = nn.Linear(2, 1)
    if RANK:
        model.register_buffer("mask", torch.ones(2))
    average(model)


def kind() -> None:
    average(nn.Linear(2, 1).to(torch.float64 if RANK else torch.float32))


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        *(twice, part, hook, post_local, closure),
        *(names, shapes, count, frozen, buffer, kind),
    )
}


def main(folder: Path) -> None:
    store = dist.FileStore(str(folder / "group"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    found = {}
    for name, case in CASES.items():
        try:
            case()
        except (ConfigError, RankFailed) as error:
            found[name] = str(error)
    (folder / f"{RANK}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

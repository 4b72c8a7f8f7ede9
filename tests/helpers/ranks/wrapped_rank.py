"""Two ranks of training loops with `Averager`, with a bare module and with one inside DDP.

``wrapped_rank.py FOLDER``: each rank saves ``RANK.pt``: case -> "bare" and "wrapped" -> parameters,
buffers and optimizer state after the last step. ``messages`` has the log of the wrapped loops.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sgp_runner import Averager

STEPS = 5
#: Case -> algorithm, its settings, those of DDP, and how the loop is written.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], set[str]]] = {
    "plain": ("sgp", {}, {}, set()),
    "views of buckets": ("d_psgd", {"topology": "ring"}, {"gradient_as_bucket_view": True}, set()),
    "accumulation": ("d_psgd", {}, {"gradient_as_bucket_view": True}, {"parts"}),
    "static graph": ("ar_sgd", {}, {"static_graph": True}, {"clips"}),
    "unused": ("local_sgd", {"tau": 2}, {"find_unused_parameters": True}, {"skips a layer"}),
    "scaler": ("sgp", {}, {}, {"scales"}),
    "scaler and clipping": ("slowmo", {"tau": 2}, {}, {"scales", "clips", "parts"}),
    "infinite": ("gossip_pga", {"period": 2}, {}, {"scales", "infinite"}),
    "infinite mean": ("ar_sgd", {}, {}, {"scales", "infinite"}),
    "infinite and clipping": ("sgp", {}, {}, {"scales", "infinite", "clips"}),
    "clipping": ("slowmo", {"tau": 2}, {}, {"clips", "parts"}),
}


class Net(nn.Module):
    """Two layers, of which a loop may skip the second, around BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        hidden = self.norm(self.first(x))
        last: Tensor = self.last(hidden if skip else self.second(hidden).tanh())
        return last


def train(case: str, rank: int, wrapped: bool) -> dict[str, Any]:
    algo, settings, of_ddp, how = CASES[case]
    torch.manual_seed(0)
    net = Net().double()
    model: Any = DistributedDataParallel(net, bucket_cap_mb=1e-4, **of_ddp) if wrapped else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, nesterov=True)
    averager = Averager(algo, model, optimizer, **settings)
    assert averager.model is net
    scaler: Any = torch.amp.GradScaler("cpu", 2.0**8, enabled="scales" in how)
    random = torch.Generator().manual_seed(rank)
    parts = 2 if "parts" in how else 1
    for step in range(STEPS):
        for part in range(parts):
            x = torch.randn(6, 3, generator=random, dtype=torch.float64)
            waits = wrapped and part < parts - 1
            with model.no_sync() if waits else nullcontext():
                skip = "skips a layer" in how and (step + rank) % 2 == 0
                loss = model(x, skip).square().mean() / parts
                scaler.scale(loss).backward()
        if "infinite" in how and (step, rank) == (2, 1):
            net.last.bias.grad = torch.full_like(net.last.bias, torch.inf)
        if "clips" in how:
            scaler.unscale_(averager)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(averager)
        scaler.update()
        averager.zero_grad()
    state = [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
    flat = averager.runtime.worker.params.clone()
    averager.finish()
    buffers = [buffer.clone() for buffer in net.buffers()]
    scale = scaler.get_scale()
    return {"params": flat, "buffers": buffers, "optimizer": state, "scale": scale}


def main(folder: Path, rank: int) -> None:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sgp_runner").addHandler(handler)
    store = dist.FileStore(str(folder / "loops"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    results = {
        case: {kind: train(case, rank, kind == "wrapped") for kind in ("bare", "wrapped")}
        for case in CASES
    }
    torch.save({**results, "messages": messages}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # imports what both ranks need
    if (child := os.fork()) == 0:
        main(Path(sys.argv[1]), 1)
        os._exit(0)
    main(Path(sys.argv[1]), 0)
    assert os.waitpid(child, 0)[1] == 0

"""Loops of two replicas with `Averager`: of one rank each, then of two ranks with half a batch.

``mesh_rank.py FOLDER``: rank R saves ``1R.pt``, ``2R.pt`` with DDP and ``fsdp2R.pt``: case ->
parameters after the last step, and those of a loop that continues from its state.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sgp_runner import Averager

REPLICAS, STEPS, HALF = 2, 6, 3
#: Case -> algorithm and its settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgp": ("sgp", {}),
    "local_sgd": ("local_sgd", {"tau": 4, "optimizer_state": "mean"}),
    "diloco": ("diloco", {"period": 2}),
    "ar_sgd": ("ar_sgd", {}),
}


def train(case: str, devices: int, shards: bool, state: Any = None) -> tuple[Tensor, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    algo, settings = CASES[case]
    model: nn.Module = net
    if devices > 1:
        mesh = init_device_mesh("cpu", (REPLICAS, devices), mesh_dim_names=("replicas", "devices"))
        settings = {**settings, "mesh": mesh}
        if shards:
            fully_shard(net[0], mesh=mesh["devices"])
            fully_shard(net, mesh=mesh["devices"])
        else:
            model = DistributedDataParallel(net, process_group=mesh.get_group(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    averager = Averager(algo, model, optimizer, **settings)
    replica, device = divmod(dist.get_rank(), devices)
    assert (averager.rank, averager.size) == (replica, REPLICAS)
    random = torch.Generator().manual_seed(replica)
    if state is not None:
        averager.load_state_dict(state)
    saved = None
    for step in range(STEPS):
        x = torch.randn(8, 3, generator=random, dtype=torch.float64)
        if state is not None and step < HALF:
            continue
        if step == HALF:
            saved = copy.deepcopy(averager.state_dict())
        for part in x.chunk(2) if devices == 1 else [x.chunk(2)[device]]:
            (model(part).square().mean() * devices / 2).backward()
        averager.step()
    params = averager.runtime.worker.params.clone()
    if shards:
        params = torch.cat([p.full_tensor().reshape(-1) for p in net.parameters()])  # type: ignore[attr-defined]
    averager.finish()
    return params, saved


def main(folder: Path, rank: int, devices: int, shards: bool) -> None:
    size, name = REPLICAS * devices, f"fsdp{devices}" if shards else f"{devices}"
    store = dist.FileStore(str(folder / f"store{name}"), size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    results = {}
    for case in CASES:
        params, saved = train(case, devices, shards)
        results[case] = params, train(case, devices, shards, saved)[0]
    torch.save(results, folder / f"{name}{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # imports what all ranks need
    for devices, shards in ((1, False), (2, False), (2, True)):
        children = []
        for rank in range(REPLICAS * devices):
            if (child := os.fork()) == 0:
                main(Path(sys.argv[1]), rank, devices, shards)
                os._exit(0)
            children.append(child)
        assert not any(os.waitpid(child, 0)[1] for child in children)

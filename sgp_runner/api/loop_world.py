"""The processes of a script with its own training loop, as a `World`."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.parts import Cut
from sgp_runner.core.problem import Compute
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.utils.launchers import launched, rendezvous
from sgp_runner.utils.messages import logger


def world_on(device: torch.device, devices: int = 1, cut: Cut | None = None) -> TorchWorld:
    """Return the world of the script's process group, or of its launcher. Raises ConfigError.

    device: device of the model. devices: number of processes per node. cut: if not None, these have
        different shards of the model
    """
    joins = dist.is_initialized()
    if not joins:
        process = launched()
        if joins := process is None:
            logger.warning(
                "No launcher has started this process, so it trains alone and nothing is averaged: "
                "start it with torchrun --nproc-per-node=2 SCRIPT."
            )
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        else:
            os.environ.update(rendezvous(process))
    has_nccl = not joins or "nccl" in str(dist.get_backend_config())
    nccl = device.type == "cuda" and has_nccl
    return TorchWorld(
        devices=devices,
        compute=Compute(str(device)),
        backend="nccl" if nccl else "gloo",
        paired=nccl,
        shares_memory=True,
        joins=joins,
        cut=cut,
    )


def take_from_replica_0(tensor: Tensor, world: TorchWorld) -> None:
    """Copy ``tensor`` from rank 0 over gloo, or from the same device of replica 0."""
    if world.cut is not None:
        dist.broadcast(tensor, world.layout.device, group=world.averaging)
        return
    on_host = tensor.cpu().contiguous()
    world.broadcast(on_host, 0)
    tensor.copy_(on_host)

"""FSDP2's parameters for `Averager`: the shard of each that is on this device.

The same device of all replicas has the same shard of each parameter, so an elementwise algorithm
averages the shards, device by device, as it would average whole models. FSDP2 gathers a module's
parameters from its own memory. Therefore the shards are copied between that memory and the vector
of the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sgp_runner.core.optim.wrapped import ParameterVector
from sgp_runner.core.state import State
from sgp_runner.utils.errors import ConfigError


def check_sharding(model: nn.Module, mesh: DeviceMesh) -> None:
    """Raise ConfigError unless FSDP2 shards all parameters over the devices of one replica."""
    ranks = mesh.mesh[dist.get_rank() // mesh.size(1)].tolist()
    for name, p in model.named_parameters():
        if not isinstance(p, DTensor):
            what = "is not sharded"
        elif p.device_mesh.mesh.tolist() != ranks:
            what = f"is sharded over the ranks {p.device_mesh.mesh.tolist()}"
        elif p.dtype not in (torch.float32, torch.float64):
            what = f"is in {str(p.dtype).removeprefix('torch.')}, not in float32"
        else:
            continue
        raise ConfigError(
            "model",
            f"the parameter {name} {what}: shard the whole model over the ranks {ranks} of a "
            "replica, fully_shard(model, mesh=mesh[NAME]) with the second dimension's name; "
            "MixedPrecisionPolicy sets the precision in which it computes.",
        )


class ShardVector(ParameterVector):
    """The local shards of a module's parameters, which are copied to and from a vector [D]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.shapes = {
            name: tuple(local(p).shape)
            for name, p in zip(self.shapes, self.parameters, strict=True)
        }
        self.sizes = [local(p).numel() for p in self.parameters]

    def joined(self) -> Tensor:
        return torch.cat([local(p).reshape(-1) for p in self.parameters])

    def parts(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for p, part in zip(self.parameters, vector.split_with_sizes(self.sizes), strict=True):
            yield p, part.view(local(p).shape)

    def view(self, vector: Tensor) -> None:
        for p, part in self.parts(vector):
            local(p).copy_(part)

    def read(self, vector: Tensor) -> None:
        for p, part in self.parts(vector):
            part.copy_(local(p))

    def set_gradient(self, parts: Sequence[Tensor]) -> None:
        for p, part in zip(self.parameters, parts, strict=True):
            p.grad = like(part.view(local(p).shape), p)

    def separate(self) -> None:
        """Do nothing: the parameters never share memory."""

    def tensor(self, value: Tensor) -> Tensor:
        return local(value)

    def plain(self, state: State) -> State:
        return {**state, "state": {i: mapped(of, local) for i, of in state["state"].items()}}

    def sharded(self, state: State, optimizer: torch.optim.Optimizer) -> State:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        return {
            **state,
            "state": {i: mapped(of, partial(whole, held[i])) for i, of in state["state"].items()},
        }


def local(tensor: Tensor) -> Tensor:
    """Return this device's shard of a sharded tensor, sharing memory; others unchanged."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()


def like(part: Tensor, p: Any) -> DTensor:
    """Return the tensor with ``part`` as this device's shard, sharded like the parameter."""
    mesh, placements = p.device_mesh, p.placements
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def whole(p: nn.Parameter, value: Tensor) -> Tensor:
    """Return the sharded tensor for a shard of optimizer state; step counts unchanged."""
    return like(value, p) if value.shape == local(p).shape and value.dim() else value


def mapped(values: State, change: Any) -> State:
    return {
        key: change(value) if isinstance(value, Tensor) else value for key, value in values.items()
    }

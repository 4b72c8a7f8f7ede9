"""Local state of a rank, and what happens to it when all ranks receive the same model.

The optimizer's local state consists of the floating-point tensors in ``optimizer.state``: the
momentum of SGD, both moments and the step of Adam. The model's local state consists of its
floating-point buffers, such as BatchNorm's statistics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.gossip_pga import GossipPGA
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.algorithms.sparseloco import SparseLoCo
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import ConfigError

OptimizerRule: TypeAlias = Literal["local", "mean", "reset"]
BufferRule: TypeAlias = Literal["local", "mean"]
#: Algorithm -> its setting of the steps between those after which all ranks have one model.
PERIODS: dict[type[Algorithm], str] = {
    DiLoCo: "period",
    GossipPGA: "period",
    LocalSGD: "tau",
    SlowMo: "period",
    SparseLoCo: "period",
}
OF_SLOWMO: dict[str | None, Literal["keep", "average", "reset"]] = {
    "local": "keep",
    "mean": "average",
    "reset": "reset",
}


def period_of(algo: Algorithm) -> int:
    """Return the number of steps after which all ranks have the same model; 0 if they never do."""
    if getattr(algo, "overlap", "none") != "none":
        return 0
    names = (PERIODS[cls] for cls in type(algo).__mro__ if cls in PERIODS)
    return getattr(algo, next(names, ""), None) or 0


def with_rules(algo: Algorithm, optimizer: OptimizerRule | None, buffers: BufferRule) -> Algorithm:
    """Check both rules, and return the algorithm; SlowMo has the optimizer's rule as a setting.

    Raises ConfigError for a rule that would never apply with this algorithm.
    """
    for key, value, choices in (
        ("optimizer_state", optimizer or "local", ("local", "mean", "reset")),
        ("buffers", buffers, ("local", "mean")),
    ):
        if value not in choices:
            slowmo = isinstance(algo, SlowMo) and key == "buffers"
            other = "; SlowMo's setting of this name is optimizer_state= here" if slowmo else ""
            raise ConfigError(key, f"'{value}' must be one of {', '.join(choices)}{other}.")
        if value != "local" and not period_of(algo):
            raise ConfigError(
                key,
                f"{algo.title} has no step after which all ranks have one model, so '{value}' "
                "never applies: write 'local', or use local_sgd, slowmo, diloco, sparseloco or "
                "gossip_pga.",
            )
    if isinstance(algo, SlowMo) and optimizer is not None:
        return dataclasses.replace(algo, buffers=OF_SLOWMO[optimizer])
    return algo


def average(tensors: Sequence[Tensor], world: World) -> None:
    """Replace each tensor by its mean over all ranks, in a single message.

    Does nothing if the number of tensors differs between ranks: an optimizer that has skipped all
    steps has no state yet.
    """
    if len(set(world.gather(len(tensors)))) > 1 or not tensors:
        return
    device = max((t.device for t in tensors), key=lambda device: device.type == "cuda")
    joined = torch.cat([t.detach().reshape(-1).to(device) for t in tensors])
    world.mean(joined)
    parts = joined.split_with_sizes([t.numel() for t in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))

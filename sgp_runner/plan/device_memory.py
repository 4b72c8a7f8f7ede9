"""The memory of a device: parameters, gradients, and state of optimizer and method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sgp_runner.utils.errors import ConfigError, nearest

# The part of a method's named state; all other state is "other".
STATE = {
    **dict.fromkeys(("outer", "start", "phi", "slowmo_x0"), "backup"),
    **dict.fromkeys(("outer_momentum", "slowmo_u"), "outer momentum"),
}


@dataclass(frozen=True)
class Precision:
    """Bytes per number: of the model and its gradients, the optimizer's copy, and other state."""

    model: int
    master: int
    state: int


PRECISIONS = {
    "fp32": Precision(4, 0, 4),
    "mixed": Precision(2, 4, 4),  # Rajbhandari et al. 2020, section 3.1: 16 bytes with Adam
    "bf16": Precision(2, 0, 2),
}
SHARDS = ("none", "state", "all")


@dataclass(frozen=True)
class DeviceMemory:
    """The limit and layout of a device's memory.

    precision: a name of `PRECISIONS`
    shard: state: a device holds a shard of its node's state, but all parameters and gradients;
        all: a shard of everything
    limit: bytes per device; None: unknown
    """

    precision: str = "fp32"
    shard: str = "none"
    limit: float | None = None

    def __post_init__(self) -> None:
        for key, value, names in (
            ("precision", self.precision, tuple(PRECISIONS)),
            ("shard", self.shard, SHARDS),
        ):
            if value not in names:
                raise ConfigError(
                    key, f"'{value}' is not one of {', '.join(names)}.{nearest(value, names)}"
                )

    def parts(
        self, parameters: float, vectors: Mapping[str, float], devices: int
    ) -> dict[str, float]:
        """Return the bytes on a device, by category.

        vectors: number of model-sized vectors for each category of state; must include
            ``optimizer``
        devices: number of devices per node, over which `shard` distributes memory
        """
        size, state = PRECISIONS[self.precision], 1 / (devices if self.shard != "none" else 1)
        whole = state if self.shard == "all" else 1.0
        held = {name: size.state * count for name, count in vectors.items()}
        held["optimizer"] += size.master
        if self.shard == "state" and not size.master and devices > 1:
            held["own parameters"] = size.model  # beside the gathered ones
        return {
            name: parameters * per_parameter
            for name, per_parameter in {
                "parameters": whole * size.model,
                "gradients": whole * size.model,
                **{name: state * per_parameter for name, per_parameter in held.items()},
            }.items()
            if per_parameter
        }

    def fits(self, parts: Mapping[str, float]) -> bool:
        return self.limit is None or sum(parts.values()) <= self.limit

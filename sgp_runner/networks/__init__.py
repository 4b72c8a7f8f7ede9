"""Who moves the bytes: ``sim`` in simulated time, ``gloo`` and ``mpi`` between real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from sgp_runner.errors import ConfigError

if TYPE_CHECKING:
    from sgp_runner.run import Experiment, Run


class Network(Protocol):
    """A choice of the group ``network``."""

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> Literal["simulated", "wall"]: ...  # of the times that are recorded
    def check(self, run: Run) -> None: ...  # ConfigError for what this network cannot do
    def execute(self, experiment: Experiment) -> dict[str, object] | None: ...


def check_real(run: Run) -> None:
    """Raises ConfigError for what only simulated machines can do."""
    if not run.model.trains:
        raise ConfigError("network", f"model={run.model.name} only runs in simulated time: use network=sim.")
    if run.faults.any:
        raise ConfigError("faults", "slow nodes and links are simulated: use network=sim, or faults=none.")
    if run.gpus_per_node != 1:
        raise ConfigError("gpus_per_node", f"network={run.network.name} runs one process per node: use gpus_per_node=1.")

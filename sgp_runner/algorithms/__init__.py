"""The algorithms, one file each: frozen dataclasses whose `run` is the paper's loop.

Everything that takes time is awaited and nothing else is; that is all it takes for the same file to
run on real processes and in simulated time. `sgp_runner.core.worker.Worker` lists the verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from sgp_runner.core.names import warn_of_new_name
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase, Topology
from sgp_runner.topology.verify import verify, verify_symmetric

#: Former names of members that plug-ins may define -> their names.
FORMER_NAMES = {
    "sends": "message_layout",
    "measures": "is_probe",
    "without_effect": "warning",
}


@runtime_checkable
class Algorithm(Protocol):
    """The interface of an algorithm.

    By default it is synchronous and works for all numbers of nodes and all optimizers.
    """

    # Asynchronous workers share one budget of gradients and never wait for all.
    asynchronous: ClassVar[bool] = False
    # Parameter servers, in addition to the nodes; their ranks follow the workers'.
    servers: ClassVar[int] = 0
    # Its messages, before they are coded: all of the model, fragments of it in turn, or parts of
    # chunks of its tensors.
    message_layout: ClassVar[Literal["model", "fragments", "chunks"]] = "model"
    # Settings of optim=sgd that the method has, unless a preset or the command line sets them.
    sgd_defaults: ClassVar[Mapping[str, float]] = {}
    # Measures instead of training, and so has no progress to show.
    is_probe: ClassVar[bool] = False
    # What `check` asks of ``topology``: any graph that all nodes agree on, or a symmetric one.
    graph: ClassVar[Literal["any", "symmetric"] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for old in FORMER_NAMES.keys() & vars(cls):
            warn_of_new_name(f"{cls.__name__}.{old}", FORMER_NAMES[old])
            setattr(cls, FORMER_NAMES[old], vars(cls)[old])

    @property
    def title(self) -> str: ...  # the name in tables

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Raise ConfigError for a combination that cannot work."""
        topology: Any = getattr(self, "topology", None)
        if self.graph == "symmetric":
            verify_symmetric(topology, nodes, self.title)
        elif self.graph == "any":
            verify(topology, nodes, by=self.title, weighted=True)

    def phases(self, size: int) -> list[Phase]:
        """Return the phases of the schedule: the first epoch, and the period in steps, of each.

        The period is the number of steps after which the messages and collectives of all workers
        repeat: by default that of ``topology`` times ``period``, of the settings that there are.
        """
        topology, period = getattr(self, "topology", None), getattr(self, "period", 1)
        graph = topology.phases(size) if isinstance(topology, Topology) else [(0.0, 1)]
        repeats = period if isinstance(period, int) else 1
        return [(epoch, repeats * steps) for epoch, steps in graph]

    def warning(self, steps: int, epochs: float) -> str | None:
        """Return a sentence if a setting has no effect in a run of this length, else None."""
        return None

    async def run(self, worker: Worker) -> None: ...

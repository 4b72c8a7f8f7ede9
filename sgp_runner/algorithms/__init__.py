"""The algorithms, one file each: frozen dataclasses whose `run` is the paper's loop.

Everything that takes time is awaited and nothing else is; that is all it takes for the same file to
run on real processes and in simulated time. `sgp_runner.core.worker.Worker` lists the verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase


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
    sends: ClassVar[Literal["model", "fragments", "chunks"]] = "model"
    # Settings of optim=sgd that the method has, unless a preset or the command line sets them.
    sgd_defaults: ClassVar[Mapping[str, float]] = {}
    # Measures instead of training, and so has no progress to show.
    measures: ClassVar[bool] = False

    @property
    def title(self) -> str: ...  # the name in tables

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Raise ConfigError for a combination that cannot work."""
        return None

    def phases(self, size: int) -> list[Phase]:
        """Phases of the schedule: the first epoch, and the period in steps, of each.

        The period is the number of steps after which the messages and collectives of all workers
        repeat.
        """
        return [(0.0, 1)]

    def without_effect(self, steps: int, epochs: float) -> str | None:
        """A sentence if a setting has no effect in a run of so many steps and epochs, else None."""
        return None

    async def run(self, worker: Worker) -> None: ...

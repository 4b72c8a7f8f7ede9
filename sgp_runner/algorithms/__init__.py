"""The algorithms, one file each: frozen dataclasses with a `run` method that is the paper's loop.

An algorithm awaits exactly the operations that take time, so the same code runs on real processes
and in simulated time. `sgp_runner.core.worker.Worker` lists the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from sgp_runner.core.optim import Optimizer, Shapes
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase, Topology
from sgp_runner.topology.verify import verify, verify_symmetric

MessageLayout: TypeAlias = Literal["model", "fragments", "chunks", "factors"]
#: Former names of members, which would have no effect in a plug-in -> present names.
FORMER_NAMES = {"sends": "message_layout", "measures": "is_probe", "without_effect": "warning"}


@runtime_checkable
class Algorithm(Protocol):
    """The interface of an algorithm.

    By default an algorithm is synchronous and supports any number of nodes and any optimizer.
    """

    # Asynchronous workers share one budget of gradients and have no barrier.
    asynchronous: ClassVar[bool] = False
    # Content of a message before coding: the whole model, one fragment at a time, some coefficients
    # of every chunk of the tensors, or factors of the tensors.
    message_layout: ClassVar[MessageLayout] = "model"
    # The method's defaults for optim=sgd; a preset or the command line overrides them.
    sgd_defaults: ClassVar[Mapping[str, float]] = {}
    # Whether its steps use `Worker.now`, so that a recording of events cannot repeat them exactly.
    reads_clock: ClassVar[bool] = False
    # The choice of optim for which the method is defined; a preset, a model or the command line
    # overrides it. None: that of all runs, sgd.
    needs_optim: ClassVar[str | None] = None
    # Settings that, when raised, may help a run that diverged.
    if_diverged: ClassVar[Sequence[str]] = ()
    # Second name of a setting -> its name.
    aliases: ClassVar[Mapping[str, str]] = {}
    # A probe measures instead of training, so it shows no progress.
    is_probe: ClassVar[bool] = False
    # The paper: a key of ``studies/references.bib``, or in a plug-in a whole BibTeX entry.
    source: ClassVar[str] = ""
    # The kind of ``topology`` that `check` requires: any valid graph, or a symmetric one.
    graph: ClassVar[Literal["any", "symmetric"] | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for old in FORMER_NAMES.keys() & vars(cls):
            raise TypeError(f"{cls.__name__}.{old} is now called {FORMER_NAMES[old]}")

    @property
    def title(self) -> str: ...  # the name in tables

    @property
    def servers(self) -> int:
        """Number of servers, in addition to the nodes; their ranks follow the workers'."""
        return 0

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Raise ConfigError if the settings cannot work with these nodes and this optimizer."""
        topology: Any = getattr(self, "topology", None)
        if self.graph == "symmetric":
            verify_symmetric(topology, nodes, self.title)
        elif self.graph == "any":
            verify(topology, nodes, by=self.title, weighted=True)

    def phases(self, size: int) -> list[Phase]:
        """Return the first epoch and the period, in steps, of each phase of the schedule.

        The period is the number of steps after which the messages and collectives of all workers
        repeat. By default it is the period of ``topology`` times the setting ``period``. If an
        algorithm lacks one of them, that factor is 1.
        """
        topology, period = getattr(self, "topology", None), getattr(self, "period", 1)
        graph = topology.phases(size) if isinstance(topology, Topology) else [(0.0, 1)]
        repeats = period if isinstance(period, int) else 1
        return [(epoch, repeats * steps) for epoch, steps in graph]

    def cycle(self, size: int) -> int | None:
        """Return the number of steps after which all workers' messages and collectives repeat.

        None if they do not repeat or change with the epoch. By default it is the period of the only
        phase of a synchronous algorithm.
        """
        topology, phases = getattr(self, "topology", None), self.phases(size)
        repeats = not isinstance(topology, Topology) or topology.repeats
        fixed = not self.asynchronous and not self.servers and len(phases) == 1
        return phases[0][1] if repeats and fixed else None

    def message_lengths(self, shapes: Shapes) -> list[int]:
        """Return the lengths of messages that depend on the shapes of the model's tensors."""
        return []

    def warning(self, steps: int, epochs: float) -> str | None:
        """Return a warning if a setting has no effect in a run of this length, else None."""
        return None

    async def run(self, worker: Worker) -> None: ...

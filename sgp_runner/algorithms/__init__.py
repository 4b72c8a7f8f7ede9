"""The algorithms, one file each. An algorithm is a frozen dataclass whose `run` is the paper's
loop.

Everything that takes time is awaited and nothing else is; that is all it takes for the same file to
run on real processes and in simulated time. `sgp_runner.core.worker.Worker` lists the verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase


@runtime_checkable
class Algorithm(Protocol):
    """What the runtimes need to know of an algorithm. By default it is synchronous, and works for
    all numbers of nodes and optimizers.
    """

    asynchronous: ClassVar[bool] = (
        False  # workers share one budget of gradients and never wait for all
    )
    servers: ClassVar[int] = (
        0  # parameter servers, extra to the nodes; their ranks follow the workers'
    )

    @property
    def title(self) -> str: ...  # as it stands in tables

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Raise ConfigError for a combination that cannot work."""
        return None

    def phases(self, size: int) -> list[Phase]:
        """From which epoch on, and after how many steps what its workers send, receive and reduce
        together starts over.
        """
        return [(0.0, 1)]

    async def run(self, worker: Worker) -> None: ...

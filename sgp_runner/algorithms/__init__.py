"""The algorithms, one file each. An algorithm is a frozen dataclass whose `run` is the paper's loop.

Everything that takes time is awaited and nothing else is; that is all it takes for the same file to run on real processes and in
simulated time. `sgp_runner.worker.Worker` lists the verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sgp_runner.optim import Optimizer
    from sgp_runner.topology import Phase
    from sgp_runner.worker import Worker


@runtime_checkable
class Algorithm(Protocol):
    """What the runtimes need to know of an algorithm."""

    @property
    def title(self) -> str: ...  # as it stands in tables
    @property
    def asynchronous(self) -> bool: ...  # workers share one budget of gradients and never wait for all
    @property
    def servers(self) -> int: ...  # parameter servers, extra to the nodes; their ranks follow the workers'
    def check(self, nodes: int, optim: Optimizer) -> None: ...  # ConfigError for a combination that cannot work
    def phases(self, size: int) -> list[Phase]: ...  # of what its workers send, receive and reduce together, as of a graph
    async def run(self, worker: Worker) -> None: ...

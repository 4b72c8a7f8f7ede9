"""All processes of a real run and what they do together besides sending messages: agree, share a
counter, gather results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sgp_runner.utils.errors import RankFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup, Store

    from sgp_runner.core.comm import Transport
    from sgp_runner.core.mailbox import Mailbox
    from sgp_runner.core.problem import Compute
    from sgp_runner.core.scheduler import RealClock, Scheduler
    from sgp_runner.distributed.link import Link
    from sgp_runner.utils.place import Place


class World(Protocol):
    """The processes of one run. All of them call the same methods in the same order: ``connect``
    first, ``close`` last.

    process_rank, size: this process and their number, servers included. place: which device of which node
    it is.
    store: of this run. alarm: where the first rank that fails says so; a connection of its own, for
    the thread that watches it.
    workers: the gradient workers as a group for PyTorch's data parallelism; None if this world has
    none.
    node, hosts: the devices of this node, for tensors and for what their hosts agree on; None if
    there is but one.
    link: of this node, if it is imitated. leads: whether the first device of this node runs the
    algorithm alone.
    running: the processes that run it, servers included. compute: how this process computes
    gradients.
    """

    @property
    def process_rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def store(self) -> Store: ...
    @property
    def alarm(self) -> Store: ...
    @property
    def place(self) -> Place: ...
    @property
    def workers(self) -> ProcessGroup | None: ...
    @property
    def node(self) -> ProcessGroup | None: ...
    @property
    def hosts(self) -> ProcessGroup | None: ...
    @property
    def link(self) -> Link | None: ...
    @property
    def leads(self) -> bool: ...
    @property
    def running(self) -> Sequence[int]: ...
    @property
    def compute(self) -> Compute: ...

    def connect(self, nodes: int) -> None:
        """Of gradient workers; their processes come first."""

    @property
    def in_order(self) -> bool:
        """Whether the scheduler has to wake coroutines in an order that does not depend on when
        messages arrive.
        """

    def transport(self, scheduler: Scheduler, clock: RealClock, mailbox: Mailbox) -> Transport:
        """What moves messages between this rank, whose ``mailbox`` they go to, and the others."""

    def gather(self, value: object) -> list[Any]:
        """The values of all ranks, by rank, on all of them. They travel as JSON: see
        `sgp_runner.distributed.values`.
        """

    def consult(self, value: object) -> list[Any]:
        """The values of those that run the algorithm; the others do not call it."""

    def mean(self, tensor: Tensor) -> None:
        """Over the processes that run the algorithm of a gradient worker, in place; the others do
        not call it.
        """

    def close(self) -> None:
        """When all have come here without an error."""


def check_agreement(world: World, what: str, value: str) -> None:
    """Raises RankFailed on all ranks if one has another value than rank 0, naming those that do."""
    values = world.gather(value)
    if different := [rank for rank, other in enumerate(values) if other != values[0]]:
        where = ("rank " if len(different) == 1 else "ranks ") + ", ".join(map(str, different))
        raise RankFailed(
            f"the {what} is {values[0]} on rank 0 but {values[different[0]]} on {where}: start all ranks with the same command and code."
        )

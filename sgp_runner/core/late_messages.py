"""Push-sum messages that a worker adds as they arrive and waits for only at a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sgp_runner.core.push_sum import fold
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


class LateMessages:
    """The messages to a worker that have not been added to ``x`` [D + 1] yet.

    weighted: false resets the push-sum weight to 1, so the model is never de-biased
    """

    def __init__(self, worker: Worker, x: Tensor, weighted: bool = True) -> None:
        self.worker, self.x, self.weighted = worker, x, weighted
        # (step, peer) of each expected message, in the order of sending.
        self.expected: list[tuple[int, int]] = worker.state("expected", list)

    def expect(self, step: int, peers: Sequence[int]) -> None:
        """Register that a message of ``step`` is expected from each of ``peers``."""
        self.expected.extend((step, j) for j in peers)

    async def fold(self, deadline: int) -> None:
        """Add the messages that have arrived; wait for those of step ``deadline`` or earlier.

        Afterwards ``x`` is de-biased again.
        """
        comm, step = self.worker.comm, self.worker.step
        arrived: list[Tensor] = []
        pending: list[tuple[int, int]] = []
        for sent, j in self.expected:
            message = None
            if sent <= deadline:
                while arrived:  # add arrived messages before waiting
                    self.x += arrived.pop(0)
                message = await comm.recv(j)
            elif all(j != peer for _, peer in pending):  # messages of a peer keep their order
                message = comm.poll(j)
            if message is None:
                pending.append((sent, j))
            else:
                arrived.append(message)
                self.worker.log("staleness", step - sent)
        self.expected[:] = pending
        fold(self.x, arrived, self.weighted)

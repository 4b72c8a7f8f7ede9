"""How a worker codes its vectors for the others, and adds up what they have coded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.worker import Worker
from sgp_runner.utils.seeding import seed_of

if TYPE_CHECKING:
    from torch import Tensor


class Coder:
    """Codes the vectors of ``worker``, each with the seed of its sender and its step ``k``.

    losses: name of the state in which `mean` keeps what the codec loses, to be sent later (error
        feedback)
    decay: of these losses from one message to the next
    shapes: of the tensors in a vector; by default those of the model
    """

    def __init__(
        self,
        worker: Worker,
        codec: Codec,
        losses: str = "error",
        decay: float = 1.0,
        shapes: Shapes | None = None,
    ) -> None:
        self.worker, self.codec, self.losses, self.decay = worker, codec, losses, decay
        self.shapes = worker.shapes if shapes is None else shapes

    def encode(self, x: Tensor, k: int) -> Tensor:
        """Return the message of ``x`` [n] in step ``k``."""
        seed = seed_of(self.worker.rank, k)
        return self.codec.encode(x, self.shapes, seed, self.worker.check_later)

    def coefficients(self, message: Tensor, rank: int, k: int) -> Tensor:
        seed = seed_of(rank, k)
        return self.codec.decode(message, self.shapes, self.worker.params, seed)

    def decode(self, message: Tensor, rank: int, k: int) -> Tensor:
        """Return the vector [n] that ``rank`` has coded in step ``k``."""
        return self.codec.transform_back(self.coefficients(message, rank, k), self.shapes)

    async def mean(
        self, x: Tensor, k: int, divide_by: Literal["workers", "senders"] = "workers"
    ) -> Tensor:
        """Return the mean of all workers' vectors ``x`` [n]; its losses join the next ``x``."""
        worker = self.worker
        error = worker.state(self.losses, lambda: x.new_zeros(x.shape))
        error.mul_(self.decay).add_(x)
        message = self.encode(error, k)
        error -= self.decode(message, worker.rank, k)
        return self.mean_of(await worker.comm.all_gather(message), k, divide_by)

    def mean_of(
        self,
        messages: Sequence[Tensor],
        k: int,
        divide_by: Literal["workers", "senders"] = "workers",
    ) -> Tensor:
        """Return the mean [n] of what all workers have coded in step ``k``.

        divide_by: what the sum of a coefficient is divided by: all workers, or those that sent it
        """
        total: Any = 0
        senders: Any = 0
        for rank, message in enumerate(messages):
            q = self.coefficients(message, rank, k)
            total += q
            if divide_by == "senders":
                senders += q != 0
        count = len(messages) if divide_by == "workers" else senders.clamp(min=1)
        return self.codec.transform_back(total / count, self.shapes)

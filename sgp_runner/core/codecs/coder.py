"""Encoding and decoding of a worker's vectors, and means of all workers' encoded vectors."""

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
    """Encodes and decodes vectors, with a seed from the sender's rank and the step ``k``.

    losses: name of the state in which `mean` accumulates the codec's errors, to be sent later
        (error feedback)
    decay: factor that these errors are multiplied by from one message to the next
    shapes: shapes of the tensors in a vector; by default the shapes of the model's parameters
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
        self.work = codec.work([*self.shapes.values()])

    async def encode(self, x: Tensor, k: int) -> Tensor:
        """Return the message that encodes ``x`` [n] in step ``k``."""
        seed = seed_of(self.worker.rank, k)
        message = self.codec.encode(x, self.shapes, seed, self.worker.check_later)
        await self.worker.code("encode", self.codec.name, self.work)
        return message

    def coefficients(self, message: Tensor, rank: int, k: int) -> Tensor:
        seed = seed_of(rank, k)
        return self.codec.decode(message, self.shapes, self.worker.params, seed)

    async def decode(self, message: Tensor, rank: int, k: int) -> Tensor:
        """Return the vector [n] that ``rank`` encoded in step ``k``."""
        is_own = rank == self.worker.rank
        await self.worker.code(
            "decode", self.codec.name, self.work, "serial" if is_own else "always"
        )
        return self.codec.transform_back(self.coefficients(message, rank, k), self.shapes)

    async def mean(
        self, x: Tensor, k: int, divide_by: Literal["workers", "senders"] = "workers"
    ) -> Tensor:
        """Return the mean of all workers' ``x`` [n]; add this worker's error to its next ``x``."""
        worker = self.worker
        error = worker.state(self.losses, lambda: x.new_zeros(x.shape))
        error.mul_(self.decay).add_(x)
        message = await self.encode(error, k)
        messages = worker.comm.all_gather(message)
        error -= await self.decode(message, worker.rank, k)
        return await self.mean_of(await messages, k, divide_by)

    async def mean_of(
        self,
        messages: Sequence[Tensor],
        k: int,
        divide_by: Literal["workers", "senders"] = "workers",
    ) -> Tensor:
        """Return the mean [n] of the vectors that all workers encoded in step ``k``.

        divide_by: divisor of each coefficient's sum: the number of workers, or of its senders
        """
        await self.worker.code("decode", self.codec.name, len(messages) * self.work, "always")
        total: Any = 0
        senders: Any = 0
        if messages[0].is_meta:  # a timing study without values
            return self.codec.transform_back(self.coefficients(messages[0], 0, k), self.shapes)
        for rank, message in enumerate(messages):
            q = self.coefficients(message, rank, k)
            total += q
            if divide_by == "senders":
                senders += q != 0
        divisor = len(messages) if divide_by == "workers" else senders.clamp(min=1)
        return self.codec.transform_back(total / divisor, self.shapes)

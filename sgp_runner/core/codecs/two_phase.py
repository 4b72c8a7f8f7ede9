"""Means of vectors over all workers in two phases that send only signs and scales.

The all-reduce of 1-bit Adam (Tang et al. 2021), with C the codec `Sign`, and error feedback in each
phase:

    z <- z + e;  c = C(z);  e <- z - c                 send chunk j of c to worker j
    w = mean of all workers' c + e';  d = C(w);  e' <- w - d           gather the chunks d

All of this is done per tensor or for the whole vector, like the codec's scales. A vector is cut
into n chunks of ceil(D / 8 n) bytes, one per worker; each worker averages its chunk and keeps the
error ``e'`` for it. In each phase it sends n - 1 chunks, each with the scales. In the second phase,
the scales are computed per chunk. All workers end up with the same bytes, and the sum of all means
plus mean e and e' is the sum of all mean z. A worker encodes a vector and a chunk, and decodes
three vectors and a chunk: those that it encodes, to get their errors, and those that it receives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.codec import Codec, check_finite
from sgp_runner.core.codecs.packing import as_bytes, pack, unpack
from sgp_runner.core.codecs.quantised import Sign, signs
from sgp_runner.core.flat import joined
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class SignMean:
    """Means of vectors [D] from signs; ``error`` and ``served_error`` are named state.

    These methods also represent a vector as n rows. Row j contains chunk j of every group, one
    after the other; a group consists of the tensors that share a scale. A group is padded with
    zeros to n chunks of whole bytes.

    sizes: lengths of the groups. widths: lengths of their chunks
    """

    def __init__(self, worker: Worker, codec: Sign) -> None:
        self.worker, self.codec, n = worker, codec, worker.size
        groups = codec.groups([*worker.shapes.values()])
        self.sizes = [prod(shape) for shape in groups]
        self.widths = [8 * -(-size // (8 * n)) for size in self.sizes]
        x, total = worker.params, sum(self.widths)
        self.error = worker.state("error", lambda: x.new_zeros(x.shape))
        served = worker.state("served_error", lambda: x.new_zeros(total))
        if len(served) != total:  # of another number of workers, before some were lost
            served = worker.state["served_error"] = x.new_zeros(total)
        self.served_error = served

    async def __call__(self, z: Tensor) -> Tensor:
        """Return the mean of all workers' ``z`` [D]. Raises NotFinite, or checks it later."""
        if z.is_meta:
            message = empty(z, 4 * len(self.sizes) + sum(self.widths) // 8)
            await self.coding(1.0)
            await self.exchanged([message] * self.worker.size)
            await self.receiving()
            await self.coding(1 / self.worker.size)
            await self.worker.comm.all_gather(message)
            await self.receiving()
            return z
        check_finite(z, self.worker.shapes, later=self.worker.check_later)
        z = z + self.error
        messages = self.encode(self.rows(z), self.sizes)
        self.error.copy_(z - self.vector(self.decode(messages)))
        await self.coding(1.0)
        messages = await self.exchanged(messages)
        w = self.decode(messages).mean(0).add_(self.served_error)
        await self.receiving()
        message = self.encode(self.without_filling(w)[None], self.served)[0]
        self.served_error.copy_(self.without_filling(w - self.decode([message])[0]))
        await self.coding(1 / self.worker.size)
        messages = await self.worker.comm.all_gather(message)
        await self.receiving()
        return self.vector(self.decode(messages))

    async def coding(self, share: float) -> None:
        """Take the simulated time to encode a ``share`` of a vector and decode it for its error."""
        await self.worker.code("encode", self.codec.name, share * sum(self.sizes))
        await self.worker.code("decode", self.codec.name, share * sum(self.sizes))

    async def receiving(self) -> None:
        """Take the simulated time to decode n chunks, which make up one vector."""
        await self.worker.code("decode", self.codec.name, sum(self.sizes), "always")

    async def exchanged(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Send message j to worker j; return the messages of all workers to this worker."""
        comm, rank = self.worker.comm, self.worker.rank
        for j, message in enumerate(messages):
            if j != rank:
                comm.send(j, message)
        return [part if j == rank else await comm.recv(j) for j, part in enumerate(messages)]

    @property
    def served(self) -> list[int]:
        """The count of numbers of each group in this worker's chunk, without padding."""
        rank, both = self.worker.rank, zip(self.sizes, self.widths, strict=True)
        return [max(0, min(width, size - rank * width)) for size, width in both]

    def without_filling(self, chunk: Tensor) -> Tensor:
        """Zero the padding of this worker's ``chunk`` in place; return the chunk."""
        for part, count in zip(chunk.split_with_sizes(self.widths), self.served, strict=True):
            part[count:] = 0
        return chunk

    def rows(self, x: Tensor) -> Tensor:
        """Return the vector ``x`` [D] as n rows."""
        from torch.nn.functional import pad

        n, both = self.worker.size, zip(x.split_with_sizes(self.sizes), self.widths, strict=True)
        return beside(x, n, [pad(t, (0, n * width - len(t))).view(n, width) for t, width in both])

    def vector(self, rows: Tensor) -> Tensor:
        """Invert `rows`."""
        parts = zip(rows.split_with_sizes(self.widths, 1), self.sizes, strict=True)
        return joined([rows.new_empty(0), *(part.reshape(-1)[:size] for part, size in parts)])

    def encode(self, rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Return the message of each row: the scales of all ``rows`` and the signs of the row.

        counts: count of numbers in each group without padding
        """
        parts = zip(rows.split_with_sizes(self.widths, 1), counts, strict=True)
        scales = [self.codec.scale_of(part, count).float()[None] for part, count in parts]
        head = as_bytes(joined([rows.new_empty(0).float(), *scales]))
        return [joined([head, pack(row >= 0, 1)]) for row in rows]

    def decode(self, messages: Sequence[Tensor]) -> Tensor:
        """Return the rows that the messages encode."""
        import torch

        count, total, like = 4 * len(self.sizes), sum(self.widths), self.worker.params
        heads = torch.cat([message[:count] for message in messages])
        bits = torch.cat([message[count:] for message in messages])
        scales = heads.view(torch.float32).view(len(messages), len(self.sizes)).to(like.dtype)
        codes = unpack(bits, 1, len(messages) * total).view(len(messages), total)
        parts = signs(codes, like).split_with_sizes(self.widths, 1)
        scaled = [
            part * scale[:, None] for part, scale in zip(parts, scales.unbind(1), strict=True)
        ]
        return beside(like, len(messages), scaled)


def empty(like: Tensor, num_bytes: int) -> Tensor:
    import torch

    return like.new_empty(num_bytes, dtype=torch.uint8)


def beside(like: Tensor, n: int, parts: Sequence[Tensor]) -> Tensor:
    """Concatenate ``parts`` of n rows each along the columns, in the type of ``like``."""
    import torch

    return torch.cat([like.new_empty(n, 0), *parts], 1)


def check_sign(codec: Codec) -> None:
    """Raise ConfigError for a codec that `mean_in_two_phases` does not support."""
    if not isinstance(codec, Sign | Identity):
        name = getattr(codec, "name", type(codec).__name__)
        raise ConfigError(
            "algo.codec",
            f"averaging in two phases sends signs, not {name}: use codec=sign, sign_l2 or none.",
        )


def mean_in_two_phases(worker: Worker, codec: Codec) -> Callable[[Tensor], Awaitable[Tensor]]:
    """Return a function that averages vectors [D] over all workers, by signs or exactly."""
    return SignMean(worker, codec) if isinstance(codec, Sign) else worker.comm.all_reduce


def forget_errors(worker: Worker) -> None:
    """Zero the errors of a worker's `SignMean`, if it has one."""
    for name in ("error", "served_error"):
        if name in worker.state:
            worker.state[name].zero_()

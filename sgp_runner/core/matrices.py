"""The tensors of a model as matrices, and their factorisation into thin matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from sgp_runner.core.comm import Comm
from sgp_runner.core.flat import basis, to_device
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    from torch import Tensor


class Matrices:
    """The tensors of a vector [D]: matrices A [m, k] and vectors.

    A tensor of several dimensions is a matrix whose first dimension has size m. Its factors P [m,
    r] and Q [k, r] have r = min(rank, m, k) columns. The factors P of all matrices are joined in
    one tensor ``p``, their factors Q in ``q``, and the vectors in ``v``. In a timing study no
    tensor has values.

    p_sizes, q_sizes, v_sizes: lengths of the parts of ``p``, ``q`` and ``v``
    work: total size of all matrices, times the columns of a factor (`LowRank.work`)
    """

    def __init__(self, shapes: Shapes, rank: int) -> None:
        self.sizes = [prod(shape) for shape in shapes.values()]
        self.is_matrix = [len(shape) > 1 for shape in shapes.values()]
        sides = [(shape[0], prod(shape[1:])) for shape in shapes.values() if len(shape) > 1]
        self.sides, self.ranks = sides, [min(rank, *side) for side in sides]
        self.p_sizes = [m * r for (m, _), r in zip(sides, self.ranks, strict=True)]
        self.q_sizes = [k * r for (_, k), r in zip(sides, self.ranks, strict=True)]
        self.v_sizes = [prod(shape) for shape in shapes.values() if len(shape) < 2]
        self.work = sum(r * prod(side) for side, r in zip(sides, self.ranks, strict=True))

    def random_q(self, like: Tensor) -> Tensor:
        """Return a normally distributed ``q``, the same on all workers, in the type of ``like``."""
        import torch

        if like.is_meta:
            return like.new_empty(sum(self.q_sizes))
        q = torch.randn(sum(self.q_sizes), generator=generator(0), dtype=like.dtype)
        return to_device(q, like.device)

    def times_q(self, a: Tensor, q: Tensor) -> Tensor:
        """Return A Q of the matrices in ``a`` [D], joined like ``p``."""
        pairs = zip(self.matrices(a), self.factors(q, self.q_sizes), strict=True)
        return join(a, sum(self.p_sizes), (matrix @ factor for matrix, factor in pairs))

    def times_p(self, a: Tensor, p: Tensor) -> Tensor:
        """Return A^T P of the matrices in ``a`` [D], joined like ``q``."""
        pairs = zip(self.matrices(a), self.factors(p, self.p_sizes), strict=True)
        return join(a, sum(self.q_sizes), (matrix.T @ factor for matrix, factor in pairs))

    def orthonormal(self, factors: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return an orthonormal basis of the columns of each factor in ``p`` or ``q``, by QR."""
        bases = map(basis, self.factors(factors, sizes))
        return join(factors, sum(sizes), bases)

    def product(self, p: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """Return the vector [D] with the matrices P Q^T and the vectors in ``v``."""
        pairs = zip(self.factors(p, self.p_sizes), self.factors(q, self.q_sizes), strict=True)
        products, vectors = (p @ q.T for p, q in pairs), iter(v.split_with_sizes(self.v_sizes))
        parts = (next(products if is_matrix else vectors) for is_matrix in self.is_matrix)
        return join(p, sum(self.sizes), parts)

    def vectors(self, x: Tensor) -> Tensor:
        """Return the vectors in ``x`` [D], joined like ``v``."""
        return join(x, sum(self.v_sizes), self.tensors(x, matrices=False))

    def matrices(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the matrices [m, k] in ``x`` [D]."""
        for t, side in zip(self.tensors(x, matrices=True), self.sides, strict=True):
            yield t.view(side)

    def tensors(self, x: Tensor, matrices: bool) -> Iterator[Tensor]:
        """Yield the parts of ``x`` [D] that are matrices, or those that are vectors."""
        for t, is_matrix in zip(x.split_with_sizes(self.sizes), self.is_matrix, strict=True):
            if is_matrix == matrices:
                yield t

    def factors(self, joint: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
        """Yield the factors in ``p`` or ``q``, each as a matrix."""
        for t, rank in zip(joint.split_with_sizes([*sizes]), self.ranks, strict=True):
            yield t.view(-1, rank)


async def mean_of_both(comm: Comm, factors: Tensor, v: Tensor) -> Sequence[Tensor]:
    """Return the means of ``factors`` and of ``v`` over all workers, from one all-reduce."""
    import torch

    both = await comm.all_reduce(torch.cat([factors, v]))
    return both.split_with_sizes([len(factors), len(v)])


def join(like: Tensor, count: int, parts: Iterator[Tensor]) -> Tensor:
    """Concatenate ``parts`` into a vector [count]; compute no part if ``like`` has no values."""
    import torch

    if like.is_meta:
        return like.new_empty(count)
    return torch.cat([like.new_empty(0), *(part.reshape(-1) for part in parts)])

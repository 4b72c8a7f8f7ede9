"""ACP-SGD (Zhang et al. 2023): PowerSGD with one all-reduce per step, of the two factors in turn.

With the matrices ``M`` and the errors ``e`` of PowerSGD, and A = M + e, steps alternate between

    Q = qr(Q).Q;  p = A Q;    e = A - p Q^T;  P = mean p;  out = P Q^T
    P = qr(P).Q;  q = A^T P;  e = A - P q^T;  Q = mean q;  out = P Q^T

Vectors are averaged exactly, in the same all-reduce, which has r sum(m) + v or r sum(k) + v
numbers. The authors' code draws the first factors without a common seed, and it sends buckets
during the backward pass. Here the seed is common, and a step sends once its backward pass is
complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm, MessageLayout
from sgp_runner.core.matrices import Matrices, mean_of_both
from sgp_runner.core.optim import Shapes
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class ACPSGD(Algorithm):
    """Low-rank mean gradients with error feedback, one factor per step.

    rank: largest number of columns of a factor
    start: number of steps with an exact all-reduce before the first coded one
    """

    rank: int = 4
    start: int = 0
    title: ClassVar[str] = "ACP-SGD"
    source: ClassVar[str] = "zhang2023"
    message_layout: ClassVar[MessageLayout] = "factors"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "rank")
        check_least(0, "algo", self, "start")

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 2)]

    def message_lengths(self, shapes: Shapes) -> list[int]:
        matrices = Matrices(shapes, self.rank)
        return [sum(s) + sum(matrices.v_sizes) for s in (matrices.p_sizes, matrices.q_sizes)]

    async def run(self, worker: Worker) -> None:
        x, matrices = worker.params, Matrices(worker.shapes, self.rank)
        e = worker.state("error", lambda: x.new_zeros(x.shape))
        q = worker.state("factor_q", lambda: matrices.random_q(x))
        p = worker.state("factor_p", lambda: matrices.times_q(e, q))
        for k in worker.steps():
            if k < self.start:
                worker.descend(await worker.mean_step())
                continue
            a = await worker.grad() + e
            own_v = matrices.vectors(a)
            if (k - self.start) % 2 == 0:
                q.copy_(matrices.orthonormal(q, matrices.q_sizes))
                own_p = matrices.times_q(a, q)
                e.copy_(a - matrices.product(own_p, q, own_v))
                await worker.code("encode", "low_rank", matrices.work / 2)
                mean, v = await mean_of_both(worker.comm, own_p, own_v)
                p.copy_(mean)
            else:
                p.copy_(matrices.orthonormal(p, matrices.p_sizes))
                own_q = matrices.times_p(a, p)
                e.copy_(a - matrices.product(p, own_q, own_v))
                await worker.code("encode", "low_rank", matrices.work / 2)
                mean, v = await mean_of_both(worker.comm, own_q, own_v)
                q.copy_(mean)
            await worker.code("decode", "low_rank", 2 * matrices.work, "always")
            x -= worker.update(matrices.product(p, q, v))

"""PowerSGD (Vogels et al. 2019): all-reduces of low-rank factors of the gradient's matrices.

A tensor of several dimensions is a matrix [m, k] with an error ``e`` on each worker and a factor
``Q`` [k, r], r = min(rank, m, k), that is the same on all workers. In every step, with ``M`` the
gradient of a worker:

    A = M + e;  P = qr(mean A Q).Q
    q = A^T P;  Q = mean q, which the next step starts from
    out = P Q^T;  e = A - P q^T             (error=released: e = A - out)

Vectors are averaged exactly. The optimizer takes ``out``, so its momentum is the same on all
workers. A step has two all-reduces, one after the other, of r sum(m) + v and of r sum(k) numbers; v
is the total length of the vectors. Coding takes 6 r sum(m k) + 4 D + 2 r^2 sum(m) operations, in 7
passes over the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm, MessageLayout
from sgp_runner.core.matrices import Matrices, mean_of_both
from sgp_runner.core.optim import Shapes
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class PowerSGD(Algorithm):
    """Low-rank mean gradients with error feedback.

    rank: largest number of columns of a factor
    error: error that a worker adds to its next gradient: local (the part of its own gradient that
        was lost), or released (the difference from the result, as in the authors' code)
    start: number of steps with an exact all-reduce before the first coded one
    """

    rank: int = 2
    error: Literal["local", "released"] = "local"
    start: int = 0
    title: ClassVar[str] = "PowerSGD"
    source: ClassVar[str] = "vogels2019"
    message_layout: ClassVar[MessageLayout] = "factors"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "rank")
        check_least(0, "algo", self, "start")

    def message_lengths(self, shapes: Shapes) -> list[int]:
        matrices = Matrices(shapes, self.rank)
        return [sum(matrices.p_sizes + matrices.v_sizes), sum(matrices.q_sizes)]

    async def run(self, worker: Worker) -> None:
        x, matrices = worker.params, Matrices(worker.shapes, self.rank)
        e = worker.state("error", lambda: x.new_zeros(x.shape))
        q = worker.state("factor_q", lambda: matrices.random_q(x))
        for k in worker.steps():
            if k < self.start:
                worker.descend(await worker.mean_step())
                continue
            a = await worker.grad() + e
            own_v = matrices.vectors(a)
            own_p = matrices.times_q(a, q)
            await worker.code("encode", "low_rank", matrices.work / 2)
            p, v = await mean_of_both(worker.comm, own_p, own_v)
            p = matrices.orthonormal(p, matrices.p_sizes)
            own_q = matrices.times_p(a, p)
            await worker.code("encode", "low_rank", matrices.work / 2)
            q.copy_(await worker.comm.all_reduce(own_q.clone()))
            e.copy_(a - matrices.product(p, own_q if self.error == "local" else q, own_v))
            await worker.code("decode", "low_rank", 2 * matrices.work, "always")
            x -= worker.update(matrices.product(p, q, v))

"""A2CiD2 (Nabli et al. 2023): AD-PSGD with a second vector that accelerates consensus.

A worker mixes its parameters x with a vector x~, which starts equal to them, for the time dt since
its last event, in units of its seconds per gradient:

    before each event:  q = exp(-2 eta dt);  x, x~ <- ((1 + q) x + (1 - q) x~) / 2,
                                                     ((1 - q) x + (1 + q) x~) / 2
    gradient:           x <- x - d;  x~ <- x~ - d
    average with j:     b = x_j - x;  x <- x + b / 2;  x~ <- x~ + alpha b

Only x is sent, after both workers have mixed, so that the mean of all models does not drift; the
authors' code sends first and mixes afterwards. With L the Laplacian of the graph whose edges are
weighted by their averages per gradient, chi_1 = 1 / lambda_2(L), and chi_2 = max over the edges of
(e_i - e_j)' L^+ (e_i - e_j) / 2:

    eta = 1 / (2 sqrt(chi_1 chi_2));  alpha = sqrt(chi_1 / chi_2) / 2

The seconds per gradient are a running mean with factor 0.5; nothing is mixed before the first
gradient is complete. With eta = 0 this is AD-PSGD.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import exp, lcm, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ad_psgd import (
    averages_may_follow,
    count_goodbye,
    due_averages,
    end_averages,
    partner,
)
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class A2CiD2(Algorithm):
    """Asynchronous gradients and accelerated pairwise averages.

    topology: every edge joins an odd and an even rank
    averages_per_gradient: number of averages per gradient, counted over all workers, as in AD-PSGD;
        with 0.5 each worker takes part in one average per gradient
    eta: rate of mixing; null: the value derived from the graph
    """

    topology: Topology
    averages_per_gradient: float = 0.5
    eta: float | None = None
    title: ClassVar[str] = "A2CiD2"
    source: ClassVar[str] = "nabli2023"
    asynchronous: ClassVar[bool] = True
    reads_clock: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("positive", "algo", self, "averages_per_gradient")
        if self.eta is not None:
            check_range("not negative", "algo", self, "eta")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify(self.topology, nodes, "odd with even", self.title)

    async def run(self, worker: Worker) -> None:
        x, (eta, alpha) = worker.params, self.rates(worker)
        x_tilde = worker.state("x_tilde", x.clone)
        active = worker.rank % 2 == 1
        if not active:
            answering = worker.spawn(self.answer(worker, x_tilde, eta, alpha))
        for _ in worker.steps():
            averaging = worker.spawn(self.average(worker, x_tilde, eta, alpha)) if active else None
            began = worker.now
            g = await worker.grad(x.clone())
            self.mix(worker, x_tilde, eta)
            measure(worker, worker.now - began)
            d = worker.update(g)
            x -= d
            x_tilde -= d
            if averaging is not None:
                await averaging
        if not active:
            await answering
        else:
            end_averages(worker)

    async def average(self, worker: Worker, x_tilde: Tensor, eta: float, alpha: float) -> None:
        x = worker.params
        for t in due_averages(worker, self.averages_per_gradient):
            j = partner(self.topology.at(0.0), worker.rank, worker.size, t)
            self.mix(worker, x_tilde, eta)
            sent = x.clone()
            worker.comm.send(j, sent)
            b = await worker.comm.recv(j) - sent
            self.mix(worker, x_tilde, eta)
            x.add_(b, alpha=0.5)
            x_tilde.add_(b, alpha=alpha)

    async def answer(self, worker: Worker, x_tilde: Tensor, eta: float, alpha: float) -> None:
        x = worker.params
        while averages_may_follow(worker):
            i, theirs = await worker.comm.recv_any()
            if theirs.numel() == 0:
                count_goodbye(worker)
                continue
            self.mix(worker, x_tilde, eta)
            worker.comm.send(i, x.clone())
            x_tilde.add_(theirs - x, alpha=alpha)
            x.lerp_(theirs, 0.5)

    def mix(self, worker: Worker, x_tilde: Tensor, eta: float) -> None:
        """Mix both vectors for the time since this worker's last event."""
        now, seconds = worker.now, worker.state.get("seconds_per_gradient")
        since, worker.state["mixed_at"] = now - worker.state.get("mixed_at", 0.0), now
        if seconds and since > 0:  # the clock of a real rank goes back by the time of saving
            q = exp(-2 * eta * since / seconds)
            change = (x_tilde - worker.params).mul_((1 - q) / 2)
            worker.params.add_(change)
            x_tilde.sub_(change)

    def rates(self, worker: Worker) -> tuple[float, float]:
        """Return eta and alpha."""
        topology: Any = self.topology
        eta, alpha = consensus_rates(topology, worker.size, self.averages_per_gradient)
        return (eta if self.eta is None else self.eta), alpha


def measure(worker: Worker, seconds: float) -> None:
    """Update the running mean of the seconds per gradient."""
    mean = worker.state.get("seconds_per_gradient", seconds)
    worker.state["seconds_per_gradient"] = (mean + seconds) / 2


@functools.lru_cache(maxsize=8)
def consensus_rates(topology: Any, size: int, averages: float) -> tuple[float, float]:
    """Return eta and alpha for a graph of ``size`` nodes.

    averages: averages per gradient, counted over all workers
    """
    import numpy as np

    if size == 1:
        return 0.0, 0.5
    actives, steps = range(1, size, 2), range(topology.phases(size)[0][1])
    degrees = {len(topology.out_peers(i, size, t)) for i in actives for t in steps}
    period = len(steps) * lcm(*degrees)
    edges = [(i, partner(topology.at(0.0), i, size, t)) for i in actives for t in range(period)]
    laplacian = np.zeros((size, size))
    for i, j in edges:
        laplacian[[i, j], [i, j]] += 1
        laplacian[[i, j], [j, i]] -= 1
    laplacian *= averages * size / len(edges)
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    chi_1 = 1 / float(np.linalg.eigvalsh(laplacian)[1])
    chi_2 = max(inverse[i, i] + inverse[j, j] - 2 * inverse[i, j] for i, j in {*edges}) / 2
    return 1 / (2 * sqrt(chi_1 * chi_2)), sqrt(chi_1 / chi_2) / 2

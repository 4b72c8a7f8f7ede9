"""Rescaled ASGD (arXiv:2605.13434, 2026), experimental: asynchronous SGD that weighs nodes alike.

A parameter server applies each gradient as it arrives. In plain ASGD a fast worker counts more than
a slow one, because more of its gradients arrive. Here the step of worker i is scaled:

    x <- x - (tau_i / h) U(g)

``tau_i`` is the mean time between the arrivals of worker i so far, and h the harmonic mean of all
tau, over the workers that have arrived, so that the mean factor of all arrivals is 1. The paper
scales the learning rate by the time of a worker's gradient; the mean and the normalisation by h are
ours, and our tau includes the time of the messages. Over a common period of constant speeds, the
factors of all workers have the same sum. With equally fast workers it is ASGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ps_sgd import push_and_pull
from sgp_runner.core.worker import Worker
from sgp_runner.utils.sums import sum_in_order


@dataclass(frozen=True)
class RescaledASGD(Algorithm):
    """Experimental: asynchronous SGD with larger steps for gradients of slower workers."""

    title: ClassVar[str] = "Rescaled ASGD"
    source: ClassVar[str] = "mahran2026"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1
    reads_clock: ClassVar[bool] = True
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else push_and_pull(worker))

    async def serve(self, server: Worker) -> None:
        x = server.params
        sent = server.state("sent", lambda: [0] * server.size)  # step of each worker's parameters
        for k in server.steps():  # one gradient each
            i, g = await server.comm.recv_any()
            server.log("staleness", k - sent[i])
            x.sub_(server.update(g.clone()), alpha=self.factor(server, i))
            sent[i] = k + 1
            server.comm.send(i, x.clone())

    def factor(self, server: Worker, i: int) -> float:
        """Count an arrival of worker ``i`` now; return the factor of its step."""
        # Arrivals per second of each worker that has arrived, at its last arrival.
        counts: dict[int, int] = server.state("counts", dict)
        rates: dict[int, float] = server.state("rates", dict)
        counts[i] = counts.get(i, 0) + 1
        rates[i] = counts[i] / server.now
        return sum_in_order(rates.values()) / len(rates) / rates[i]

"""Matrix recursions with numpy, on quadratics in float64, and what tests of algorithms share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd
from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.core.optim import (
    SGD,
    Adam,
    Constant,
    WarmupCosine,
)
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
    Torus,
    matrix,
)

STEPS = 12
OPTIM = sgd(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
PLAIN = sgd(lr=0.2)
COSINE = sgd(lr=0.2, schedule=WarmupCosine(0.3, 0.1))
OFF: Any = SimpleNamespace(factor=lambda epoch, horizon: 0.0)  # the schedule of no step at all
ADAM = Adam(Constant(), lr=0.05)
SIZES = [1, 2, 3, 4, 6, 8]
SHIFTS = DirectedExponential()
DIRECTED: list[Topology] = [DirectedExponential(), BidirectionalExponential(), StaticExponential()]
SYMMETRIC: list[Topology] = [Ring(), Complete(), Torus(), RandomMatching()]
LATE = [
    machines(),
    machines(LogNormalTime(0.5), latency=1.7),
    machines(GammaTime(2.0), latency=0.3, factors={1: 3.0}),
]


class Oracle:
    """``n`` models [n, D] with local optimizers."""

    def __init__(self, n: int, optim: SGD = OPTIM) -> None:
        self.n = n
        self.x = np.tile(START, (n, 1))
        self.w = np.ones(n)
        self.momenta = [Momentum(optim) for _ in range(n)]

    def d(self, k: int) -> np.ndarray:
        """Local steps [n, D] at the de-biased models."""
        z = self.x / self.w[:, None]
        return np.stack([self.momenta[i].step(gradient(i, k, z[i]), z[i]) for i in range(self.n)])

    def exchanges(self, steps: int, period: int) -> Iterator[int]:
        """Take local steps; yield how many exchanges there were before, at the time of each."""
        for k in range(steps):
            self.x = self.x - self.d(k)
            if (k + 1) % period == 0:
                yield k // period

    def mean_g(self, k: int) -> np.ndarray:
        return np.mean([gradient(i, k, self.x[i]) for i in range(self.n)], axis=0)

    def p(self, topology: Topology, k: int) -> np.ndarray:
        return np.array(matrix(topology, self.n, k))


class DelayedNesterov:
    """A server that applies its momentum in full after every ``delay`` outer gradients, and a share
    ``c`` of it after each.
    """

    def __init__(self, lr: float, momentum: float, delay: int, c: float = 0.0) -> None:
        self.lr, self.momentum, self.delay, self.c = lr, momentum, delay, c
        self.x, self.m, self.arrived = START, np.zeros(D), list[np.ndarray]()

    def arrive(self, g: np.ndarray) -> None:
        share = self.c
        self.arrived.append(g)
        if len(self.arrived) == self.delay:
            self.m = self.momentum * self.m + np.mean(self.arrived, axis=0)
            share = 1 - self.c * self.delay + self.c
            self.arrived = []
        self.x = self.x - self.lr * (share * self.momentum * self.m + g / self.delay)


def largest(x: np.ndarray) -> np.ndarray:
    """The largest number of each row, in float32, among zeros."""
    rows, places, kept = range(len(x)), np.abs(x).argmax(axis=1), np.zeros_like(x)
    kept[rows, places] = x[rows, places].astype(np.float32)
    return kept


def assert_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def same(
    a: Algorithm, b: Algorithm, nodes: int, optim: SGD | Adam = OPTIM, steps: int = STEPS
) -> bool:
    return np.allclose(
        run(a, nodes, steps, optim).x[:nodes],
        run(b, nodes, steps, optim).x[:nodes],
        rtol=0,
        atol=1e-12,
    )

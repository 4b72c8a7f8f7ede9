"""Conserved quantities: the sum of all numerators and the sum of all weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from helpers.recursion import OPTIM
from helpers.tiny import START, D, Result, machines
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import SGD, Shapes
from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class Tallied(SGD):
    """An optimizer that adds up the steps it hands out."""

    total: Tensor = field(default_factory=lambda: torch.zeros(D, dtype=torch.float64))

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        d = super().direction(g, params, buffers, lr, shapes)
        self.total.add_(d)
        return d


def tallied(optim: SGD = OPTIM) -> Tallied:
    return Tallied(**vars(optim))


@dataclass(frozen=True)
class Scattering(SGD):
    """A step of its own for each worker first, and no other."""

    taken: list[np.ndarray] = field(default_factory=list)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        if not torch.equal(params, torch.from_numpy(START)):
            return torch.zeros_like(g)
        self.taken.append(np.random.default_rng(len(self.taken)).normal(size=D))
        return torch.from_numpy(self.taken[-1])


ROUGH: list[tuple[str, Cluster, Faults]] = [
    ("late", machines(latency=1.7), Faults({}, {})),
    ("jitter", machines(LogNormalTime(0.5), latency=0.4), Faults({}, {})),
    ("gamma", machines(GammaTime(2.0), latency=0.1, factors={1: 3.0}), Faults({}, {})),
    (
        "slow link",
        machines(LogNormalTime(0.2), bandwidth=8 * 8 * 4 / 0.5),
        Faults({0: 2.0}, {2: 5.0}),
    ),
]


def mass(result: Result, at_rest: Worker | None) -> tuple[np.ndarray, float]:
    """Sum of numerators [D] and of weights over all workers, what travels and what lies unread.

    A worker that waits for a message is in the middle of mixing: its parameters are the numerator;
    else they are z = x / w.
    """
    simulation = result.simulation
    messages = [
        message
        for mailbox in simulation.mailboxes
        for queue in mailbox.queues.values()
        for _, message, _ in queue
    ]
    messages += [
        arguments[0].message
        for _, _, event, arguments in simulation.clock.events
        if event in ("reach", "arrive")
    ]
    numerators, weights = np.zeros(D), 0.0
    waits = {task.name: task.waiting for task in simulation.scheduler.tasks}
    for worker in result.workers:
        wait = waits.get(f"rank {worker.rank}")
        mixing = worker is not at_rest and wait is not None and wait.what[0] == "message"
        if mixing and wait is not None and wait.done:
            messages.append(wait.value)  # handed over, but not folded in yet
        weight = float(worker.push_sum[-1])
        numerators = numerators + worker.params.numpy() * (1.0 if mixing else weight)
        weights += weight
    for message in messages:
        numerators, weights = numerators + message[:-1].numpy(), weights + float(message[-1])
    return numerators, weights

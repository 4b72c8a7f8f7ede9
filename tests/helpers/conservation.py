"""Conserved quantities: the sum of all numerators and the sum of all weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from helpers.tiny import D, Result, machines
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import (
    SGD,
    Schedule,
    Shapes,
)
from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class Tallied:
    """An optimizer that adds up the steps it hands out."""

    optim: SGD
    total: Tensor = field(default_factory=lambda: torch.zeros(D, dtype=torch.float64))
    name: str = "sgd"
    slow_buffers: Literal["reset", "keep"] = "keep"

    @property
    def lr(self) -> float:
        return self.optim.lr

    @property
    def lr_reference_batch(self) -> int | None:
        return None

    @property
    def weight_decay(self) -> float:
        return self.optim.weight_decay

    @property
    def momentum(self) -> float:
        return self.optim.momentum

    @property
    def nesterov(self) -> bool:
        return self.optim.nesterov

    @property
    def schedule(self) -> Schedule:
        return self.optim.schedule

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return self.optim.buffers(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        d = self.optim.direction(g, params, buffers, lr, shapes)
        self.total.add_(d)
        return d


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

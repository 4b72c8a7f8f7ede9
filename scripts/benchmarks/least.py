"""Processor time of the parts of a step of SGP, each alone, and the memory that they move.

A process computes a gradient, takes its step and writes the share of its peer, and adds a message.
All processes do so at once, as in a step. They also copy their parameters, which shows how fast
memory is meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from sgp_runner.elastic.build import build_problem, build_worker

if TYPE_CHECKING:
    from torch import Tensor

TIMES = 10
STEP, ADD, COPY = "local step and share", "add a message", "copy of the parameters"
# Vectors that pass between memory and processor, also those that it reads to overwrite them.
MOVED = {STEP: 8, ADD: 3, COPY: 3}


class OwnMessage:
    """Takes the place of the communication: messages stay in the memory of ``message``."""

    def __init__(self, message: Tensor) -> None:
        self.message = message

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        return self.message

    def send(self, dst: int, message: Tensor) -> None:
        """Send nothing."""


def parts(words: list[str]) -> dict[str, float]:
    """Processor seconds by part; runs in a process of its own."""
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.budget import OwnBudget
    from sgp_runner.core.gossip import split
    from sgp_runner.utils.memory import keep_freed_memory

    keep_freed_memory()
    run = experiment_of([*words, "algo=sgp"]).run
    algo: Any = run.algo
    problem = build_problem(run)
    unused: Any = None
    worker = build_worker(run, problem, 0, unused, OwnBudget(1), unused)
    buffers, x = problem.flat.fresh_buffers(), worker.push_sum
    message, received = x.clone(), x.clone()
    own: Any = OwnMessage(message)
    worker.comm = own

    def gradient() -> list[Tensor]:
        problem.backward(worker.params, buffers, 0, 0)
        return problem.flat.take_large_parts()

    gradients = [gradient() for _ in range(TIMES + 1)]
    peers = worker.peers(algo.topology, 0)
    return {
        "gradient": processor_seconds(gradient),
        STEP: processor_seconds(lambda: split(worker, peers, x, worker.updates(gradients.pop()))),
        ADD: processor_seconds(lambda: x.add_(received)),
        COPY: processor_seconds(lambda: message.copy_(received)),
    }


def copied(words: list[str]) -> float:
    """Mean seconds of a copy of the parameters; runs in a process of its own."""
    from sgp_runner.config.overrides import experiment_of

    start = build_problem(experiment_of(words).run).start()
    to = start.clone()
    before = time.monotonic()
    for _ in range(10 * TIMES):
        to.copy_(start)
    return (time.monotonic() - before) / (10 * TIMES)


def processor_seconds(work: Callable[[], object]) -> float:
    """Median processor seconds of ``work`` over all threads of this process."""
    work()
    seconds = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return median(seconds)

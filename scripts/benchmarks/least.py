"""Lower bound of the processor time of a step of SGP: each part alone, without waiting.

A process computes a gradient, takes its step, divides and copies its parameters, passes the copy
through TCP to itself (the cost of sending one message and receiving another, without gloo) and adds
it. All processes do so at once, as in a step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from statistics import median
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TIMES = 10


def parts(words: list[str]) -> dict[str, float]:
    """Processor seconds by part; runs in a process of its own."""
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.push_sum import split
    from sgp_runner.core.worker import OwnBudget
    from sgp_runner.utils.memory import keep_freed_memory

    keep_freed_memory()
    run = experiment_of(words).run
    problem = run.make_problem()
    unused: Any = None
    worker = run.make_worker(problem, 0, unused, OwnBudget(1), unused)
    buffers, x = problem.flat.fresh_buffers(), worker.push_sum
    gradients = [problem.gradient(worker.params, buffers, 0, 0)[0] for _ in range(TIMES + 1)]
    message, received = x.clone(), x.clone()
    with Loopback() as loopback:
        return {
            "gradient": processor_seconds(lambda: problem.gradient(worker.params, buffers, 0, 0)),
            "local step": processor_seconds(
                lambda: worker.params.sub_(worker.update(gradients.pop()))
            ),
            "divide and copy": processor_seconds(lambda: split(x, 2)),
            "TCP to itself": processor_seconds(lambda: loopback.carry(message, received)),
            "add": processor_seconds(lambda: x.add_(received)),
        }


def processor_seconds(work: Callable[[], object]) -> float:
    """Median processor seconds of ``work`` over all threads of this process."""
    work()
    seconds = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return median(seconds)


class Loopback:
    """A TCP connection of this process with itself."""

    def __enter__(self) -> Loopback:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.here = socket.create_connection(server.getsockname())
            self.there = server.accept()[0]
        return self

    def __exit__(self, *error: object) -> None:
        self.here.close()
        self.there.close()

    def carry(self, message: Tensor, to: Tensor) -> None:
        sender = Thread(target=self.here.sendall, args=(message.numpy(),))
        sender.start()
        rest = memoryview(to.numpy()).cast("B")
        while rest:
            rest = rest[self.there.recv_into(rest) :]
        sender.join()

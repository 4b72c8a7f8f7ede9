"""Gradients and evaluations on several cores, in forked processes.

A forked process has a copy of the model and the data. It reads parameters and writes gradients in
the slots of a `VectorPool`; a message contains only the slots, the rank and the step. An
evaluation is divided into passes, independently of the number of processes. Each process computes
with one thread, so results have the same bytes in every process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.util import Finalize
from operator import attrgetter
from typing import TYPE_CHECKING

from sgp_runner.core.mapped_memory import shared
from sgp_runner.core.problem import Problem
from sgp_runner.simulator.engine import Gradient, Loop
from sgp_runner.simulator.vector_pool import VectorPool
from sgp_runner.utils.messages import logger
from sgp_runner.utils.signals import ENDING, blocked
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from torch import Tensor


WORTH_SECONDS = 1e-3  # handing over a shorter gradient takes longer than computing it
QUEUED = 2  # gradients per process, which computes one while the other is copied
AHEAD = 2  # more computed values that may wait in this process
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def serve(
    problem: Problem,
    pool: VectorPool,
    buffers: Sequence[list[Tensor]],
    connection: Connection,
) -> None:
    """Compute gradients in a forked process, until the other end of ``connection`` is closed.

    buffers: of the model, for each gradient that may be queued and for evaluations
    """
    import torch

    try:
        torch.set_num_threads(1)  # a fork has no other threads
        for number in ENDING:  # only the parent process ends this process
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        library = ctypes.CDLL(None)
        if hasattr(library, "prctl"):
            library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        while True:
            number, slots, *what = connection.recv()
            vectors = [pool.at(slot, sum(problem.flat.layers)) for slot in slots]
            received, failure = None, ""
            try:
                received = perform(problem, vectors, buffers[number], *what)
            except Exception as error:  # the parent process repeats the work and raises the error
                failure = str(error) or type(error).__name__
            connection.send((number, received, failure))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # without flushing stdout, which another thread may have locked


def perform(
    problem: Problem,
    vectors: Sequence[Tensor],
    buffers: list[Tensor],
    rank: int | None,
    step: int,
    processes: int,
) -> float | list[Sequence[float]]:
    """Compute the gradient of a rank's step and return its loss.

    If ``rank`` is None, return the sums of every ``processes``-th pass of an evaluation, from pass
    ``step`` on.

    vectors: the parameters [D] and memory for the gradient [D]
    """
    params, *out = vectors
    if rank is None:
        return problem.sums(params, [*buffers], slice(step, None, processes))
    _, loss = problem.gradient(params, [*buffers], rank, step, out=out[0])
    return float(loss)


@dataclass(frozen=True)
class GradientResult:
    """A gradient ``value`` [D] with its loss, and the buffers after its forward pass."""

    value: Tensor
    loss: float
    buffers: list[Tensor]


class Assistant:
    """A process that computes passes of evaluations and queues up to ``QUEUED`` gradients."""

    def __init__(self, problem: Problem, pool: VectorPool, others: Sequence[Connection]) -> None:
        self.pool = pool
        # The last are for evaluations.
        self.buffers = [shared(problem.flat.initial) for _ in range(QUEUED + 1)]
        self.free = list(range(QUEUED))
        self.sums: list[Sequence[float]] | None = None
        self.evaluates = False
        self.failure = ""  # of a gradient or evaluation
        # By number of the buffers: gradients with their parameters and values in the pool.
        self.asked: dict[int, tuple[Gradient, Tensor, Tensor]] = {}
        context = get_context("fork")
        self.connection, theirs = context.Pipe()

        def work() -> None:
            for connection in (*others, self.connection):
                connection.close()
            serve(problem, pool, self.buffers, theirs)

        with blocked():
            self.process = context.Process(target=work, daemon=True)
            self.process.start()
        theirs.close()
        # Also called when nothing refers to this object any more, and before Python ends.
        self.close = Finalize(self, end, (self.connection, self.process), exitpriority=0)

    def ask(self, gradient: Gradient) -> None:
        """Let the process compute ``gradient``; the pool has two free slots."""
        gradient.check()
        number = self.free.pop()
        params = self.pool.shared(gradient.params)
        value = self.pool.empty(gradient.params.numel())
        assert value is not None
        self.asked[number] = gradient, params, value
        self.request(number, [params, value], gradient.buffers, gradient.rank, gradient.step, 1)

    def evaluate(
        self, params: Tensor, buffers: Sequence[Tensor], number: int, processes: int
    ) -> None:
        """Let the process compute every ``processes``-th pass of an evaluation.

        params: parameters [D] in the pool
        """
        self.sums, self.evaluates = None, True
        self.request(QUEUED, [params], buffers, None, number, processes)

    def request(
        self,
        number: int,
        vectors: Sequence[Tensor],
        buffers: Sequence[Tensor],
        *what: int | None,
    ) -> None:
        for there, buffer in zip(self.buffers[number], buffers, strict=True):
            there.copy_(buffer)
        self.connection.send((number, [*map(self.pool.slot_of, vectors)], *what))

    def receive(self) -> tuple[Gradient, GradientResult | None] | None:
        """Wait for the next message.

        Return a gradient with its result, or with None if it failed there. Return None for `sums`.
        """
        number, received, failure = self.connection.recv()
        self.failure = self.failure or failure
        if number == QUEUED:
            self.sums, self.evaluates = received, False
            return None
        gradient, _, value = self.asked.pop(number)
        result = None
        if received is not None:
            buffers = [buffer.clone() for buffer in self.buffers[number]]
            result = GradientResult(value, received, buffers)
        self.free.append(number)
        return gradient, result


def end(connection: Connection, process: ForkProcess) -> None:
    """Kill a forked process, which ignores other signals that end a program."""
    connection.close()
    process.kill()
    process.join()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, as in the other processes."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Parallel:
    """Computes gradients in flight and evaluations on ``cores`` cores; this process uses one core.

    The other processes start once a gradient has taken long enough. For a large model they start at
    once, before there are workers: a fork would keep copies of the workers' vectors. If a process
    ends early, for lack of memory, the run continues without it.
    """

    def __init__(self, problem: Problem, cores: int, pool: VectorPool) -> None:
        self.problem, self.cores, self.pool = problem, cores, pool
        self.loop = Loop(problem, pool)
        self.ranks: set[int] = set()  # ranks with a gradient that may be computed early
        self.pending: dict[Gradient, None] = {}
        self.running: dict[Gradient, Assistant] = {}
        self.done: dict[Gradient, GradientResult] = {}
        self.assistants: list[Assistant] = []
        self.timed = 0
        if self.starts_early:
            self.start_assistants()

    @property
    def starts_early(self) -> bool:
        """Return whether to fork before the first gradient.

        If a GPU is visible, PyTorch refuses gradients in forks of a process that has computed one.
        """
        import torch

        return self.problem.is_large or torch.accelerator.is_available()

    def start_assistants(self) -> None:
        for _ in range(self.cores - 1):
            others = [assistant.connection for assistant in self.assistants]
            self.assistants.append(Assistant(self.problem, self.pool, others))

    def start(self, gradient: Gradient) -> None:
        if gradient.rank not in self.ranks:  # a second gradient needs the buffers after the first
            self.ranks.add(gradient.rank)
            self.pending[gradient] = None
            self.hand_out()

    def finish(self, gradient: Gradient) -> Tensor:
        self.collect(timeout=0)
        while gradient in self.running:
            if not self.work_ahead():
                self.collect(timeout=None)
        result = self.done.pop(gradient, None)
        if result is None:
            self.pending.pop(gradient, None)
            self.hand_out()
            result = self.timed_here(gradient)
        else:
            self.hand_out()
        gradient.check()  # again: catches a write after an early computation
        self.ranks.discard(gradient.rank)
        gradient.loss = result.loss
        for buffer, computed in zip(gradient.buffers, result.buffers, strict=True):
            buffer.copy_(computed)
        return result.value

    def drop(self, gradient: Gradient) -> None:
        while gradient in self.running:
            self.collect(timeout=None)
        self.pending.pop(gradient, None)
        self.done.pop(gradient, None)
        self.ranks.discard(gradient.rank)

    def sums(self, params: Tensor, buffers: list[Tensor]) -> list[Sequence[float]]:
        """Return the sums of each pass of an evaluation, as `Problem.sums`."""
        passes = len(self.problem.chunks)
        held = self.pool.shared(params)
        # The other assistants keep computing gradients.
        helping = [] if self.pool.slot_of(held) is None else self.assistants[: passes - 1]
        every = len(helping) + 1
        for number, assistant in enumerate(helping, start=1):
            with suppress(OSError):  # `collect` handles a process that has ended
                assistant.evaluate(held, buffers, number, every)
        rows: list[Sequence[float]] = [()] * passes
        with one_thread():
            rows[::every] = self.problem.sums(params, buffers, slice(0, None, every))
        for number, assistant in enumerate(helping, start=1):
            while assistant.evaluates and assistant in self.assistants:
                self.collect(timeout=None)
            part = slice(number, None, every)
            with one_thread():
                rows[part] = assistant.sums or self.problem.sums(params, buffers, part)
        self.dismiss_failed()
        return rows

    def timed_here(self, gradient: Gradient) -> GradientResult:
        """Compute a gradient; start other processes if the second gradient took long enough."""
        began = time.perf_counter()
        result = self.here(gradient)
        self.timed += 1
        worth = self.timed == 2 and time.perf_counter() - began >= WORTH_SECONDS
        if worth and not self.starts_early:
            self.start_assistants()
        self.dismiss_failed()
        return result

    def dismiss_failed(self) -> None:
        """End the processes whose work failed, once this process has repeated it successfully."""
        failed = [candidate for candidate in self.assistants if candidate.failure]
        for assistant in failed:
            self.lose(assistant)
        if failed:
            hint = ""
            if "fork" in failed[0].failure:
                hint = ' Hide the GPU: CUDA_VISIBLE_DEVICES="" sgp-run ..., or one run per process.'
            logger.warning(
                f"The simulation uses fewer cores: {counted(len(failed), 'process', 'processes')} "
                f"cannot compute gradients ({failed[0].failure.splitlines()[0]}).{hint}"
            )

    def here(self, gradient: Gradient) -> GradientResult:
        """Compute a gradient in this process."""
        early = Gradient(
            gradient.rank,
            gradient.step,
            gradient.params,
            [buffer.clone() for buffer in gradient.buffers],
        )
        with one_thread():
            value = self.loop.finish(early)
        return GradientResult(value, float(early.loss), early.buffers)

    @property
    def has_room(self) -> bool:
        """Whether another value may be computed early; waiting values take memory."""
        waiting = len(self.running) + len(self.done)
        return waiting < QUEUED * len(self.assistants) + AHEAD and len(self.pool.free) > 1

    def work_ahead(self) -> bool:
        """Compute a gradient that is not due yet, if there is one and room for it."""
        if not self.pending or not self.has_room:
            return False
        gradient = self.pop_pending()
        self.done[gradient] = self.here(gradient)
        self.collect(timeout=0)
        return True

    def pop_pending(self) -> Gradient:
        """Return the pending gradient that is due first."""
        gradient = min(self.pending, key=attrgetter("due"))
        del self.pending[gradient]
        return gradient

    def hand_out(self) -> None:
        """Give pending gradients to the other processes.

        The last pending gradient is not queued behind another one: this process may compute it.
        """
        for assistant in [*self.assistants]:
            while len(self.pending) > bool(assistant.asked) and assistant.free and self.has_room:
                gradient = self.pop_pending()
                self.running[gradient] = assistant
                try:
                    assistant.ask(gradient)
                except OSError:
                    self.lose(assistant)
                    break

    def collect(self, timeout: float | None) -> None:
        """Collect results of the other processes; ``timeout``: seconds to wait for a result."""
        by_connection = {helper.connection: helper for helper in self.assistants}
        for connection in wait([*by_connection], timeout) if by_connection else ():
            assert isinstance(connection, Connection)
            assistant = by_connection[connection]
            try:
                received = assistant.receive()
            except (EOFError, OSError):
                self.lose(assistant)
                continue
            if received is not None:
                gradient, result = received
                del self.running[gradient]
                if result is not None:
                    self.done[gradient] = result
        self.hand_out()

    def lose(self, assistant: Assistant) -> None:
        """Remove a process that has ended; this process computes its gradients when due."""
        self.assistants.remove(assistant)
        self.running = {
            gradient: by for gradient, by in self.running.items() if by is not assistant
        }
        assistant.close()

    def close(self) -> None:
        for assistant in self.assistants:
            assistant.close()
        self.assistants, self.running = [], {}

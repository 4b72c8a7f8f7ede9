"""Gradients and evaluations on several cores, in forked processes.

A forked process has a copy of the model and the data. Gradients are exchanged through shared
memory; a message contains only the slot in this memory, the rank and the step. An evaluation is
divided into passes, independently of the number of processes. Each process computes with one
thread, so results are bitwise equal in every process.
"""

from __future__ import annotations

import ctypes
import mmap
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

from sgp_runner.core.problem import Problem
from sgp_runner.simulator.engine import Gradient, Loop
from sgp_runner.utils.messages import logger
from sgp_runner.utils.signals import ENDING, blocked
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from torch import Tensor


WORTH_SECONDS = 1e-3  # handing over a shorter gradient takes longer than computing it
QUEUED = 2  # gradients per process, which computes one while the other is copied
AHEAD = 2  # more computed values that may wait in this process
ALIGNMENT = 64  # bytes
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@dataclass(frozen=True)
class GradientMemory:
    """Shared memory for one gradient: ``params`` [D], ``buffers`` and the result ``value`` [D]."""

    params: Tensor
    value: Tensor
    buffers: Sequence[Tensor]


def make_slot(problem: Problem) -> GradientMemory:
    start = problem.start()
    params, value, *buffers = shared([start, start, *problem.flat.initial])
    return GradientMemory(params, value, buffers)


def shared(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return new tensors of these shapes and types, in memory shared with forked processes."""
    import torch

    begins, size = [], 0
    for tensor in tensors:
        begins.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    memory = mmap.mmap(-1, size)
    return [
        torch.frombuffer(memory, dtype=array.dtype, count=array.numel(), offset=begin).view(
            array.shape
        )
        for array, begin in zip(tensors, begins, strict=True)
    ]


def serve(problem: Problem, slots: Sequence[GradientMemory], connection: Connection) -> None:
    """Compute gradients in a forked process until the other end of ``connection`` is closed."""
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
            number, *what = connection.recv()
            received, failure = None, ""
            try:
                received = perform(problem, slots[number], *what)
            except Exception as error:  # the parent process repeats the work and raises the error
                failure = str(error) or type(error).__name__
            connection.send((number, received, failure))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # without flushing stdout, which another thread may have locked


def perform(
    problem: Problem, slot: GradientMemory, rank: int | None, step: int, processes: int
) -> float | list[Sequence[float]]:
    """Compute the gradient of a rank's step and return its loss.

    If ``rank`` is None, return the sums of every ``processes``-th pass of an evaluation, from pass
    ``step`` on.
    """
    if rank is None:
        return problem.sums(slot.params, [*slot.buffers], slice(step, None, processes))
    value, loss = problem.gradient(slot.params, [*slot.buffers], rank, step)
    slot.value.copy_(value)
    return float(loss)


@dataclass(frozen=True)
class GradientResult:
    """A gradient ``value`` [D] with its loss, and the buffers after its forward pass."""

    value: Tensor
    loss: float
    buffers: list[Tensor]


class Assistant:
    """A process that computes passes of evaluations and queues up to ``QUEUED`` gradients."""

    def __init__(self, problem: Problem, others: Sequence[Connection]) -> None:
        self.slots = [make_slot(problem) for _ in range(QUEUED + 1)]  # the last is for evaluations
        self.free = list(range(QUEUED))
        self.sums: list[Sequence[float]] | None = None
        self.evaluates = False
        self.failure = ""  # of a gradient or evaluation
        self.asked: dict[int, Gradient] = {}  # by slot
        context = get_context("fork")
        self.connection, theirs = context.Pipe()

        def work() -> None:
            for connection in (*others, self.connection):
                connection.close()
            serve(problem, self.slots, theirs)

        with blocked():
            self.process = context.Process(target=work, daemon=True)
            self.process.start()
        theirs.close()
        # Also called when nothing refers to this object any more, and before Python ends.
        self.close = Finalize(self, end, (self.connection, self.process), exitpriority=0)

    def ask(self, gradient: Gradient) -> None:
        """Send ``gradient`` to the process to be computed."""
        gradient.check()
        number = self.free.pop()
        self.asked[number] = gradient
        self.request(number, gradient.params, gradient.buffers, gradient.rank, gradient.step, 1)

    def evaluate(
        self, params: Tensor, buffers: Sequence[Tensor], number: int, processes: int
    ) -> None:
        """Make the process compute every ``processes``-th pass of an evaluation."""
        self.sums, self.evaluates = None, True
        self.request(QUEUED, params, buffers, None, number, processes)

    def request(
        self, number: int, params: Tensor, buffers: Sequence[Tensor], *what: int | None
    ) -> None:
        slot = self.slots[number]
        slot.params.copy_(params)
        for there, buffer in zip(slot.buffers, buffers, strict=True):
            there.copy_(buffer)
        self.connection.send((number, *what))

    def receive(self) -> tuple[Gradient, GradientResult | None] | None:
        """Wait for the next message.

        Return a gradient with its result, or with None if it failed there. Return None for `sums`.
        """
        number, received, failure = self.connection.recv()
        self.failure = self.failure or failure
        if number == QUEUED:
            self.sums, self.evaluates = received, False
            return None
        slot = self.slots[number]
        result = None
        if received is not None:
            buffers = [buffer.clone() for buffer in slot.buffers]
            result = GradientResult(slot.value.clone(), received, buffers)
        self.free.append(number)
        return self.asked.pop(number), result


def end(connection: Connection, process: ForkProcess) -> None:
    """Kill a forked process, which ignores other termination signals."""
    connection.close()
    process.kill()
    process.join()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, like the other processes."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Parallel:
    """An engine that computes gradients and evaluations on ``cores`` cores, one for this process.

    The other processes start once a gradient has taken long enough. For a large model they start
    immediately, before the workers exist, as a fork would keep copies of the workers' vectors. If a
    process dies early, for lack of memory, the run continues without it.
    """

    def __init__(self, problem: Problem, cores: int) -> None:
        self.problem, self.cores = problem, cores
        self.loop = Loop(problem)
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
            self.assistants.append(Assistant(self.problem, others))

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
        """Return the sums of each pass of an evaluation, like `Problem.sums`."""
        passes = len(self.problem.chunks)
        helping = self.assistants[: passes - 1]  # the other assistants keep computing gradients
        every = len(helping) + 1
        for number, assistant in enumerate(helping, start=1):
            with suppress(OSError):  # `collect` handles a process that has ended
                assistant.evaluate(params, buffers, number, every)
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
        """Stop the processes that failed, once this process has completed their work."""
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
        """Return whether another value may be computed early, as waiting values take memory."""
        return len(self.running) + len(self.done) < QUEUED * len(self.assistants) + AHEAD

    def work_ahead(self) -> bool:
        """Compute a gradient that is not due yet, if there is one and memory allows."""
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
        """Assign pending gradients to the other processes.

        The last pending gradient is not queued behind another, as this process may compute it.
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
        """Remove a process that has died; this process computes its gradients when due."""
        self.assistants.remove(assistant)
        self.running = {
            gradient: by for gradient, by in self.running.items() if by is not assistant
        }
        assistant.close()

    def close(self) -> None:
        for assistant in self.assistants:
            assistant.close()
        self.assistants, self.running = [], {}

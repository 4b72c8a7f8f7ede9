"""Gradients on several cores: processes that compute those in flight.

A process is a fork of this one, so it has the model and the data; what a gradient reads and writes
is in memory that both share, and a message names only its place, its rank and its step. Each
process computes with one thread, so a gradient has the same bytes wherever it is computed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from sgp_runner.simulator.engine import Gradient, Loop
from sgp_runner.utils.signals import ENDING

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.problem import Problem

WORTH_SECONDS = 1e-3  # a shorter gradient is computed sooner than it is handed over
QUEUED = 2  # gradients of a process: while one is copied, it computes another
AHEAD = 2  # values that wait here to be used
REQUEST = struct.Struct("qqq")  # place, rank, step
ANSWER = struct.Struct("q?d")  # place, whether there is a value, loss
ALIGNMENT = 64  # bytes
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@dataclass(frozen=True)
class Place:
    """Shared memory of one gradient: ``params`` [D], ``buffers`` and, computed, ``value`` [D]."""

    params: Tensor
    value: Tensor
    buffers: Sequence[Tensor]


def make_place(problem: Problem) -> Place:
    start = problem.start()
    params, value, *buffers = shared([start, start, *problem.flat.initial])
    return Place(params, value, buffers)


def shared(tensors: Sequence[Tensor]) -> list[Tensor]:
    """New tensors of these shapes and types, in memory that is shared with forked processes."""
    import torch

    begins, size = [], 0
    for tensor in tensors:
        begins.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    memory = mmap.mmap(-1, size)
    return [
        torch.frombuffer(memory, dtype=each.dtype, count=each.numel(), offset=begin).view(
            each.shape
        )
        for each, begin in zip(tensors, begins, strict=True)
    ]


def serve(problem: Problem, places: Sequence[Place], connection: Connection) -> None:
    """Compute gradients in a forked process, until the other end of ``connection`` is closed."""
    import torch

    try:
        torch.set_num_threads(1)  # others of its threads were not forked
        for number in ENDING:  # the process that has forked this one ends it
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        library = ctypes.CDLL(None)
        if hasattr(library, "prctl"):
            library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        while True:
            number, rank, step = REQUEST.unpack(connection.recv_bytes())
            place = places[number]
            try:
                value, loss = problem.gradient(place.params, [*place.buffers], rank, step)
            except Exception:  # the other process meets the same error, and reports it
                connection.send_bytes(ANSWER.pack(number, False, 0.0))
                continue
            place.value.copy_(value)
            connection.send_bytes(ANSWER.pack(number, True, float(loss)))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # without leaving a trace on stdout, which another thread may have locked


@dataclass(frozen=True)
class Result:
    """A gradient ``value`` [D] with its loss, and the buffers that its forward pass has updated."""

    value: Tensor
    loss: float
    buffers: list[Tensor]


class Assistant:
    """A process that computes gradients, at most ``QUEUED`` at a time."""

    def __init__(self, problem: Problem, others: Sequence[Connection]) -> None:
        self.places = [make_place(problem) for _ in range(QUEUED)]
        self.free = list(range(QUEUED))
        self.asked: dict[int, Gradient] = {}  # by place
        context = get_context("fork")
        self.connection, theirs = context.Pipe()

        def work() -> None:
            for each in (*others, self.connection):
                each.close()
            serve(problem, self.places, theirs)

        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self.process = context.Process(target=work, daemon=True)
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, gradient: Gradient) -> None:
        """Let the process compute ``gradient``."""
        number = self.free.pop()
        place = self.places[number]
        gradient.check()
        place.params.copy_(gradient.params)
        for there, buffer in zip(place.buffers, gradient.buffers, strict=True):
            there.copy_(buffer)
        self.asked[number] = gradient
        self.connection.send_bytes(REQUEST.pack(number, gradient.rank, gradient.step))

    def answer(self) -> tuple[Gradient, Result | None]:
        """Wait for the next gradient; return it, and its result unless it has failed there."""
        number, computed, loss = ANSWER.unpack(self.connection.recv_bytes())
        place = self.places[number]
        result = Result(place.value.clone(), loss, [buffer.clone() for buffer in place.buffers])
        self.free.append(number)
        return self.asked.pop(number), result if computed else None

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


class Processes:
    """Computes gradients in flight on ``cores`` cores, of which this process uses one.

    The others start when gradients turn out to take long enough. One that ends early, for want of
    memory, is done without.
    """

    def __init__(self, problem: Problem, cores: int) -> None:
        self.problem, self.cores = problem, cores
        self.loop = Loop(problem)
        self.ranks: set[int] = set()  # with a gradient that may be computed early
        self.pending: dict[Gradient, None] = {}
        self.running: dict[Gradient, Assistant] = {}
        self.done: dict[Gradient, Result] = {}
        self.assistants: list[Assistant] = []
        self.timed = 0

    def start(self, gradient: Gradient) -> None:
        if gradient.rank not in self.ranks:  # a second one needs the buffers after the first one
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

    def timed_here(self, gradient: Gradient) -> Result:
        """Compute a gradient; the second one decides whether other processes are worth it."""
        began = time.perf_counter()
        result = self.here(gradient)
        self.timed += 1
        if self.timed == 2 and time.perf_counter() - began >= WORTH_SECONDS:
            for _ in range(self.cores - 1):
                others = [each.connection for each in self.assistants]
                self.assistants.append(Assistant(self.problem, others))
        return result

    def here(self, gradient: Gradient) -> Result:
        """Compute a gradient in this process, with one thread as in the others."""
        import torch

        early = Gradient(
            gradient.rank,
            gradient.step,
            gradient.params,
            [each.clone() for each in gradient.buffers],
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            value = self.loop.finish(early)
        finally:
            torch.set_num_threads(threads)
        return Result(value, early.loss, early.buffers)

    @property
    def has_room(self) -> bool:
        """Whether another value may be computed early; each takes memory until it is used."""
        return len(self.running) + len(self.done) < QUEUED * len(self.assistants) + AHEAD

    def work_ahead(self) -> bool:
        """Compute a gradient that is not due yet, if there is one."""
        if not self.pending or not self.has_room:
            return False
        gradient = next(iter(self.pending))
        del self.pending[gradient]
        self.done[gradient] = self.here(gradient)
        self.collect(timeout=0)
        return True

    def hand_out(self) -> None:
        """Give pending gradients to the other processes."""
        for assistant in [*self.assistants]:
            while self.pending and assistant.free and self.has_room:
                gradient = next(iter(self.pending))
                del self.pending[gradient]
                self.running[gradient] = assistant
                try:
                    assistant.ask(gradient)
                except OSError:
                    self.lose(assistant)
                    break

    def collect(self, timeout: float | None) -> None:
        """Take what the other processes have computed; ``timeout``: seconds to wait for it."""
        by_connection = {each.connection: each for each in self.assistants}
        for connection in wait([*by_connection], timeout) if by_connection else ():
            assert isinstance(connection, Connection)
            assistant = by_connection[connection]
            try:
                gradient, result = assistant.answer()
            except (EOFError, OSError):
                self.lose(assistant)
                continue
            del self.running[gradient]
            if result is not None:
                self.done[gradient] = result
        self.hand_out()

    def lose(self, assistant: Assistant) -> None:
        """Do without a process that has ended; its gradients are computed here, when due."""
        self.assistants.remove(assistant)
        self.running = {each: by for each, by in self.running.items() if by is not assistant}
        assistant.close()

    def close(self) -> None:
        for assistant in self.assistants:
            assistant.close()
        self.assistants, self.running = [], {}

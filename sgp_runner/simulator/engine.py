"""Engines, which compute the gradients of a simulation.

A gradient's inputs are fixed when it starts and its value becomes visible only when it ends, so an
engine may compute it at any time in between. `Loop` computes gradients one by one as they end, when
the memory is needed anyway. `Vmap` computes a gradient that is due together with others in flight.
Both return the same numbers, up to rounding. `sgp_runner.simulator.parallel` returns the same bytes
as `Loop` but uses several cores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from sgp_runner.core.mailbox import check_unwritten
from sgp_runner.core.problem import Problem
from sgp_runner.utils.errors import DataError, RankFailed

if TYPE_CHECKING:
    from torch import Tensor

TRIES = 2  # timings of each width


class Gradient:
    """A gradient of worker ``rank`` that has started, on its ``step``-th batch, at ``params`` [D].

    due: simulated time at which the gradient is needed, or its start if that time is unknown; other
        processes compute gradients in this order
    """

    __slots__ = ("buffers", "due", "loss", "params", "rank", "step", "value", "version")

    def __init__(self, rank: int, step: int, params: Tensor, buffers: list[Tensor]) -> None:
        self.rank, self.step, self.params, self.buffers = rank, step, params, buffers
        self.version = params._version
        self.value: Tensor | None = None
        self.loss: float | Tensor = float("nan")
        self.due = 0.0

    def check(self) -> None:
        where = f"at which gradient {self.step} is being computed,"
        check_unwritten(
            self.params, self.version, f"the parameter vector of rank {self.rank}, {where}"
        )


@contextmanager
def naming_the_rank(gradient: Gradient) -> Iterator[None]:
    """Add the rank to a DataError, as gradients are computed outside the rank's coroutine."""
    try:
        yield
    except DataError as error:
        where = f"rank {gradient.rank}, step {gradient.step}"
        raise RankFailed(f"{where}: DataError: {error}") from error


class Engine(Protocol):
    """An engine that computes gradients for many workers."""

    def start(self, gradient: Gradient) -> None: ...
    def finish(self, gradient: Gradient) -> Tensor: ...  # [D]
    def drop(self, gradient: Gradient) -> None: ...  # instead of `finish`
    def close(self) -> None: ...  # end other processes, if any


class Loop:
    """An engine that computes one gradient at a time, when it is due.

    Unlike in real runs, no thread loads batches ahead for a GPU: between records the host does not
    wait for the GPU, so it loads and pins the next batch while the GPU computes. Only the copy
    takes GPU time, 6 ms for 256 images of 224 x 224 pixels at 25 GB/s.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def start(self, gradient: Gradient) -> None:
        """Do nothing yet."""

    def finish(self, gradient: Gradient) -> Tensor:
        gradient.check()
        with naming_the_rank(gradient):
            value, loss = self.problem.gradient(
                gradient.params, gradient.buffers, gradient.rank, gradient.step
            )
        gradient.loss = loss if loss.is_cuda else float(loss)  # no wait for a GPU
        return value

    def drop(self, gradient: Gradient) -> None:
        """Do nothing, as the gradient has not been computed."""

    def close(self) -> None:
        """Do nothing."""


class Vmap:
    """An engine that batches gradients in flight by `torch.func.vmap`, ``width`` per call at most.

    The limit bounds the memory of computed values that have not been used yet. At the start of a
    run on a CPU the engine also times a half and a quarter of ``width`` and then uses the fastest
    width, which fits into the cache. On a GPU, where rounding depends on the batch size, all calls
    have this width.
    """

    def __init__(self, problem: Problem, width: int) -> None:
        import torch

        from sgp_runner.models.dropout import dropout_buffers

        self.problem = problem
        self.pads = problem.compute.device != "cpu"
        tried = (width,) if self.pads else (width, width // 2, width // 4)
        widths = (w for w in tried if w > 1 or w == width)
        self.tried: dict[int, list[float]] = {w: [] for w in widths}  # width -> seconds per worker
        self.fastest = width
        self.pending: dict[Gradient, None] = {}
        names = [name for name, _ in problem.flat.module.named_parameters()]
        shapes = [p.shape for p in problem.flat.parameters]
        seeds = dropout_buffers(problem.flat.module)
        loss_of = getattr(problem.dataset.task, "batched_loss", problem.dataset.task.loss)

        def loss(
            params: Tensor, seed: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
        ) -> Tensor:
            parts = params.split_with_sizes(problem.flat.layers)
            tensors = {
                name: part.view(shape)
                for name, part, shape in zip(names, parts, shapes, strict=True)
            }
            tensors |= dict.fromkeys(seeds, seed)
            with problem.compute.autocasting():
                outputs = torch.func.functional_call(problem.flat.module, tensors, inputs)
                return loss_of(outputs, targets)

        self.losses = torch.func.vmap(loss, randomness="error")

    def start(self, gradient: Gradient) -> None:
        self.pending[gradient] = None

    def finish(self, gradient: Gradient) -> Tensor:
        if gradient.value is None:
            del self.pending[gradient]
            width = self.width
            others = list(islice(self.pending, width - 1))
            for other in others:
                del self.pending[other]
            started = time.perf_counter()
            self.compute([gradient, *others])
            if len(others) == width - 1 and len(self.tried[width]) < TRIES:
                self.tried[width].append((time.perf_counter() - started) / width)
                self.fastest = min(
                    self.tried, key=lambda size: min(self.tried[size], default=math.inf)
                )
        gradient.check()  # again: catches a write after an early computation
        value, gradient.value = gradient.value, None
        assert value is not None
        return value

    def drop(self, gradient: Gradient) -> None:
        self.pending.pop(gradient, None)

    def close(self) -> None:
        """Do nothing."""

    @property
    def width(self) -> int:
        """The next width to time, or the fastest once all have been timed."""
        untried = [width for width, seconds in self.tried.items() if len(seconds) < TRIES]
        return untried[0] if untried else self.fastest

    def compute(self, gradients: list[Gradient]) -> None:
        for gradient in gradients:
            gradient.check()
        if self.pads:
            gradients = gradients + gradients[:1] * (self.fastest - len(gradients))
        elif len(gradients) == 1:  # some kernels round differently for a batch of one
            gradients = gradients * 2
        self.problem.flat.module.train()
        values, losses = self.gradients(*self.stacked(gradients))
        numbers = losses.unbind() if losses.is_cuda else losses.tolist()  # no wait for a GPU
        for gradient, value, loss in zip(gradients, values, numbers, strict=True):
            # A copy: rows of one tensor share its version, so a write to one would look like a
            # write to all.
            gradient.value, gradient.loss = value.clone(), loss

    def gradients(self, params: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        """Return the gradients [n, D] and losses [n] of the arguments that `stacked` returns.

        The sum of the losses is differentiated, outside vmap, as a worker's loss depends only on
        its own parameters. `torch.func.grad` would import torch._dynamo, which takes half a second.
        """
        import torch

        losses = self.losses(params.requires_grad_(), *others)
        (values,) = torch.autograd.grad(losses.sum(), params)
        return values, losses.detach()

    def stacked(
        self, gradients: list[Gradient]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Stack the arguments of `losses` in rows: parameters, seeds, inputs, targets."""
        import torch

        problem = self.problem
        batches = [problem.on_host(g.rank, g.step) for g in gradients]
        inputs = tuple(
            problem.placed(torch.stack(tensors))
            for tensors in zip(*(inputs for inputs, _ in batches), strict=True)
        )
        targets = problem.placed(torch.stack([targets for _, targets in batches]))
        params = torch.stack([g.params for g in gradients])
        seeds = torch.tensor([problem.dropout_seed(g.rank, g.step) for g in gradients])
        return params, problem.placed(seeds), inputs, targets


class NoGradients:
    """The engine of timing studies, in which all gradients are zero and need no computation."""

    def start(self, gradient: Gradient) -> None:
        """Do nothing."""

    def finish(self, gradient: Gradient) -> Tensor:
        gradient.loss = 0.0
        return gradient.params.new_zeros(gradient.params.numel())

    def drop(self, gradient: Gradient) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

"""Local optimizers and learning-rate schedules.

An optimizer turns a gradient into the step to subtract; all its state is in flat buffers of the
same length as the parameters. The schedule is a factor on the peak learning rate, as a function of
the epoch alone (a fraction), so that it means the same for synchronous algorithms and for those
that count gradients globally.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import cos, isfinite, pi, prod
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from sgp_runner.core.flat import Gradient, in_pieces, joined, pieces
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

#: The step to subtract from the parameters [D], in pieces: where, and what.
Updates: TypeAlias = "Iterator[tuple[slice, Tensor]]"
#: The shapes of the parameter tensors that make up the parameters [D], by name, in order.
Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


@dataclass(frozen=True)
class Horizon:
    """The constants of a run that a schedule may depend on."""

    epochs: float
    steps_per_epoch: float  # of one node
    nodes: int
    global_batch: int


class Schedule(Protocol):
    def factor(self, epoch: float, horizon: Horizon) -> float:
        """Learning rate at ``epoch`` as a fraction of the peak."""


def ends_with_run(schedule: Schedule) -> bool:
    """Whether the learning rate depends on the number of epochs, so a longer run begins otherwise.

    So does that of a schedule from elsewhere, for all that is known.
    """
    if isinstance(schedule, Steps):
        return bool(schedule.milestones)
    return not isinstance(schedule, Constant | InverseSqrt)


def check_schedule(positive: bool = False, **values: float) -> None:
    """Raise ConfigError unless all values are finite and >= 0 (``positive``: > 0)."""
    for name, value in values.items():
        if not isfinite(value) or value < 0 or (positive and value == 0):
            raise ConfigError(
                f"optim.schedule.{name}",
                f"{value} must be {'positive' if positive else 'zero or positive'} and finite.",
            )


@dataclass(frozen=True)
class Constant:
    """Always the peak."""

    def factor(self, epoch: float, horizon: Horizon) -> float:
        return 1.0


def warmed_up(epoch: float, epochs: float, start: float) -> float:
    """Linear from ``start`` to 1 over ``epochs``."""
    return 1.0 if epoch >= epochs else start + (1 - start) * epoch / epochs


@dataclass(frozen=True)
class Steps:
    """Linear warm-up, then a drop at each milestone (Goyal et al. 2017).

    milestones: epochs of a schedule of reference_epochs; other run lengths scale them in proportion
    reference_epochs: the length of a run that milestones are meant for
    decay: factor at each milestone
    warmup_epochs: epochs of the warm-up, not scaled
    warmup_from: where it starts: reference is the learning rate of one reference batch (Goyal),
        one_over_n is peak / nodes (Gap-Aware), zero is 0
    reference_batch: the batch size that optim.lr is meant for in warmup_from=reference
    """

    milestones: tuple[float, ...] = (30, 60, 80)
    reference_epochs: float = 90
    decay: float = 0.1
    warmup_epochs: float = 5
    warmup_from: Literal["reference", "one_over_n", "zero"] = "reference"
    reference_batch: int = 256

    def __post_init__(self) -> None:
        check_schedule(warmup_epochs=self.warmup_epochs)
        if any(milestone < 0 for milestone in self.milestones):
            raise ConfigError(
                "optim.schedule.milestones",
                f"{list(self.milestones)} must be zero or positive epochs.",
            )
        check_schedule(
            positive=True,
            reference_epochs=self.reference_epochs,
            decay=self.decay,
            reference_batch=self.reference_batch,
        )

    def factor(self, epoch: float, horizon: Horizon) -> float:
        scale = horizon.epochs / self.reference_epochs
        passed = sum(epoch >= milestone * scale for milestone in self.milestones)
        return (
            warmed_up(epoch, self.warmup_epochs, self.start(horizon.nodes, horizon.global_batch))
            * self.decay**passed
        )

    def start(self, nodes: int, global_batch: int) -> float:
        """The learning rate at which the warm-up begins, as a fraction of the peak."""
        return {
            "reference": min(1.0, self.reference_batch / global_batch),
            "one_over_n": 1 / nodes,
            "zero": 0.0,
        }[self.warmup_from]

    def without_effect(self, nodes: int, global_batch: int) -> str | None:
        """A sentence if the warm-up starts at the peak and so has no effect, else None."""
        if not self.warmup_epochs or self.start(nodes, global_batch) < 1:
            return None
        reference = f"optim.schedule.reference_batch={self.reference_batch}"
        small = f"a global batch of {global_batch}, not above {reference}"
        why = small if self.warmup_from == "reference" else "one node"
        return f"No warm-up: warmup_from={self.warmup_from} starts at the peak with {why}."


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the peak to zero at the end, after a linear warm-up from zero.

    warmup_epochs: epochs of the warm-up
    """

    warmup_epochs: float = 4

    def __post_init__(self) -> None:
        check_schedule(warmup_epochs=self.warmup_epochs)

    def factor(self, epoch: float, horizon: Horizon) -> float:
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        rest = max(horizon.epochs - self.warmup_epochs, 1e-9)
        return 0.5 * (1 + cos(pi * min(1.0, (epoch - self.warmup_epochs) / rest)))


@dataclass(frozen=True)
class WarmupCosine:
    """Linear from zero to the peak, then half a cosine down to a share of it.

    warmup: share of the run in which the rate rises
    final: the rate at the end, as a share of the peak
    """

    warmup: float = 0.05
    final: float = 0.1

    def __post_init__(self) -> None:
        for name in ("warmup", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"optim.schedule.{name}", f"{getattr(self, name)} must be between 0 and 1."
                )

    def factor(self, epoch: float, horizon: Horizon) -> float:
        # The first step of a warm-up counts: at zero it would be lost.
        place = (epoch + 1 / horizon.steps_per_epoch) / horizon.epochs
        if place < self.warmup:
            return place / self.warmup
        rest = min(1.0, (place - self.warmup) / max(1 - self.warmup, 1e-9))
        return self.final + (1 - self.final) * 0.5 * (1 + cos(pi * rest))


@dataclass(frozen=True)
class InverseSqrt:
    """Linear from zero, then the peak times ``sqrt(warmup_steps / step)`` (Vaswani et al. 2017).

    warmup_steps: updates of the warm-up; 4000 in the paper, for runs of 100,000
    """

    warmup_steps: int = 60

    def __post_init__(self) -> None:
        check_schedule(positive=True, warmup_steps=self.warmup_steps)

    def factor(self, epoch: float, horizon: Horizon) -> float:
        step = epoch * horizon.steps_per_epoch + 1
        return (
            step / self.warmup_steps
            if step < self.warmup_steps
            else (self.warmup_steps / step) ** 0.5
        )


class Optimizer(Protocol):
    """A local optimizer.

    lr: peak learning rate; with lr_reference_batch it is multiplied by global batch / that.
    """

    @property
    def name(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_reference_batch(self) -> int | None: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def slow_buffers(self) -> Literal["reset", "keep"]: ...  # SlowMo's default treatment
    @property
    def schedule(self) -> Schedule: ...
    def buffers(self, params: Tensor) -> dict[str, Tensor]: ...
    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor: ...


def lr_at(optim: Optimizer, epoch: float, horizon: Horizon) -> float:
    """Learning rate at ``epoch``."""
    scale = horizon.global_batch / optim.lr_reference_batch if optim.lr_reference_batch else 1.0
    return optim.lr * scale * optim.schedule.factor(epoch, horizon)


def check_lr(lr: float, weight_decay: float, reference_batch: int | None) -> None:
    if not isfinite(lr) or lr <= 0:
        raise ConfigError("optim.lr", f"{lr} must be a positive, finite number.")
    if not isfinite(weight_decay) or weight_decay < 0:
        raise ConfigError(
            "optim.weight_decay", f"{weight_decay} must be zero or a positive, finite number."
        )
    if reference_batch is not None and reference_batch < 1:
        raise ConfigError(
            "optim.lr_reference_batch", f"{reference_batch} must be at least 1 sample, or null."
        )


@dataclass(frozen=True)
class SGD:
    """SGD with (Nesterov) momentum and weight decay, as in PyTorch.

    ``v <- m v + g``; the step is ``lr (g + m v)`` with Nesterov momentum, else ``lr v``.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: lr as it is
    momentum: m, in [0, 1)
    nesterov: whether the step looks ahead
    weight_decay: times the parameters, added to the gradient
    """

    schedule: Schedule
    lr: float = 0.1
    lr_reference_batch: int | None = None
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    name: ClassVar[str] = "sgd"
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "reset"

    def __post_init__(self) -> None:
        check_lr(self.lr, self.weight_decay, self.lr_reference_batch)
        if not 0 <= self.momentum < 1:
            raise ConfigError("optim.momentum", f"{self.momentum} must be in [0, 1).")

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": params.new_zeros(params.shape)} if self.momentum else {}

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """The step to subtract [D], in the memory of ``g``."""
        for d, x, v in in_pieces(g, params, buffers["momentum"] if self.momentum else g):
            if self.weight_decay:
                d.add_(x, alpha=self.weight_decay)
            if self.momentum:
                multiply_and_add(v, self.momentum, d)
                d.add_(v, alpha=self.momentum) if self.nesterov else d.copy_(v)
            d.mul_(lr)
        return g


def multiply_and_add(v: Tensor, factor: float, d: Tensor) -> None:
    """``v <- factor v + d``, in place; rounded twice, as two operations would.

    On a CPU it is one: multiplied by one, a rounded product stays as it is, fused or not.
    """
    import torch

    if v.is_cuda:
        v.mul_(factor).add_(d)
    else:
        torch.addcmul(d, v, v.new_ones(()), value=factor, out=v)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015) with bias correction.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: lr as it is
    beta1: decay of the mean of gradients
    beta2: decay of the mean of their squares
    eps: added to the root of the mean square
    weight_decay: times the parameters, added to the gradient
    """

    schedule: Schedule
    lr: float = 1e-3
    lr_reference_batch: int | None = None
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0
    name: ClassVar[str] = "adam"
    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "keep"

    def __post_init__(self) -> None:
        check_lr(self.lr, self.weight_decay, self.lr_reference_batch)
        check_moments(self.beta1, self.beta2, self.eps)

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return moments(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """The step to subtract [D]."""
        if self.weight_decay:
            g.add_(params, alpha=self.weight_decay)
        return normalised(g, buffers, self.beta1, self.beta2, self.eps).mul_(lr)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as in PyTorch.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: lr as it is
    beta1: decay of the mean of gradients
    beta2: decay of the mean of their squares
    eps: added to the root of the mean square
    weight_decay: times the learning rate and the parameters, of matrices only, not of biases and
        norms
    clip: largest norm of a gradient, which is scaled down to it; null: no clipping
    """

    schedule: Schedule
    lr: float = 1e-3
    lr_reference_batch: int | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    name: ClassVar[str] = "adamw"
    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "keep"

    def __post_init__(self) -> None:
        check_lr(self.lr, self.weight_decay, self.lr_reference_batch)
        check_moments(self.beta1, self.beta2, self.eps)
        check_clip(self.clip)

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return moments(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """The step to subtract [D]."""
        clipped(g, self.clip)
        step = normalised(g, buffers, self.beta1, self.beta2, self.eps)
        if self.weight_decay:
            sizes = [prod(shape) for shape in shapes.values()]
            steps, xs = step.split_with_sizes(sizes), params.split_with_sizes(sizes)
            for shape, d, x in zip(shapes.values(), steps, xs, strict=True):
                if len(shape) > 1:
                    d.add_(x, alpha=self.weight_decay)
        return step.mul_(lr)


def updates(
    optim: Optimizer,
    g: Gradient,
    params: Tensor,
    buffers: dict[str, Tensor],
    lr: float,
    shapes: Shapes,
) -> Updates:
    """The step to subtract, as `Optimizer.direction`, in pieces that are computed one by one.

    Only SGD has more than one piece: its step at one parameter depends on no other one.
    """
    if not isinstance(optim, SGD):
        whole = joined(g)
        yield slice(0, whole.numel()), optim.direction(whole, params, buffers, lr, shapes)
        return
    begin = 0
    for part in g if isinstance(g, list) else [g]:
        for piece in pieces(part):
            where = slice(begin + piece.start, begin + piece.stop)
            own = {name: buffer[where] for name, buffer in buffers.items()}
            yield where, optim.direction(part[piece], params[where], own, lr, shapes)
        begin += part.numel()


def check_moments(beta1: float, beta2: float, eps: float) -> None:
    for key, beta in (("optim.beta1", beta1), ("optim.beta2", beta2)):
        if not 0 <= beta < 1:
            raise ConfigError(key, f"{beta} must be in [0, 1).")
    if eps <= 0:
        raise ConfigError("optim.eps", f"{eps} must be positive.")


def check_clip(clip: float | None) -> None:
    if clip is not None and not clip > 0:
        raise ConfigError("optim.clip", f"{clip} must be above 0, or null for no clipping.")


def clipped(g: Tensor, clip: float | None) -> None:
    """Scale ``g`` down to the norm ``clip``, in place, if it is larger."""
    if clip is not None:
        g.mul_((clip / (g.norm() + 1e-6)).clamp(max=1.0))


def moments(params: Tensor) -> dict[str, Tensor]:
    """Adam's buffers."""
    zeros = params.new_zeros
    return {"mean": zeros(params.shape), "square": zeros(params.shape), "steps": zeros(())}


def normalised(
    g: Tensor, buffers: dict[str, Tensor], beta1: float, beta2: float, eps: float
) -> Tensor:
    """Update Adam's moments with ``g`` and return the mean over the root of the square [D]."""
    steps = buffers["steps"].add_(1)
    mean = buffers["mean"].lerp_(g, 1 - beta1)
    square = buffers["square"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (square / (1 - beta2**steps)).sqrt_().add_(eps)
    return (mean / (1 - beta1**steps)).div_(root)

"""A PyTorch optimizer as a local optimizer, for training loops outside this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.core.flat import Gradient, divide_by, pieces, widened
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.optim.schedules import Constant, Schedule
from sgp_runner.core.state import State

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class ParameterVector:
    """The trained parameters of a module, bound to one vector [D] at a time.

    Vectors of parameters in half precision are in float32, so that small steps, push-sum weights
    and outer momentum are not rounded away. The module then holds a rounded copy.
    """

    def __init__(self, module: nn.Module) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = list(trained.values())
        self.shapes: Shapes = {name: tuple(p.shape) for name, p in trained.items()}
        self.sizes = [p.numel() for p in self.parameters]
        self.bound: Tensor
        self.dtype = self.parameters[0].dtype if self.parameters else None  # of the module

    def joined(self) -> Tensor:
        """Copy the parameters into one vector."""
        import torch

        return widened(torch.cat([p.detach().reshape(-1) for p in self.parameters]))

    def parts(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each parameter with its part of ``vector``, in the parameter's shape."""
        for p, part in zip(self.parameters, vector.split_with_sizes(self.sizes), strict=True):
            yield p, part.view(p.shape)

    def bind(self, vector: Tensor) -> None:
        """Make the parameters views of ``vector``, or of a copy in their own precision."""
        self.view(vector if vector.dtype == self.dtype else vector.to(self.dtype))
        self.bound = vector

    def view(self, vector: Tensor) -> None:
        """Make the parameters views of ``vector``, which has their precision."""
        if self.parameters[0].data_ptr() != vector.data_ptr():
            for p, part in self.parts(vector):
                p.data = part

    def read(self, vector: Tensor) -> None:
        """Copy the parameters into ``vector`` after a step, unless they are views of it."""

    def set_gradient(self, parts: Sequence[Tensor]) -> None:
        """Set each parameter's gradient from a vector."""
        for p, part in zip(self.parameters, parts, strict=True):
            p.grad = part.view(p.shape)

    def plain(self, state: State) -> State:
        """Return an optimizer's state with only this vector's part of each tensor."""
        return state

    def sharded(self, state: State, optimizer: torch.optim.Optimizer) -> State:
        """Invert `plain` for an optimizer of these parameters."""
        return state

    def tensor(self, value: Tensor) -> Tensor:
        """Return this vector's part of a tensor: all of it, unless it is sharded."""
        return value

    def separate(self) -> None:
        """Give each parameter its own memory, which safetensors requires."""
        for p in self.parameters:
            p.data = p.data.clone()

    def detach_gradient(self, scale: Tensor | None = None) -> list[Tensor]:
        """Return the parts of the gradient, as vectors, and remove it from the parameters.

        A missing gradient is zero. scale: [], divisor of the gradient
        """
        import torch

        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        parts = [widened(self.tensor(grad.detach()).reshape(-1)) for grad in grads]
        if scale is not None:
            torch._foreach_mul_(parts, scale.double().reciprocal().float().to(parts[0].device))
        return parts


class WrappedOptimizer:
    """A local optimizer that delegates its steps to a PyTorch optimizer.

    Each parameter group keeps its own settings. The learning rate that algorithms see is the first
    group's, at the time of the step.
    """

    lr_reference_batch: ClassVar[int | None] = None
    schedule: ClassVar[Schedule] = Constant()

    def __init__(self, optimizer: Any, vector: ParameterVector) -> None:
        import torch

        self.optimizer, self.vector = optimizer, vector
        self.copy: Tensor | None = None  # of the parameters
        self.skips = False  # whether a step leaves the parameters as they are
        is_sgd = isinstance(optimizer, torch.optim.SGD)
        self.name = "sgd" if is_sgd else type(optimizer).__name__.lower()
        self.slow_buffers: Literal["reset", "keep"] = "reset" if is_sgd else "keep"

    @property
    def first_group(self) -> dict[str, Any]:
        group: dict[str, Any] = self.optimizer.param_groups[0]
        return group

    @property
    def lr(self) -> float:
        return float(self.first_group["lr"])

    @property
    def weight_decay(self) -> float:
        return float(self.first_group.get("weight_decay", 0.0))

    @property
    def momentum(self) -> float:
        return float(self.first_group.get("momentum", 0.0))

    @property
    def nesterov(self) -> bool:
        return bool(self.first_group.get("nesterov", False))

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, which its first step creates."""
        import torch

        state: Sequence[dict[str, Any]] = [
            self.optimizer.state.get(p, {}) for p in self.vector.parameters
        ]
        return {
            f"{number}.{name}": self.vector.tensor(value)
            for number, of_parameter in enumerate(state)
            for name, value in of_parameter.items()
            if isinstance(value, torch.Tensor)
        }

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """Return the step to subtract [D], in the memory of ``g``."""
        import torch

        after = self.copied(params)
        self.step(g, after)
        self.vector.bind(params)
        return torch.sub(params, after, out=g)

    def take(
        self,
        g: Gradient,
        params: Tensor,
        buffers: dict[str, Tensor],
        weight: Tensor | None,
        parts: int,
    ) -> Iterator[slice]:
        """Take the optimizer's step from ``params`` [D], like a `LocalStep`.

        With ``z'`` the parameters after the step, ``z w - d`` is ``z' + (w - 1) z``.
        """
        change = None if weight is None else (self.copied(params), weight - 1)
        self.step(g, params)
        self.vector.bind(params)
        buffers.clear()
        buffers.update(self.buffers(params))
        for where in pieces(params):
            z = params[where]
            if change is not None:
                z.addcmul_(change[0][where], change[1])
            divide_by(z, parts)
            yield where

    def copied(self, params: Tensor) -> Tensor:
        """Return a copy of ``params`` in memory that the next call overwrites."""
        import torch

        if self.copy is None:
            self.copy = torch.empty_like(params)
        return self.copy.copy_(params)

    def step(self, g: Gradient, vector: Tensor) -> None:
        """Take the optimizer's step from the parameters in ``vector`` [D], in place."""
        self.vector.view(vector)
        parts = g if isinstance(g, list) else g.split_with_sizes(self.vector.sizes)
        self.vector.set_gradient(parts)
        if not self.skips:
            self.optimizer.step()
            self.vector.read(vector)
        for p in self.vector.parameters:
            p.grad = None

"""A module whose parameters live in one swappable vector, and operations on such vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: A gradient [D]: one vector, or a list of its consecutive parts.
Gradient: TypeAlias = "Tensor | list[Tensor]"
PIECE = 2**16  # elements; a few such pieces fit into a core's second-level cache


def in_pieces(*vectors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut all ``vectors`` [D] into slices at the same positions.

    On a CPU a slice then stays in the cache between operations.
    """
    if vectors[0].is_cuda or vectors[0].numel() <= PIECE:
        return [vectors]
    return zip(*(vector.split(PIECE) for vector in vectors), strict=True)  # type: ignore[no-untyped-call]


def pieces(vector: Tensor) -> list[slice]:
    """Return the slices that `in_pieces` cuts ``vector`` [D] into, at least one."""
    total = vector.numel()
    size = max(total, 1) if vector.is_cuda else PIECE
    return [slice(begin, min(begin + size, total)) for begin in range(0, max(total, 1), size)]


def divide_by(x: Tensor, parts: int) -> None:
    """``x <- x / parts``, in place.

    For a power of two, multiplication gives the same bits as division, at a third of the cost.
    """
    if parts.bit_count() > 1:
        x.div_(parts)
    elif parts > 1:
        x.mul_(1 / parts)


def to_device(t: Tensor, device: torch.device | str) -> Tensor:
    """Copy ``t`` from the CPU to ``device`` without waiting for the device."""
    if str(device) == "cpu":
        return t
    return t.pin_memory().to(device, non_blocking=True)


def joined(g: Gradient) -> Tensor:
    """Join the parts of a gradient into one vector [D]."""
    if not isinstance(g, list):
        return g
    import torch

    return torch.cat(g)


class FlatModule:
    """Binds a module to a parameter vector [D] and a set of buffers, without copying."""

    def __init__(self, module: nn.Module) -> None:
        from torch.nn.modules.batchnorm import _BatchNorm

        from sgp_runner.models.dropout import DrawsFromTorch

        self.module = module
        self.parameters = list(module.parameters())
        self.bound: Tensor | None = None  # the vector of the latest `bind`
        self.own = [p.data for p in self.parameters]  # initial values; `bind` does not change them
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self.layers = tuple(p.numel() for p in self.parameters)
        self.unfilled: dict[int, Tensor] | None = None  # `gathering`: parts without a gradient yet
        self.filled: dict[int, Tensor] = {}
        self.gathers = False  # whether the parameters have the hooks
        self.has_batch_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
        self.slots = [
            (m, name) for m in module.modules() for name, b in m._buffers.items() if b is not None
        ]
        self.draws = any(isinstance(m, DrawsFromTorch) for m in module.modules())
        self.seeds = [i for i, (_, name) in enumerate(self.slots) if name == "dropout_seed"]
        self.initial = [
            buffer.clone() for m, name in self.slots if (buffer := m._buffers[name]) is not None
        ]

    def vector(self) -> Tensor:
        """Copy the initial parameters into one vector [D]."""
        import torch

        return torch.cat([p.reshape(-1) for p in self.own])

    def start_from(self, vector: Tensor, buffers: Sequence[Tensor]) -> None:
        """Replace the initial parameters [D] and buffers. Raises ValueError if shapes differ."""
        shapes = [buffer.shape for buffer in self.initial]
        if vector.numel() != sum(self.layers) or [b.shape for b in buffers] != shapes:
            raise ValueError("it belongs to another model")
        self.own, self.initial = list(vector.split_with_sizes(self.layers)), list(buffers)

    def fresh_buffers(self) -> list[Tensor]:
        """Return the initial buffers: BatchNorm's running statistics, dropout seeds."""
        return [buffer.clone() for buffer in self.initial]

    def set_dropout_seed(self, buffers: Sequence[Tensor], seed: int) -> None:
        import torch

        for i in self.seeds:
            buffers[i].fill_(seed)
        if self.draws:
            torch.manual_seed(seed)

    def bind(self, vector: Tensor, buffers: Sequence[Tensor]) -> nn.Module:
        """Return the module with these parameters [D] and buffers, which it updates in place."""
        if vector is not self.bound:  # one rank binds the same vector in each step
            for p, part in zip(self.parameters, vector.split_with_sizes(self.layers), strict=True):
                p.data = part.view(p.shape)
            self.bound = vector
        for (m, name), buffer in zip(self.slots, buffers, strict=True):
            m._buffers[name] = buffer
        return self.module

    @contextmanager
    def gathering(
        self, gradient: Tensor, ready: Callable[[int], None] = lambda number: None
    ) -> Iterator[None]:
        """Move gradients into the vector [D] during backward passes, not all at the end.

        The memory of a parameter's gradient is freed as soon as it has been copied.

        ready: called with the index of a tensor each time its gradient has been added
        """
        if not self.gathers:
            for number, p in enumerate(self.parameters):
                p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self.gather, number)
                )
            self.gathers = True
        self.unfilled = dict(enumerate(gradient.split_with_sizes(self.layers)))
        self.ready = ready
        try:
            yield
            for part in self.unfilled.values():
                part.zero_()
        finally:
            self.unfilled = None
            self.filled.clear()

    def gather(self, number: int, p: Tensor) -> None:
        """Move the gradient of a parameter into the vector, if gradients are to be gathered."""
        if self.unfilled is None or p.grad is None:
            return
        if (part := self.unfilled.pop(number, None)) is not None:
            self.filled[number] = part.view(p.shape)
            self.filled[number].copy_(p.grad)
        else:  # of a further micro-batch
            self.filled[number].add_(p.grad)
        p.grad = None
        self.ready(number)

    def detach_gradient(self) -> Tensor:
        """Return the gradient [D] and remove it from the parameters."""
        import torch

        return torch.cat(self.detach_parts())

    def detach_large_parts(self) -> list[Tensor]:
        """Detach the gradient as consecutive parts; copy only gradients of small parameters."""
        import torch

        grouped = groupby(self.detach_parts(), lambda part: part.numel() > PIECE)
        return [
            part
            for is_large, group in grouped
            for part in (group if is_large else [torch.cat([*group])])
        ]

    def detach_parts(self) -> list[Tensor]:
        """Return the gradient of each parameter as a vector, and remove it from the parameter."""
        import torch

        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return [part.reshape(-1) for part in parts]


def alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return groups of indices of tensors to batch: of one shape on a GPU, singletons on a CPU."""
    groups: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault(tensor.shape if tensor.is_cuda else place, []).append(place)
    return [*groups.values()]


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors of equal shape; return a single tensor unchanged."""
    import torch

    return tensors[0] if len(tensors) == 1 else torch.stack([*tensors])


def basis(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns of ``matrix`` [m, r], by QR.

    QR does not support half precision, which is computed in float32.
    """
    import torch

    orthonormal: Tensor = torch.linalg.qr(widened(matrix)).Q
    return orthonormal.to(matrix.dtype)


def widened(tensor: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32; return others unchanged."""
    return tensor.float() if tensor.element_size() < 4 else tensor

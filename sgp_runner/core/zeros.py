"""Vectors of zeros for timing studies, which replace tensors without memory or arithmetic.

All parameters and gradients of a timing study are zero, and algorithms do not change that. Only the
last entry of a vector, such as the push-sum weight, may be nonzero. `Zeros` implements the
operations that algorithms use most. Any other operation materialises the tensor, permanently, so
results never differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any, cast

import torch
from torch import Tensor

from sgp_runner.core.state import mapped
from sgp_runner.core.zero_memory import Memory


def zeros(length: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Return a vector [length] of zeros that replaces a tensor of type ``dtype``.

    device: cpu or meta; on meta, operations that need the tensor lose its values
    """
    return cast("Tensor", Zeros(Memory(length, 0.0, dtype, device), 0, length))


class Zeros:
    """A view of ``length`` entries of a memory, from ``start``.

    ndim: 0 for a single entry of a vector, else 1. reaches: whether the view includes the last
    entry of the memory, which may be nonzero
    """

    __slots__ = ("length", "memory", "ndim", "reaches", "start")

    is_cuda = requires_grad = False

    def __init__(self, memory: Memory, start: int, length: int, ndim: int = 1) -> None:
        self.memory, self.start, self.length, self.ndim = memory, start, length, ndim
        self.reaches = start + length == memory.size and length > 0

    # Properties that need no values.

    dtype = property(lambda self: self.memory.dtype)
    device = property(lambda self: torch.device(self.memory.device))
    is_meta = property(lambda self: self.memory.device == "meta")
    nbytes = property(lambda self: self.length * self.memory.dtype.itemsize)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,) if self.ndim else ()

    @property
    def _version(self) -> int:
        memory = self.memory
        return memory.version if memory.tensor is None else memory.version + memory.tensor._version

    def numel(self) -> int:
        return self.length

    def element_size(self) -> int:
        return self.memory.dtype.itemsize

    def dim(self) -> int:
        return self.ndim

    def size(self, *dim: int) -> Any:
        return self.shape[dim[0]] if dim else self.shape

    def __len__(self) -> int:
        return len(self.shape) and self.length

    # The materialised tensor.

    def tensor(self) -> Tensor:
        """Materialise the memory, permanently; return this view of the tensor."""
        whole = self.memory.materialise()
        return whole[self.start : self.start + self.length] if self.ndim else whole[self.start]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        short = SHORT.get(function)
        if short is not None and not keywords and (outcome := short(*args)) is not None:
            return outcome
        return function(*tensors_in(args), **tensors_in(keywords or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a tensor, without materialising the memory."""
        vector: Any = self if self.memory.tensor is not None else self.clone()
        return vector.tensor().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    # New vectors.

    def clone(self) -> Any:
        memory = self.memory
        if memory.tensor is not None:
            return self.tensor().clone()
        number = memory.number if self.reaches else 0.0
        copy = Memory(self.length, number, memory.dtype, memory.device)
        return Zeros(copy, 0, self.length, self.ndim)

    def new_zeros(self, *shape: Any, **keywords: Any) -> Any:
        dtype, device = self.memory.dtype, self.memory.device
        if len(shape) == 1 and not keywords:
            (length,) = shape
            if type(length) is tuple and len(length) == 1:
                (length,) = length
            if type(length) is int:
                return Zeros(Memory(length, 0.0, dtype, device), 0, length)
        return torch.empty(0, dtype=dtype, device=device).new_zeros(*shape, **keywords)

    new_empty = new_zeros

    def new_full(self, shape: Sequence[int], value: float, **keywords: Any) -> Tensor:
        return cast("Tensor", self.new_zeros(*shape, **keywords).fill_(value))

    # Views.

    def __getitem__(self, key: Any) -> Any:
        length = self.length
        if type(key) is int and self.ndim and -length <= key < length:
            return Zeros(self.memory, self.start + key % length, 1, 0)
        if type(key) is slice and self.ndim:
            start, stop, step = key.indices(length)
            if step == 1:
                inner = stop - start
                if inner == length:
                    return self
                return Zeros(self.memory, self.start + start, inner if inner > 0 else 0)
        return self.tensor()[tensors_in(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        if type(part) is Zeros:
            part.copy_(value) if isinstance(value, Zeros | Tensor) else part.fill_(value)
        else:
            self.tensor()[tensors_in(key)] = tensors_in(value)

    def split_with_sizes(self, sizes: Iterable[int]) -> tuple[Any, ...]:
        ends = accumulate(sizes, initial=0)
        return tuple(self[start:stop] for start, stop in pairwise(ends))

    def split(self, size: int) -> tuple[Any, ...]:
        return tuple(self[start : start + size] for start in range(0, self.length, size))

    def chunk(self, count: int) -> tuple[Any, ...]:
        return self.split(max(1, -(-self.length // count)))

    # Numbers.

    @property
    def number(self) -> float:
        """The last entry."""
        memory = self.memory
        if memory.tensor is not None:
            return float(self.tensor()[-1])
        return memory.number if self.reaches else 0.0

    def item(self) -> float:
        memory = self.memory
        if self.length == 1 and memory.tensor is None:
            return memory.number if self.reaches else 0.0
        return self.tensor().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    # Arithmetic in place.

    def fits(self, other: Any) -> bool:
        """Whether ``other`` is a `Zeros` of the same shape and neither is materialised."""
        return (
            type(other) is Zeros
            and self.length == other.length
            and self.ndim == other.ndim
            and self.memory.tensor is None
            and other.memory.tensor is None
        )

    def factor(self, other: Any) -> float | None:
        """Return ``other`` as a finite factor; None if scaling needs the tensor."""
        if self.memory.tensor is not None:
            return None
        if type(other) is float or type(other) is int:
            number = self.memory.rounded(other)
        elif isinstance(other, Zeros | Tensor) and not other.ndim and other.dtype == self.dtype:
            number = other.item()
        else:
            return None
        return number if isfinite(number) else None

    def write(self, number: float) -> Zeros:
        """Count a write; set the last entry of the memory to ``number`` if this view has it."""
        memory = self.memory
        if self.reaches:
            memory.number = memory.rounded(number)
        memory.version += 1
        return self

    def adds(self, other: Any, alpha: float) -> bool:
        """Add ``alpha * other`` if the sum is also a `Zeros`; return whether it is."""
        if not self.fits(other) or not isfinite(alpha):
            return False
        memory, number = self.memory, other.memory.number if other.reaches else 0.0
        if number and not (self.reaches and abs(alpha) == 1):
            return False
        self.write(memory.number + alpha * number if number else memory.number)
        return True

    def changed(self, method: str, *args: Any, **keywords: Any) -> Zeros:
        """Apply the in-place ``method`` to the tensor; on the meta device, only count the write."""
        if self.is_meta:
            self.memory.version += 1
        else:
            getattr(self.tensor(), method)(*tensors_in(args), **tensors_in(keywords))
        return self

    def add_(self, other: Any, *, alpha: float = 1) -> Zeros:
        other = compact(other)
        return self if self.adds(other, alpha) else self.changed("add_", other, alpha=alpha)

    def sub_(self, other: Any, *, alpha: float = 1) -> Zeros:
        return self.add_(other, alpha=-alpha)

    def mul_(self, other: Any) -> Zeros:
        if (by := self.factor(other)) is None:
            return self.changed("mul_", other)
        number = self.memory.number
        return self.write(number and number * by)

    def div_(self, other: Any) -> Zeros:
        if not (by := self.factor(other)):
            return self.changed("div_", other)
        number = self.memory.number
        return self.write(number and number / by)

    def lerp_(self, end: Any, weight: Any) -> Zeros:
        end = compact(end)
        empty = self.fits(end) and not self.number and not end.number
        if empty and self.factor(weight) is not None:
            self.memory.version += 1
            return self
        return self.changed("lerp_", end, weight)

    def copy_(self, other: Any) -> Zeros:
        other = compact(other)
        if self.fits(other):
            number = other.memory.number if other.reaches else 0.0
            if self.reaches or not number:
                return self.write(number)
        return self.changed("copy_", other)

    def fill_(self, value: Any) -> Zeros:
        writable = value == 0 or (self.reaches and self.length == 1)
        if type(value) in (int, float) and writable and self.memory.tensor is None:
            return self.write(value)
        return self.changed("fill_", value)

    def zero_(self) -> Zeros:
        return self.fill_(0)

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_

    # Arithmetic that makes new vectors.

    def computed(self, method: str, *args: Any, **keywords: Any) -> Any:
        """Return the result of an elementwise ``method`` of the tensor."""
        if self.is_meta and not any(broadcasts(self, other) for other in args):
            return self.clone()
        return getattr(self.tensor(), method)(*tensors_in(args), **tensors_in(keywords))

    def add(self, other: Any, *, alpha: float = 1) -> Any:
        if self.fits(other):
            return self.clone().add_(other, alpha=alpha)
        return self.computed("add", other, alpha=alpha)

    def sub(self, other: Any, *, alpha: float = 1) -> Any:
        return self.add(other, alpha=-alpha)

    def mul(self, other: Any) -> Any:
        if self.factor(other) is not None:
            return self.clone().mul_(other)
        return self.computed("mul", other)

    def div(self, other: Any) -> Any:
        if self.factor(other):
            return self.clone().div_(other)
        return self.computed("div", other)

    __add__, __sub__, __mul__, __rmul__, __truediv__ = add, sub, mul, mul, div


def broadcasts(vector: Zeros, other: Any) -> bool:
    """Return whether broadcasting with ``other`` may change the shape of an elementwise result."""
    return isinstance(other, Zeros | Tensor) and bool(other.ndim) and other.shape != vector.shape


def tensors_in(value: Any) -> Any:
    """Return ``value`` with every `Zeros` materialised, also inside containers."""
    return value.tensor() if isinstance(value, Zeros) else mapped(tensors_in, value)


def compact(value: Any) -> Any:
    """Return a tensor [n], such as a checkpoint's, as `Zeros` if only its last entry is nonzero.

    Return any other value unchanged.
    """
    if not isinstance(value, Tensor) or value.ndim != 1 or not value.numel():
        return value
    if value.is_cuda or value.is_meta or value[:-1].any():
        return value
    return Zeros(Memory(value.numel(), value[-1].item(), value.dtype, "cpu"), 0, value.numel())


def like(vector: Zeros) -> Tensor | None:
    return vector.new_zeros(vector.length) if vector.ndim else None


def joined(parts: Sequence[Any]) -> Tensor | None:
    """Concatenate `Zeros` if only the last may end in a nonzero number; else return None."""
    *before, last = parts
    if any(type(x) is not Zeros or not x.ndim or x.memory.tensor is not None for x in parts):
        return None
    if any(part.number for part in before):
        return None
    length, of = sum(part.length for part in parts), last.memory
    memory = Memory(length, last.number, of.dtype, of.device)
    return cast("Tensor", Zeros(memory, 0, memory.size))


SHORT: dict[Any, Callable[..., Any]] = {
    torch.zeros_like: like,
    torch.empty_like: like,
    torch.cat: joined,
}

DELEGATED = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__neg__", "__abs__"),
    *("__radd__", "__rsub__", "__rtruediv__", "__pow__", "__rpow__", "__matmul__", "__rmatmul__"),
    *("__floordiv__", "__mod__", "__bool__", "__iter__", "__format__", "__repr__"),
)


ELEMENTWISE = ("abs", "sign", "sqrt", "lerp", "addcmul", "addcdiv", "sqrt_", "addcmul_", "addcdiv_")


def elementwise(name: str) -> Callable[..., Any]:
    """Return a method that calls ``name`` of the materialised tensor, if it has values."""
    call = Zeros.changed if name.endswith("_") else Zeros.computed
    return lambda self, *args, **keywords: call(self, name, *args, **keywords)


def delegated(name: str) -> Callable[..., Any]:
    """Return a method that calls ``name`` of the materialised tensor."""

    def method(self: Zeros, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*tensors_in(args))

    return method


def looked_up(name: str) -> property:
    """Return a property that reads attribute or method ``name`` of the materialised tensor."""
    return property(lambda self: getattr(self.tensor(), name))


for _name in ELEMENTWISE:
    setattr(Zeros, _name, elementwise(_name))
for _name in DELEGATED:
    setattr(Zeros, _name, delegated(_name))
# `__getattr__` instead would make every attribute lookup three times as slow.
for _name in ("__array__", *(name for name in dir(Tensor) if not name.startswith("__"))):
    if not hasattr(Zeros, _name):
        setattr(Zeros, _name, looked_up(_name))

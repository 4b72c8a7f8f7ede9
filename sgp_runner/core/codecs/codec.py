"""The interface of codecs, which encode a vector [n] that consists of tensors of known shapes.

A message is a contiguous tensor: of a torch type if one suffices, else of bytes. Scales and
chunks are per tensor. All codecs but `Identity` are biased: an algorithm either sends the error
later (error feedback) or documents that it does not. Most codecs cannot encode infinity or NaN;
these values stop the run as diverged (`check_finite`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.parts import Cut
from sgp_runner.utils.errors import NotFinite

if TYPE_CHECKING:
    from torch import Tensor


LARGEST = 1e18  # codecs compute in float32, where squares of larger numbers overflow
Shape: TypeAlias = tuple[int, ...]
Check: TypeAlias = "Callable[[], None]"  # raises NotFinite; waits for the device


class Codec:
    """A frozen dataclass that encodes and decodes.

    In a timing study, vectors have no values; their messages have the right length but no values.
    """

    name: ClassVar[str]
    dtype: ClassVar[str | None] = "uint8"  # type of a message; None: type of the vector
    # Where a vector may be cut so that its parts are decoded as the whole is; None: nowhere.
    cut: ClassVar[Cut | None] = None

    def encode(
        self, x: Tensor, shapes: Shapes, seed: int, later: Callable[[Check], None] | None = None
    ) -> Tensor:
        """Return the message of ``x`` [n]; a random codec draws from ``seed``, known to receivers.

        Raises NotFinite, or passes the check to ``later``, like `check_finite`.
        """
        import torch

        if x.is_meta or not shapes:
            dtype = None if self.dtype is None else getattr(torch, self.dtype)
            return x.new_empty(self.length([*shapes.values()]) if shapes else 0, dtype=dtype)
        check_finite(x, shapes, later=later)
        return self.to_message(x, [*shapes.values()], seed)

    def decode(self, message: Tensor, shapes: Shapes, like: Tensor, seed: int) -> Tensor:
        """Return the vector [n], or its coefficients [n], in the type of the tensor ``like``."""
        if like.is_meta or not shapes:
            return like.new_empty(numel([*shapes.values()]))
        return self.from_message(message, [*shapes.values()], like, seed)

    def transform_back(self, coefficients: Tensor, shapes: Shapes) -> Tensor:
        """Return the vector [n] that has the coefficients [n] returned by `decode`."""
        return coefficients

    @abstractmethod
    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor: ...

    @abstractmethod
    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor: ...

    def length(self, shapes: Sequence[Shape]) -> int:
        """Return the number of entries of a message; by default the length of the vector."""
        return numel(shapes)

    def message_lengths(self, shapes: Shapes) -> list[int]:
        """Return the lengths of messages that depend on the shapes of the model's tensors."""
        return [self.length([*shapes.values()])]

    def work(self, shapes: Sequence[Shape]) -> int:
        """Return how many numbers are coded for a vector of these shapes, each in equal time."""
        return numel(shapes)


def check_finite(
    x: Tensor, shapes: Shapes, begin: int = 0, later: Callable[[Check], None] | None = None
) -> None:
    """Raise NotFinite with the tensor's name if a number in ``x`` [n] is too large or not finite.

    x: the entries, from ``begin`` on, of a vector that consists of tensors of ``shapes``
    later: receives the check of a vector on a GPU, which has to wait for the device. Until it runs,
        other ranks may fail because of the same numbers.
    """
    if x.is_meta or not x.numel():
        return
    if later is not None and x.is_cuda:
        first = (~(x.abs() <= LARGEST)).byte().argmax()  # 0 if there is none
        value = x.index_select(0, first[None])
        later(lambda: check_number(float(value), lambda: int(first), shapes, begin))
    elif not float(x.abs().max()) <= LARGEST:
        place = int((~(x.abs() <= LARGEST)).nonzero()[0])
        check_number(float(x[place]), lambda: place, shapes, begin)


def check_number(value: float, place: Callable[[], int], shapes: Shapes, begin: int) -> None:
    """Raise NotFinite if ``value``, at ``place`` of a vector, is not finite or too large."""
    if abs(value) <= LARGEST:
        return
    first = begin + place()
    ends = zip(shapes, accumulate(map(prod, shapes.values())), strict=True)
    name = next(name for name, end in ends if first < end)
    raise NotFinite(f"its message has {value:g} in the tensor {name}")


def tensors_in(x: Tensor, shapes: Sequence[Shape]) -> Sequence[Tensor]:
    """Return the tensors that make up ``x``, each as a vector."""
    return x.split_with_sizes([prod(shape) for shape in shapes])


def numel(shapes: Sequence[Shape]) -> int:
    """Return the length of a vector that consists of tensors of these shapes."""
    return sum(map(prod, shapes))

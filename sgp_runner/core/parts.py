"""Parts of the parameters: each device of a node holds one, together with its state.

A worker with divided state has vectors of the length of its part, and `PartShapes` as the shapes of
its tensors. Elementwise operations need no further changes. An operation that reduces a vector sums
the results of all devices (`norm`), and a codec or optimizer that needs whole tensors gets parts
that are cut between tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sgp_runner.utils.shard import Shard

if TYPE_CHECKING:
    from torch import Tensor

#: Where parts may end: anywhere, at multiples of `PART_MULTIPLE`, or between two tensors.
Cut: TypeAlias = Literal["elements", "tensors"]
PART_MULTIPLE = 128  # elements of a part, which is aligned to 16 bytes in any type


class Devices(Protocol):
    """The devices of a node, which make the same calls in the same order."""

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of all devices' ``x`` []."""

    def gathered(self, part: Tensor) -> Tensor:
        """Return the vector [D] that consists of all devices' ``part``."""


class PartShapes(dict[str, tuple[int, ...]]):
    """The shapes of the tensors and pieces of tensors in a device's part.

    A piece of a tensor of two or more dimensions is a one-column matrix, so that weight decay
    applies to it as to the whole tensor.

    whole: shapes of all tensors that make up the parameters [D]
    where: slice of the parameters that is this part
    """

    def __init__(self, whole: Mapping[str, tuple[int, ...]], where: slice, devices: Devices):
        self.whole, self.where, self.devices = whole, where, devices
        end = 0
        for name, shape in whole.items():
            begin, end = end, end + prod(shape)
            span = self.inside(slice(begin, end))
            if length := span.stop - span.start:
                self[name] = piece(shape, length)

    def inside(self, span: slice) -> slice:
        """Return the slice of this part that a ``span`` of the parameters covers; empty if none."""
        first, last = self.where.start, self.where.stop
        begin, end = (min(max(edge, first), last) - first for edge in (span.start, span.stop))
        return slice(begin, end)


def piece(shape: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return the shape of ``length`` consecutive elements of a tensor."""
    if length == prod(shape):
        return shape
    return (length, 1) if len(shape) > 1 else (length,)


def cut(shapes: Mapping[str, tuple[int, ...]], devices: int, at: Cut) -> list[slice]:
    """Return consecutive parts of the parameters [D], one per device; some may be empty.

    If parts end between tensors, a tensor belongs to the device in whose equal share it begins.
    """
    sizes = list(map(prod, shapes.values()))
    total = sum(sizes)
    if at == "elements":
        return [Shard(device, devices, PART_MULTIPLE).of(total) for device in range(devices)]
    owned = [0] * devices
    for begin, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        owned[begin * devices // total] += size
    ends = [0, *accumulate(owned)]
    return [slice(ends[device], ends[device + 1]) for device in range(devices)]


def norm(x: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Return the norm of a vector; ``x`` is this worker's part of it, or all of it."""
    if isinstance(shapes, PartShapes):
        return shapes.devices.total(x.square().sum()).sqrt()
    length: Tensor = x.norm()
    return length

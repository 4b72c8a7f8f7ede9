"""Fragments of a model, which are exchanged one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from sgp_runner.core.flat import joined
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.parts import PartShapes

if TYPE_CHECKING:
    from torch import Tensor


BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")  # in the name of a tensor of a transformer block


@dataclass(frozen=True)
class Fragment:
    """A subset of the model's tensors.

    spans: slices of these tensors in the parameters [D]
    shapes: shapes of these tensors, by name
    """

    spans: Sequence[slice]
    shapes: Shapes

    def of(self, x: Tensor) -> Tensor:
        """Return a copy of the fragment [n] of ``x`` [D]."""
        if x.is_meta:  # a timing study without values
            return x.new_empty(sum(span.stop - span.start for span in self.spans))
        return joined([x[span] for span in self.spans] or [x[:0]])

    @contextmanager
    def inside(self, *vectors: Tensor) -> Iterator[list[Tensor]]:
        """Yield the fragment [n] of each of ``vectors`` [D]; write them back at the end."""
        parts = [self.of(x) for x in vectors]
        yield parts
        sizes = [span.stop - span.start for span in self.spans]
        for x, part in zip(vectors, parts, strict=True):
            if x.is_meta:
                continue
            for span, values in zip(self.spans, part.split_with_sizes(sizes), strict=True):
                x[span] = values

    def inside_part(self, part: PartShapes) -> Fragment:
        """Return the intersection of this fragment with a device's part of the parameters."""
        spans = [part.inside(span) for span in self.spans]
        names = [name for name in part if name in self.shapes]
        return Fragment(
            [span for span in spans if span.stop > span.start], {name: part[name] for name in names}
        )


def fragments_of(shapes: Shapes, blocks: int, pattern: str, count: int) -> list[Fragment]:
    """Return the fragments of a model.

    A fragment has ``blocks`` transformer blocks; all tensors outside blocks form one more fragment.
    A model without blocks is cut into ``count`` runs of tensors of nearly equal size. If ``shapes``
    are those of a device's part, return that part of each of the model's fragments.
    """
    if isinstance(shapes, PartShapes):
        whole = fragments_of(shapes.whole, blocks, pattern, count)
        return [fragment.inside_part(shapes) for fragment in whole]
    numbers = [match and int(match[1]) for match in map(BLOCK.search, shapes)]
    last = max((number for number in numbers if number is not None), default=-1)
    ends = list(accumulate(map(prod, shapes.values())))
    if last < 0:
        owners = [min(count - 1, (end - 1) * count // ends[-1]) for end in ends]
    else:
        groups = -(-(last + 1) // blocks)
        owners = [
            groups if n is None else n % groups if pattern == "strided" else n // blocks
            for n in numbers
        ]
    tensors = list(zip(owners, shapes.items(), ends, strict=True))
    return [
        Fragment(
            [slice(end - prod(shape), end) for of, (_, shape), end in tensors if of == owner],
            {name: shape for of, (name, shape), _ in tensors if of == owner},
        )
        for owner in sorted(set(owners))
    ]

"""The memory of a vector of zeros (`sgp_runner.core.zeros`)."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

SINGLE = array("f", [0.0])  # rounds a stored number to float32


class Memory:
    """The state that all views of a vector share.

    number: the last entry; all other entries are zero. dtype: float32 or float64. device: cpu or
    meta. version: number of writes. tensor: the materialised vector, or None before an operation
    needs it.
    """

    __slots__ = ("device", "dtype", "number", "size", "tensor", "version")

    def __init__(self, size: int, number: float, dtype: torch.dtype, device: str) -> None:
        self.size, self.number, self.dtype, self.device = size, number, dtype, device
        self.version = 0
        self.tensor: Tensor | None = None

    def rounded(self, number: float) -> float:
        if self.dtype is not torch.float32:
            return float(number)
        SINGLE[0] = number
        return SINGLE[0]

    def materialise(self) -> Tensor:
        """Return the tensor with the same entries; the first call creates it."""
        if self.tensor is None:
            self.tensor = torch.zeros(self.size, dtype=self.dtype, device=self.device)
            if self.number:
                self.tensor[-1] = self.number
            self.version -= self.tensor._version
        return self.tensor

"""PyTorch's fused SGD kernel for vectors on a CPU, which reads and writes each number once.

The kernel rounds once where two operations round twice, and the last few numbers of a call may
differ in the last bit from those of a longer call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def has_kernel(vector: Tensor) -> bool:
    """Return whether the kernel supports ``vector``.

    Half precision is excluded because its results depend on the number of threads.
    """
    import torch

    return (
        type(vector) is torch.Tensor
        and vector.device.type == "cpu"
        and vector.dtype in (torch.float32, torch.float64)
        and hasattr(torch, "_fused_sgd_")
    )


def sgd_step(
    z: Tensor,
    g: Tensor,
    v: Tensor | None,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> None:
    """Take an SGD step from ``z`` in place, like `torch.optim.SGD(fused=True)`.

    v: momentum buffer, if any
    """
    import torch

    torch._fused_sgd_(
        [z],
        [g],
        [] if v is None else [v],
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )


def add_and_divide(x: Tensor, message: Tensor, weight: float) -> None:
    """``x <- (x + message) / w`` in place: a step ``-1 / w`` along ``message + (1 - w) x``."""
    sgd_step(x, message, None, -1 / weight, weight_decay=1 - weight)

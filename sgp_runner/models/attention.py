"""The kernels of attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention_kernels(x: Tensor) -> AbstractContextManager[None]:
    """Return the context for attention on ``x``: fused kernels, but on a GPU and outside vmap only.

    They have no batching rule, and on a CPU all attention has the results of one kernel.
    """
    fused = x.device.type != "cpu" and (
        torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )
    return nullcontext() if fused else sdpa_kernel(SDPBackend.MATH)

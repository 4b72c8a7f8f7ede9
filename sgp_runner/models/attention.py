"""Blocks of Transformers: their kernels of attention, and activations that are recomputed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from sgp_runner.models.dropout import is_alone


def attention_kernels(x: Tensor) -> AbstractContextManager[None]:
    """Return the context for attention on ``x``: fused kernels only on a GPU and outside vmap.

    Fused kernels have no batching rule. On a CPU one kernel computes all attention, inside and
    outside vmap.
    """
    fused = x.device.type != "cpu" and is_alone(x)
    return nullcontext() if fused else sdpa_kernel(SDPBackend.MATH)


def call(block: nn.Module, x: Tensor, *more: Any, **options: Any) -> Any:
    """Return the output of a block with attention."""
    with attention_kernels(x):
        return block(x, *more, **options)


def call_checkpointed(block: nn.Module, x: Tensor, *more: Any, **options: Any) -> Any:
    """Return what `call` returns; the backward pass computes the activations of the block again.

    Source: Chen et al. 2016, Training deep nets with sublinear memory cost.
    """
    if not (block.training and torch.is_grad_enabled()):
        return call(block, x, *more, **options)
    return checkpoint(call, block, x, *more, use_reentrant=False, **options)

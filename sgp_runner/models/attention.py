"""Transformer blocks: attention kernels and activation checkpointing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from sgp_runner.models.dropout import is_alone


def attention_kernels(x: Tensor) -> AbstractContextManager[None]:
    """Return the context for attention on ``x``: fused kernels on a GPU outside vmap, else none.

    Fused kernels have no batching rule. On a CPU the same kernel is used inside and outside vmap.
    """
    fused = x.device.type != "cpu" and is_alone(x)
    return nullcontext() if fused else sdpa_kernel(SDPBackend.MATH)


def call(block: nn.Module, x: Tensor, *more: Any, **options: Any) -> Any:
    """Return the output of an attention block."""
    with attention_kernels(x):
        return block(x, *more, **options)


def call_checkpointed(block: nn.Module, x: Tensor, *more: Any, **options: Any) -> Any:
    """Return the result of `call`; the backward pass recomputes the block's activations.

    Source: Chen et al. 2016, Training deep nets with sublinear memory cost.
    """
    if not (block.training and torch.is_grad_enabled()):
        return call(block, x, *more, **options)
    return checkpoint(call, block, x, *more, use_reentrant=False, **options)

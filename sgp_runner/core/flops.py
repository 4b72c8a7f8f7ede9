"""Floating-point operations of a model, counted in one gradient of copied parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sgp_runner.core.problem import Problem

# Packages whose modules do not change in a forward pass for evaluation. Fairseq's do, and a plug-in
# may: counting would change the results of the run.
WITHOUT_STATE = {"torch", "torchvision", "sgp_runner"}


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations with the formulas of `torch.utils.flop_counter`.

    `FlopCounterMode` counts the same, but always imports PyTorch's compiler.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def flops_per_sample(problem: Problem, rank: int) -> float | None:
    """Return the floating-point operations per sample of worker ``rank``, forward and backward.

    Only matrix products and convolutions count; a multiply-add is two operations. Padded texts
    count at the lengths of the worker's first batch. Returns None if the model has no such
    operations, cannot be computed in this way, or has modules from packages outside
    `WITHOUT_STATE`. Call this before the first gradient, because the module's parameters are
    swapped during the count.

    Large models are computed on tensors without values. This imports PyTorch's compiler, which
    takes seconds; a gradient of a small model takes less.
    """
    kinds = {type(module).__module__.partition(".")[0] for module in problem.flat.module.modules()}
    if not kinds <= WITHOUT_STATE:
        return None
    without_values = problem.is_large or problem.compute.device != "cpu"

    def substitute(tensor: Tensor) -> Tensor:
        new = torch.empty_like(tensor, device="meta") if without_values else tensor.clone()
        return new.detach().requires_grad_(tensor.requires_grad)

    module = problem.flat.module
    inputs, targets = problem.dataset.train.batch(*problem.request(rank, 0))
    named = {name: substitute(p) for name, p in module.named_parameters()}
    named |= {name: substitute(buffer) for name, buffer in module.named_buffers()}
    module.eval()  # dropout would draw random numbers
    try:
        with FlopCount() as count:
            outputs = functional_call(module, named, tuple(map(substitute, inputs)))
            problem.dataset.task.loss(outputs, substitute(targets)).backward()  # type: ignore[no-untyped-call]
    except Exception:  # of any model
        return None
    finally:
        module.train()
    return count.total / len(targets) or None

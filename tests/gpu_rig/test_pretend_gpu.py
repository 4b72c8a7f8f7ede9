"""The pretend GPU finds seeded bugs, and only these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_rig.pretend_gpu import DEVICE, DeviceMismatch, Log, pretend_gpu, values
from torch import Tensor, nn


def written(*lines: str) -> Callable[[Tensor], Any]:
    """A function of a tensor x with these lines, the first of which is line 2 of bug.py."""
    source = "\n    ".join(["def function(x, torch):", *lines])
    names: dict[str, Any] = {}
    exec(compile(source, "/any/sgp_runner/core/bug.py", "exec"), names)
    return lambda x: names["function"](x, torch)


def log_of(*lines: str) -> Log:
    with pretend_gpu() as log:
        x = torch.arange(6.0, device=DEVICE)
        log.clear()
        written(*lines)(x)
    return log


@pytest.mark.parametrize(
    "line",
    [
        "x + torch.ones(6)",
        "x.add_(torch.ones(6))",
        "torch.ones(6).add_(x)",
        "torch.cat([x, torch.ones(1)])",
        "torch.bucketize(x, torch.arange(3.0))",
        "x.index_add_(0, torch.arange(6), x)",
        "torch.arange(6.0)[x.long()]",
        "x[:2] = x[torch.arange(2)] + torch.ones(2)",
        "torch.mul(x, 2, out=torch.empty(6))",
    ],
)
def test_tensors_of_two_devices_are_refused(line: str) -> None:
    with pytest.raises(DeviceMismatch, match=r" at core/bug\.py:2 function: pretend:0 and cpu"):
        log_of(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x[0].item()", "scalar read"),
        ("float(x.sum())", "scalar read"),
        ("1 if x[0] > 0 else 2", "scalar read"),
        ("x.tolist()", "copy to the host"),
        ("x.cpu()", "copy to the host"),
        ("torch.empty(6).copy_(x)", "copy to the host"),
        ("x[x > 2]", "boolean mask"),
        ("x[x > 2] = 0", "boolean mask"),
        ("x.masked_select(x > 2)", "boolean mask"),
        ("(x > 2).nonzero()", "boolean mask"),
        ("x[torch.tensor([0, 2])]", "index from the host"),
        ("x[[0, 2]]", "index from the host"),
        ("x[[0, 2]] = 1", "index from the host"),
        ("x.copy_(torch.ones(6))", "copy from pageable memory"),
        ("torch.ones(6).to(x.device)", "copy from pageable memory"),
        ("torch.ones(6).to(x.device, non_blocking=True)", "copy from pageable memory"),
        ("torch.ones(6).pin_memory().to(x.device)", "copy from pageable memory"),
        ("x.new_tensor([1.0, 2.0])", "copy from pageable memory"),
        ("torch.tensor(1.0, device=x.device)", "copy from pageable memory"),
        ("x.long().bincount()", "bincount"),
        ("torch.equal(x, x)", "equal"),
        ("torch.linalg.inv(x[:4].view(2, 2) + 1)", "check of a factorisation"),
    ],
)
def test_a_wait_of_the_host_is_noted_with_its_line(line: str, why: str) -> None:
    assert log_of("y = x + 1", line).syncs == {(why, "core/bug.py:3 function"): 1}


@pytest.mark.parametrize(
    "line",
    [
        "x.add_(1).mul_(torch.tensor(2.0))",
        "x[-1] = 1",
        "x[1:3] = x[3:5]",
        "x[torch.arange(3, device=x.device)]",
        "x.index_fill_(0, torch.arange(3, device=x.device), 1.0)",
        "torch.where(x > 2, x, 0.0)",
        "x.clamp(min=1e-9)",
        "x.new_full((3,), 2.0)",
        "torch.ones(6).pin_memory().to(x.device, non_blocking=True)",
        "x.to(torch.float64)",
        "x.topk(2)",
        "torch.linalg.qr(x.view(2, 3))",
    ],
)
def test_what_does_not_wait_is_not_noted(line: str) -> None:
    log = log_of(line)
    assert log.syncs == {} and log.launches["core/bug.py:2 function"] > 0


def test_kernels_are_counted_by_line_and_views_are_free() -> None:
    log = log_of("y = x + 1", "z = (y * x).view(2, 3)[0]", "return z.unsqueeze(0).exp_()")
    assert log.launches == {
        "core/bug.py:2 function": 1,
        "core/bug.py:3 function": 1,
        "core/bug.py:4 function": 1,
    }


def test_sums_without_a_fixed_order_are_noted() -> None:
    log = log_of("i = x.long()", "i.index_add(0, i, i)", "x.index_add_(0, i, x + 1)")
    assert [(line, n) for (_, line), n in log.unordered.items()] == [("core/bug.py:4 function", 1)]


def test_values_gradients_and_the_device_are_real() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    model(x).square().sum().backward()
    with pretend_gpu() as log:
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        other = other.double().to(DEVICE)
        for mine, its in zip(other.parameters(), model.parameters(), strict=True):
            mine.data = its.detach().to(DEVICE)
        log.clear()
        loss = other(x.pin_memory().to(DEVICE, non_blocking=True)).square().sum()
        loss.backward()
        assert log.syncs == {} and sum(log.launches.values()) > 10
        assert loss.is_cuda and loss.device == DEVICE and not x.is_cuda
    for mine, its in zip(other.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None
        assert torch.equal(values(mine.grad), its.grad)
    assert torch.equal(values(other[1].running_mean), model[1].running_mean)

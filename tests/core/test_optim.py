"""Local optimizers equal PyTorch's; schedules have literal values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from helpers.refusals import refusal
from pytest import approx
from torch import nn

from sgp_runner.core import flat
from sgp_runner.core.flat import PIECE, FlatModule, in_pieces
from sgp_runner.core.optim import (
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    Horizon,
    InverseSqrt,
    LocalStep,
    Schedule,
    Steps,
    WarmupCosine,
    local_step,
    lr_at,
)
from sgp_runner.core.optim.muon import Muon
from sgp_runner.core.optim.schedules import ends_with_run
from sgp_runner.core.optim.wrapped import ParameterVector, WrappedOptimizer
from sgp_runner.core.push_sum import descend, descending, fold

# Goyal et al.: 8,192 images per step, 156 steps per epoch, 90 epochs.
GOYAL = Horizon(epochs=90, steps_per_epoch=156, nodes=32, global_batch=8192)


def test_a_long_vector_is_worked_on_in_pieces_and_the_bits_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, g = torch.randn(2, 2 * PIECE + 37, generator=torch.Generator().manual_seed(0))
    outcomes = []
    for piece in (PIECE, len(start)):
        monkeypatch.setattr(flat, "PIECE", piece)
        assert len(list(in_pieces(start))) == (3 if piece == PIECE else 1)
        for optim in (
            SGD(Constant(), weight_decay=0.02),
            SGD(Constant(), nesterov=False),
            SGD(Constant(), momentum=0.0),
        ):
            buffers = optim.buffers(start)
            steps = [
                optim.direction(g.clone(), start, buffers, 0.1, {"x": (len(start),)})
                for _ in range(2)
            ]
            outcomes.append([*steps, *buffers.values()])
        weighted = torch.cat([start, torch.tensor([0.75])])
        fold(weighted, [weighted.roll(1)])
        outcomes.append([weighted])
    whole, pieces = outcomes[len(outcomes) // 2 :], outcomes[: len(outcomes) // 2]
    assert all(
        torch.equal(a, b)
        for one, other in zip(whole, pieces, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("optim", [SGD(Constant(), weight_decay=0.02), Adam(Constant())])
def test_the_step_of_a_gradient_in_parts_has_the_bits_of_whole_vectors(optim: SGD | Adam) -> None:
    """The kernel of SGD computes 16 numbers at a time, and a rest of less in another way."""
    start, g = torch.randn(2, 3 * PIECE, generator=torch.Generator().manual_seed(0))
    outcomes = []
    for sizes in ([3 * PIECE], [PIECE + 48, 16, 2 * PIECE - 64]):
        buffers, x = optim.buffers(start), torch.cat([start, torch.tensor([0.75])])
        for _ in range(2):
            parts = [part.clone() for part in g.split(sizes)]
            descend(x, local_step(optim, parts, x[:-1], buffers, 0.1, {"x": (len(start),)}))
            assert x[-1] == 0.75
        outcomes.append([x, *buffers.values()])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


RATES = {
    "plain": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "decay": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.02},
    "momentum": {"momentum": 0.9, "nesterov": False, "weight_decay": 0.02},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
}


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_a_step_of_sgd_has_the_bits_of_pytorchs_fused_kernel(rates: dict[str, Any]) -> None:
    x, *gradients = torch.randn(4, PIECE + 64, generator=torch.Generator().manual_seed(0))
    parameter, ours = x.clone().requires_grad_(), SGD(Constant(), lr=0.1, **rates)
    theirs, buffers = torch.optim.SGD([parameter], 0.1, fused=True, **rates), ours.buffers(x)
    for g in gradients:
        parameter.grad, before = g.clone(), g.clone()
        theirs.step()
        descend_from(x, local_step(ours, g, x, buffers, 0.1, {}))
        assert torch.equal(x, parameter.detach()) and torch.equal(g, before)


def descend_from(x: torch.Tensor, step: LocalStep) -> None:
    """Take a step from ``x`` [D], in pieces that cover it in order."""
    ends = [0]
    for where in step():
        assert where.start == ends[-1]
        ends.append(where.stop)
    assert ends[-1] == len(x)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_numerators_of_sgd_descend_by_the_step_at_the_model(
    rates: dict[str, Any], kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PyTorch's fused kernel or, as on devices without it, by single operations; unfused SGD
    is the reference.
    """
    if not kernel:
        monkeypatch.delattr(torch, "_fused_sgd_")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PIECE + 38, generator=generator).double()
    x[-1] = 0.6
    ours = SGD(Constant(), lr=0.1, **rates)
    buffers = ours.buffers(x[:-1])
    parameter = x[:-1].clone().requires_grad_()
    theirs = torch.optim.SGD([parameter], 0.1, foreach=False, **rates)
    for parts in (1, 2, 3):
        g = torch.randn(PIECE + 37, generator=generator).double()
        with torch.no_grad():
            parameter.copy_(x[:-1])
        parameter.grad = g.clone()
        theirs.step()
        weight = x[-1].clone()
        expected = (x[:-1] * weight - (x[:-1] - parameter.detach())) / parts
        for _ in descending(x, local_step(ours, g, x[:-1], buffers, 0.1, {}), parts):
            pass
        assert torch.allclose(x[:-1], expected, rtol=0, atol=1e-13)
        assert x[-1] == weight / parts


@pytest.mark.parametrize("weight", [1.0, 0.6])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, 0.9, dampening=0.2, weight_decay=0.02),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.02, nesterov=True, fused=True),
        lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    ],
    ids=["dampening", "fused", "AdamW"],
)
def test_an_optimizer_of_pytorch_steps_from_the_numerator_as_it_does_alone(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], weight: float
) -> None:
    """Through `take`, in place, and through the step to subtract; twice, as it has a state."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(70, 1000), nn.Linear(1000, 3)).double()
    alone = copy.deepcopy(net)
    vector, reference = ParameterVector(net), make(alone.parameters())
    optim, shapes = WrappedOptimizer(make(net.parameters()), vector), vector.shapes
    x = torch.cat([vector.joined(), torch.tensor([weight]).double()])
    vector.bind(x[:-1])
    buffers: dict[str, torch.Tensor] = {}
    for take in (True, False, True):
        z, parts = x[:-1].clone(), []
        for p, other in zip(net.parameters(), alone.parameters(), strict=True):
            g = torch.randn_like(p)
            other.data.copy_(p.data)
            other.grad = g.clone()
            parts.append(g.view(-1))
        reference.step()
        after = torch.cat([p.detach().view(-1) for p in alone.parameters()])
        with torch.no_grad():
            if take:
                descend(x, local_step(optim, parts, x[:-1], buffers, 0.1, shapes))
                assert torch.allclose(x[:-1], z * x[-1] - (z - after), rtol=0, atol=1e-13)
                x[:-1] /= x[-1]
            else:
                d = optim.direction(torch.cat(parts), x[:-1], buffers, 0.1, shapes)
                assert torch.allclose(d, z - after, rtol=0, atol=1e-13)
                assert torch.equal(x[:-1], z)
        assert vector.bound.data_ptr() == x.data_ptr() == vector.parameters[0].data_ptr()
        assert all(p.grad is None for p in vector.parameters)


def test_late_messages_are_added_and_the_sum_is_divided_by_the_weight() -> None:
    x, *messages = torch.randn(4, PIECE + 38, generator=torch.Generator().manual_seed(0)).double()
    for count in range(4):
        for weighted in (True, False):
            mixed = x.clone()
            mixed[-1] = 0.3
            for message, w in zip(messages, (0.2, 0.25, 0.1), strict=True):
                message[-1] = w
            expected = mixed + sum(messages[:count])
            weight = expected[-1].clone() if weighted else torch.tensor(1.0)
            fold(mixed, messages[:count], weighted)
            assert torch.allclose(mixed[:-1], expected[:-1] / weight, rtol=0, atol=1e-13)
            assert abs(float(mixed[-1] - weight)) < 1e-15


def test_nesterovs_step_has_the_bits_of_one_operation_after_the_other() -> None:
    x, g, v = torch.randn(3, 1037, generator=torch.Generator().manual_seed(0))
    optim, buffers = SGD(Constant(), weight_decay=0.02), {"momentum": v.clone()}
    d = g.add(x, alpha=0.02)
    v = v.mul(0.9).add(d)
    step = d.add(v, alpha=0.9).mul(0.1)
    assert torch.equal(optim.direction(g, x, buffers, 0.1, {"x": (1037,)}), step)
    assert torch.equal(buffers["momentum"], v)


def test_gradients_of_large_parameters_stay_where_they_are() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, PIECE), nn.Linear(1, 4))
    bound = FlatModule(module)
    gradients = [torch.full_like(p, k) for k, p in enumerate(module.parameters())]
    for detach in (bound.detach_large_parts, lambda: [bound.detach_gradient()]):
        for p, gradient in zip(module.parameters(), gradients, strict=True):
            p.grad = gradient
        parts = detach()
        assert torch.equal(torch.cat(parts), torch.cat([tensor.view(-1) for tensor in gradients]))
        assert len(parts) == 1 or (
            [len(part) for part in parts] == [8, 2 * PIECE, PIECE + 8]
            and parts[1].data_ptr() == gradients[2].data_ptr()
        )


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (
            SGD(Constant(), lr=0.1, momentum=0.0, weight_decay=0.0),
            lambda p: torch.optim.SGD(p, 0.1),
        ),
        (
            SGD(Constant(), lr=0.1, nesterov=False, weight_decay=0.02),
            lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.02),
        ),
        (
            SGD(Constant(), lr=0.1, weight_decay=0.02),
            lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.02, nesterov=True),
        ),
        (Adam(Constant(), lr=0.1), lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.98), 1e-8)),
        (
            Adam(Constant(), lr=0.1, weight_decay=0.02),
            lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.98), 1e-8, 0.02),
        ),
    ],
    ids=["SGD", "momentum", "Nesterov", "Adam", "Adam with decay"],
)
def test_steps_equal_pytorchs(
    ours: SGD | Adam, reference: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    parameter = x.clone().requires_grad_()
    theirs, buffers = reference([parameter]), ours.buffers(x)
    for _ in range(8):
        g = torch.randn(5, generator=generator, dtype=torch.float64)
        parameter.grad = g.clone()
        theirs.step()
        x -= ours.direction(g, x, buffers, 0.1, {"x": (5,)})
        assert torch.allclose(x, parameter.detach(), rtol=0, atol=1e-13)


def test_adamw_equals_pytorchs_with_clipping_and_decay_of_matrices_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, bias = (torch.randn(*n, generator=generator).double() for n in ((3, 2), (3,)))
    theirs = [tensor.clone().requires_grad_() for tensor in (matrix, bias)]
    groups = [
        {"params": [theirs[0]], "weight_decay": 0.1},
        {"params": [theirs[1]], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, 0.05, (0.9, 0.95), 1e-8)
    x, ours = torch.cat([matrix.reshape(-1), bias]), AdamW(Constant())
    buffers, shapes = ours.buffers(x), {"weight": (3, 2), "bias": (3,)}
    norms = []
    for step in range(8):
        g = torch.randn(9, generator=generator).double() * (0.1 if step % 2 else 1.0)
        theirs[0].grad, theirs[1].grad = g[:6].view(3, 2).clone(), g[6:].clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(theirs, 1.0)))
        reference.step()
        x -= ours.direction(g, x, buffers, 0.05, shapes)
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in theirs])
        assert torch.allclose(x, expected, rtol=0, atol=1e-13)
    assert min(norms) < 1 < max(norms)  # clipped in some steps only


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_equals_pytorchs_and_leaves_the_rest_to_adamw(
    adjust: Literal["original", "match_rms_adamw"], nesterov: bool
) -> None:
    """Matrices that are tall, wide and zero at first; an embedding, a head and a bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        **{"tall": (5, 3), "wide": (2, 4), "token_embedding": (4, 2)},
        **{"head.weight": (3, 2), "bias": (3,)},
    }
    sizes = [math.prod(shape) for shape in shapes.values()]
    x = torch.randn(sum(sizes), generator=generator).double()
    theirs = [
        values.view(shape).clone().requires_grad_()
        for values, shape in zip(x.split_with_sizes(sizes), shapes.values(), strict=True)
    ]
    decay = [
        {"params": theirs[2:4], "weight_decay": 0.2},
        {"params": theirs[4:], "weight_decay": 0},
    ]
    references = (
        torch.optim.Muon(theirs[:2], 0.05, 0.2, 0.9, nesterov, adjust_lr_fn=adjust),
        torch.optim.AdamW(decay, 0.01, (0.9, 0.95), 1e-8),
    )
    ours = Muon(*(Constant(), 0.1, 0.02, None, 0.9, nesterov, adjust), weight_decay=0.2, clip=None)
    buffers = ours.buffers(x)
    for step in range(6):
        g = torch.randn(sum(sizes), generator=generator).double()
        g[:15] *= step > 0
        for parameter, part in zip(theirs, g.split_with_sizes(sizes), strict=True):
            parameter.grad = part.view(parameter.shape).clone()
        for reference in references:
            reference.step()
        x -= ours.direction(g, x, buffers, 0.05, shapes)  # half of the peaks, 0.1 and 0.02
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in theirs])
        assert torch.allclose(x, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("epoch", "lr"),
    [
        (0, 0.1),
        (2.5, 0.1 + (3.2 - 0.1) / 2),
        (5, 3.2),
        (29.99, 3.2),
        (30, 0.32),
        (60, 0.032),
        (79.9, 0.032),
        (80, 0.0032),
        (90, 0.0032),
    ],
)
def test_goyals_recipe(epoch: float, lr: float) -> None:
    """0.1 per 256 images, warm-up from there over 5 epochs, a tenth at 30, 60 and 80."""
    assert lr_at(SGD(Steps(), lr=0.1, lr_reference_batch=256), epoch, GOYAL) == approx(lr)


TEN, TWO = Horizon(10, 1, 1, 1), Horizon(2, 10, 1, 1)  # epochs
SMALL_BATCH = Horizon(epochs=200, steps_per_epoch=10, nodes=8, global_batch=128)


@pytest.mark.parametrize(
    ("schedule", "horizon", "factors"),
    [
        (Constant(), GOYAL, {7.3: 1.0}),
        # Milestones scale with the length of the run.
        (
            Steps(),
            replace(GOYAL, epochs=270),
            {
                89.9: approx(1),
                90: approx(0.1),
                179.9: approx(0.1),
                180: approx(0.01),
                240: approx(0.001),
            },
        ),
        # A warm-up can start at one nth or at zero; a batch below the reference needs none.
        (Steps(warmup_from="one_over_n"), SMALL_BATCH, {0: 1 / 8, 2.5: approx((1 + 1 / 8) / 2)}),
        (Steps(warmup_from="zero"), SMALL_BATCH, {1: approx(0.2)}),
        (Steps(warmup_from="reference"), SMALL_BATCH, {0: 1.0}),
        (
            InverseSqrt(warmup_steps=100),
            Horizon(epochs=10, steps_per_epoch=100, nodes=4, global_batch=128),
            {
                0: approx(0.01),
                0.49: approx(0.5),
                0.99: approx(1.0),
                3.99: approx(0.5),
                8.99: approx(1 / 3),
            },
        ),
        (Cosine(0), TEN, {0: approx(1), 5: approx(0.5), 10: approx(0)}),
        (
            Cosine(2),
            TEN,
            {0: approx(0), 1: approx(0.5), 2: approx(1), 6: approx(0.5), 10: approx(0)},
        ),
        (Cosine(20), TEN, {10: 0.5}),  # a warm-up longer than the run
        # A cosine to a share of the peak.
        (
            WarmupCosine(warmup=0.2, final=0.1),
            TWO,
            {
                0: approx(0.25),
                0.1: approx(0.5),
                0.3: approx(1),
                1.1: approx(0.55),
                1.9: approx(0.1),
            },
        ),
        (WarmupCosine(0, 0), TWO, {0.9: approx(0.5)}),
        (WarmupCosine(1, 0), TWO, {0.9: approx(0.5)}),  # never leaves the warm-up
    ],
    ids=repr,
)
def test_factors_of_schedules_by_epoch(
    schedule: Schedule, horizon: Horizon, factors: dict[float, Any]
) -> None:
    assert {epoch: schedule.factor(epoch, horizon) for epoch in factors} == factors


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: SGD(Constant(), lr=0.0), "optim.lr"),
        (lambda: SGD(Constant(), lr=float("nan")), "optim.lr"),
        (lambda: Adam(Constant(), lr=float("inf")), "optim.lr"),
        (lambda: SGD(Constant(), weight_decay=-1.0), "optim.weight_decay"),
        (lambda: SGD(Constant(), momentum=1.0), "optim.momentum"),
        (lambda: Adam(Constant(), beta1=1.0), "optim.beta1"),
        (lambda: Adam(Constant(), beta2=-0.1), "optim.beta2"),
        (lambda: AdamW(Constant(), clip=0.0), "optim.clip"),
        (lambda: AdamW(Constant(), beta2=1.0), "optim.beta2"),
        (lambda: Steps(warmup_epochs=-1), "optim.schedule.warmup_epochs"),
        (lambda: Steps(decay=0.0), "optim.schedule.decay"),
        (lambda: Cosine(-1.0), "optim.schedule.warmup_epochs"),
        (lambda: InverseSqrt(0), "optim.schedule.warmup_steps"),
        (lambda: WarmupCosine(warmup=1.5), "optim.schedule.warmup"),
        (lambda: WarmupCosine(final=-0.1), "optim.schedule.final"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object], key: str) -> None:
    assert refusal(make).key == key


def test_a_schedule_with_milestones_ends_with_the_run() -> None:
    assert ends_with_run(Steps()) and ends_with_run(Cosine())
    assert not ends_with_run(Steps(milestones=())) and not ends_with_run(Constant())

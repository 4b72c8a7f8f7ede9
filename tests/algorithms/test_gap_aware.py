"""Gap-Aware ASGD and its baselines, by hand and against what they must equal."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers.recursion import STEPS
from helpers.tiny import START, D, gradient, machines, run, sgd
from torch import Tensor

from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.core import flat
from sgp_runner.simulator.engine import Gradient


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", ["server", "per_worker"])
@pytest.mark.parametrize("penalty", ["gap", "staleness", "none"])
def test_gap_aware_with_one_worker_is_plain_sgd(
    penalty: Literal["gap", "staleness", "none"],
    momentum: Literal["server", "per_worker"],
    nesterov: bool,
) -> None:
    optim = sgd(lr=0.2, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    result = run(GapAware(penalty, momentum=momentum), 1, STEPS, optim)
    plain = run(LocalSGD(None), 1, STEPS, optim).x[0]
    np.testing.assert_allclose(result.x[1], plain, rtol=0, atol=1e-12)
    assert np.array_equal(result.x[0], result.x[1])


def test_dana_with_one_worker_is_nesterovs_method() -> None:
    """Gradient at the look-ahead x - lr m v, then heavy-ball momentum; no gap, as nothing happens
    in between.
    """
    x, v = START.copy(), np.zeros(D)
    for k in range(STEPS):
        v = 0.9 * v + gradient(0, k, x - 0.2 * 0.9 * v)
        x = x - 0.2 * v
    result = run(GapAware("gap", momentum="dana"), 1, STEPS, sgd(lr=0.2, momentum=0.9))
    np.testing.assert_allclose(result.x[1], x, rtol=0, atol=1e-12)


def test_one_momentum_per_worker_with_nesterov_is_dana() -> None:
    """DANA-Slim: the server's own parameters are the look-ahead that DANA-Zero sends."""
    cluster = machines(LogNormalTime(0.5), latency=0.2)
    zero = run(
        GapAware("none", momentum="dana"), 8, STEPS, sgd(lr=0.02, momentum=0.9), cluster
    ).workers[8]
    slim = run(
        GapAware("none", momentum="per_worker"),
        8,
        STEPS,
        sgd(lr=0.02, momentum=0.9, nesterov=True),
        cluster,
    ).workers[8]
    look_ahead = zero.params - 0.02 * 0.9 * sum(zero.state["momentum"])
    assert (look_ahead - zero.params).abs().max() > 0.01
    np.testing.assert_allclose(slim.params.numpy(), look_ahead.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gap", ["parameter", "layer", "global"])
@pytest.mark.parametrize("missed", [0, 1, 7])
def test_equal_steps_in_one_direction_make_the_gap_the_staleness_plus_one(
    gap: Literal["parameter", "layer", "global"], missed: int
) -> None:
    typical = torch.tensor([0.1, 2.0, 3.0, 1e-6], dtype=torch.float64)
    gaps = GapAware(gap=gap).gap_of(-missed * typical, typical, (1, 3))
    assert torch.allclose(gaps, torch.full((4,), 1.0 + missed, dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize(
    ("gap", "gaps"),
    [
        ("parameter", [4.0, 3.0, 3.0]),
        ("layer", pytest.approx([1 + 5**0.5, 1 + 5**0.5, 3.0])),
        ("global", pytest.approx([1 + (61 / 14) ** 0.5] * 3)),
    ],
)
def test_gaps_by_hand(gap: Any, gaps: Any) -> None:
    moved, typical = torch.tensor([3.0, -4.0, 6.0]), torch.tensor([1.0, 2.0, 3.0])
    assert GapAware(gap=gap).gap_of(moved, typical, (2, 1)).tolist() == gaps


class Growing:
    """Gradients of three equal workers that make up for the gap: ``C`` times one more than the
    steps that were missed.
    """

    C = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)

    def start(self, gradient: Gradient) -> None:
        """Nothing to do."""

    def finish(self, gradient: Gradient) -> Tensor:
        return self.C * (1 + min(2, 3 * gradient.step + gradient.rank))


@pytest.mark.parametrize("gap", ["parameter", "layer", "global"])
def test_gap_aware_divides_by_the_staleness_plus_one_when_steps_are_equal(
    gap: Literal["parameter", "layer", "global"],
) -> None:
    """With hardly any momentum, so that a typical step is made of the steps that were taken, and
    these are equal.
    """
    result = run(
        GapAware(gap=gap), 3, 5, sgd(lr=0.1, momentum=1e-9), engine=lambda problem: Growing()
    )
    np.testing.assert_allclose(
        result.x[3], START - 15 * 0.1 * Growing.C.numpy(), rtol=0, atol=1e-6
    )  # G holds an epsilon of 1e-8


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_gap_aware_by_hand(momentum: float) -> None:
    """Two equal workers: their gradients arrive in turn; the second of each round is one step late.

    A typical step is made of the momentum buffer or, without momentum, of gradients as they came
    in.
    """
    optim, eps = sgd(lr=0.1, momentum=momentum, weight_decay=0.01), 1e-8
    x, v, square, sent, taken = START.copy(), np.zeros(D), np.zeros(D), [START.copy()] * 2, [0, 0]
    for k in range(8):
        i = k % 2
        raw = gradient(i, taken[i], sent[i])
        g = raw + 0.01 * x
        if k > 0:
            g = g / (1 + np.abs(x - sent[i]) / (0.1 * (np.sqrt(square / (1 - 0.999**k)) + eps)))
        v = momentum * v + g
        square = 0.999 * square + 0.001 * (v if momentum else raw) ** 2
        x = x - 0.1 * v
        sent[i], taken[i] = x.copy(), taken[i] + 1
    np.testing.assert_allclose(run(GapAware(), 2, 4, optim).x[2], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "algo",
    [GapAware(), GapAware(momentum="per_worker"), GapAware("staleness"), GapAware("none")],
    ids=str,
)
def test_a_server_takes_the_same_steps_piece_by_piece(
    algo: GapAware, monkeypatch: pytest.MonkeyPatch
) -> None:
    optim = sgd(momentum=0.9, nesterov=True, weight_decay=0.01)
    whole = run(algo, 3, 5, optim).x
    plain = sgd(momentum=0.9, weight_decay=0.01)
    dana = GapAware(momentum="dana")
    whole_dana = run(dana, 3, 5, plain).x
    monkeypatch.setattr(flat, "PIECE", 2)  # of three parameters
    np.testing.assert_array_equal(run(algo, 3, 5, optim).x, whole)
    np.testing.assert_array_equal(run(dana, 3, 5, plain).x, whole_dana)


def test_staleness_aware_by_hand() -> None:
    """Three equal workers: from the second round on every gradient has missed two steps."""
    x, sent, since, taken = START.copy(), [START.copy()] * 3, [0] * 3, [0] * 3
    for k in range(9):
        i = k % 3
        x = x - 0.1 * gradient(i, taken[i], sent[i]) / max(1, k - since[i])
        sent[i], since[i], taken[i] = x.copy(), k + 1, taken[i] + 1
    np.testing.assert_allclose(run(GapAware("staleness"), 3, 3, sgd()).x[3], x, rtol=0, atol=1e-12)


def test_golden_trace_of_gap_aware() -> None:
    """Compute times 1 and 2 s, messages 0.25 s; rank 2 is the server, whose steps are the gradients
    in their order of arrival.
    """
    assert run(GapAware(), 2, 5, cluster=machines(latency=0.25, factors={1: 2.0})).trace == [
        (1.25, 2, 0),
        (1.5, 0, 0),
        (2.25, 2, 1),
        (2.5, 1, 1),
        (2.75, 2, 2),
        (3.0, 0, 2),
        (4.25, 2, 3),
        (4.5, 0, 4),
        (4.75, 2, 4),
        (5.0, 1, 3),
        (5.75, 2, 5),
        (6.0, 0, 5),
        (7.25, 2, 6),
        (7.25, 2, 7),
        (7.5, 1, 6),
        (7.5, 0, 7),
        (8.75, 2, 8),
        (9.0, 0, 9),
        (9.75, 2, 9),
        (10.0, 1, 8),
    ]

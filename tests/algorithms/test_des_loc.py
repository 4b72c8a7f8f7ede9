"""DES-LOC, and Local Adam as its case of equal periods, against recursions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.experiments import make_experiment, summary_of
from helpers.recursion import ADAM, OPTIM, STEPS, assert_equal, same
from helpers.tiny import START, D, gradient, run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.des_loc import DESLOC
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.core.optim import AdamW, Constant

ADAMW = AdamW(Constant(), lr=0.05, weight_decay=0.0, clip=0.5)
NEVER = 10**9


@pytest.mark.parametrize("periods", [(1, 1, 1), (2, 3, 5), (4, 4, 4), (3, 9, 18), (5, 2, 1)])
def test_des_loc(periods: tuple[int, int, int]) -> None:
    """The recursion averages before a step, as the paper does."""
    states = x, u, v = [np.tile(START, (3, 1)), np.zeros((3, D)), np.zeros((3, D))]
    for t in range(STEPS):
        for state, period in zip(states, periods, strict=True):
            if t % period == 0:
                state[:] = state.mean(axis=0)
        g = np.stack([gradient(i, t, x[i]) for i in range(3)])
        u[:] = 0.9 * u + 0.1 * g
        v[:] = 0.98 * v + 0.02 * g**2
        x -= 0.05 * u / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.98 ** (t + 1))) + 1e-8)
    assert_equal(run(DESLOC(*periods), 3, STEPS, ADAM).x, np.tile(x.mean(axis=0), (3, 1)))


@pytest.mark.parametrize("optim", [ADAM, ADAMW], ids=["adam", "adamw"])
def test_des_loc_that_averages_no_moments_or_has_one_node_is_local_adam(optim: Any) -> None:
    assert same(DESLOC(5, NEVER, NEVER), LocalSGD(5), 3, optim)
    assert same(DESLOC(2, 3, 5), LocalSGD(None), 1, optim)
    assert not same(DESLOC(5, 5, 5), LocalSGD(5), 3, optim)


@pytest.mark.parametrize("period_u", [1, 2, 5, NEVER])
def test_des_loc_of_momentum_sgd_that_averages_parameters_each_step_is_ar_sgd(
    period_u: int,
) -> None:
    """The mean of the momenta takes part in the mean of the parameters in any case."""
    assert same(DESLOC(1, period_u), ARSGD(), 3, OPTIM)


def test_des_loc_of_adam_that_averages_everything_each_step_is_not_ar_sgd() -> None:
    assert not same(DESLOC(1, 1, 1), ARSGD(), 3, ADAM)


def test_des_loc_of_one_period_is_slowmo_with_averaged_buffers() -> None:
    slowmo = SlowMo(LocalSGD(None), tau=4, alpha=1.0, beta=0.0, buffers="average")
    assert same(DESLOC(4, 4, 4), slowmo, 3, ADAM)


def test_bytes_of_des_loc() -> None:
    """Two workers send each number once: 6 + 2 + 1 times in 12 steps."""
    assert DESLOC().periods == (32, 96, 192)
    sent = [worker.comm.num_bytes_sent for worker in run(DESLOC(2), 2, STEPS, ADAM).workers]
    assert sent == [8 * D * (6 + 2 + 1)] * 2


def test_volume_of_des_loc_is_the_published_one(tmp_path: Path) -> None:
    """170 times less than data-parallel training, and half of Local Adam's."""
    overrides = ("model=timing_only", "nodes=2", "cluster=ideal", "optim=adamw")
    size = ("timed_as.num_parameters=1000000", "model.sample_steps=1536")
    des_loc = ("algo=des_loc", "algo.period=256")
    sent = []
    for algo in (
        ("algo=ar_sgd",),
        des_loc,
        (*des_loc, "algo.period_u=256", "algo.period_v=256"),
    ):
        summary = summary_of(make_experiment(tmp_path, *overrides, *size, *algo))
        sent.append(summary["bytes_per_node"])
    assert sent[0] / sent[1] == pytest.approx(170.667, abs=0.001)
    assert sent[2] / sent[1] == 2

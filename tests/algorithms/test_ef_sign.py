"""EF-SignSGD against its recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import STEPS, assert_equal
from helpers.shaped import SPANS, START, D, gradient, trained
from helpers.tiny import sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.ef_sign import EFSign
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.optim import Steps

LR = 0.25  # a power of two, so that scales are multiplied without rounding


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ef_sign(n: int) -> None:
    """With a learning rate that falls, of which the error does not depend."""
    x, e = START.copy(), np.zeros((n, D))
    for t in range(STEPS):
        lr = LR if t < 4 else LR / 10
        p = lr * np.stack([gradient(i, t, x) for i in range(n)]) + e
        c = np.empty_like(p)
        for i in range(n):
            for span in SPANS.values():
                part = torch.from_numpy(p[i, span])
                s = float(part.float().abs().sum() / len(part))
                c[i, span] = np.where(part >= 0, s, -s)
        e = p - c
        x = x - c.mean(axis=0)
    optim = sgd(lr=LR, schedule=Steps((1.0,), 3.0, warmup_epochs=0))
    assert_equal(trained(EFSign(), n, STEPS, optim).x, np.tile(x, (n, 1)))


@pytest.mark.parametrize("codec", [Sign(), Sign("l2"), Sign(per="vector"), TopK(3, 3)], ids=str)
def test_ef_sign_with_a_constant_rate_is_ar_sgd_with_the_same_codec(codec: Any) -> None:
    plain = sgd(lr=LR)
    assert_equal(trained(EFSign(codec), optim=plain).x, trained(ARSGD(codec=codec), optim=plain).x)


def test_coded_steps_of_ef_sign_and_the_error_left_are_the_sum_of_mean_steps() -> None:
    result = trained(EFSign(), 3, STEPS, sgd(lr=LR))
    models = [START, *result.history[0]]
    left = np.mean([worker.state["error"].numpy() for worker in result.workers], axis=0)
    means = [np.mean([gradient(i, t, models[t]) for i in range(3)], axis=0) for t in range(STEPS)]
    assert_equal(START - models[-1] + left, LR * np.sum(means, axis=0))

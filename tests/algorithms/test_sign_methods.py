"""SignSGD with majority vote and EF-SignSGD against their recursions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import ADAM, OPTIM, STEPS, assert_equal
from helpers.shaped import SPANS, START, D, gradient, trained
from helpers.tiny import Result, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.ef_sign import EFSign
from sgp_runner.algorithms.sign_vote import SignVote
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.optim import Steps
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError

LR = 0.25  # a power of two, so that scales are multiplied without rounding


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_sign_vote(n: int, beta: float) -> None:
    x, m = START.copy(), np.zeros((n, D))
    equal = 0
    for t in range(STEPS):
        g = np.stack([gradient(i, t, x) for i in range(n)])
        m = beta * m + (1 - beta) * g
        votes = np.where(m >= 0, 1, -1).sum(axis=0)
        equal += int((votes == 0).sum())
        x = (1 - 0.01 * 0.1) * x - 0.01 * np.sign(votes)
    optim = sgd(lr=0.01, weight_decay=0.1)
    assert_equal(trained(SignVote(beta), n, STEPS, optim).x, np.tile(x, (n, 1)))
    assert (equal > 0) == (n == 2)


def test_sign_vote_of_one_node_without_momentum_is_sign_sgd() -> None:
    x = START.copy()
    for t in range(STEPS):
        x = x - 0.01 * np.sign(gradient(0, t, x))
    assert_equal(trained(SignVote(0.0), 1, STEPS, sgd(lr=0.01)).x[0], x)


def test_sign_vote_sends_one_bit_for_each_number_to_each_other_node() -> None:
    for worker in trained(SignVote(), 3, STEPS, sgd(lr=0.01)).workers:
        assert worker.comm.num_bytes_sent == STEPS * 2 * 5  # of 35 numbers


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
    models = [START]

    def note(_: Result, worker: Worker) -> None:
        if worker.rank == 0:
            models.append(worker.params.numpy().copy())

    result = trained(EFSign(), 3, STEPS, sgd(lr=LR), each_step=note)
    left = np.mean([worker.state["error"].numpy() for worker in result.workers], axis=0)
    means = [np.mean([gradient(i, t, models[t]) for i in range(3)], axis=0) for t in range(STEPS)]
    assert_equal(START - models[-1] + left, LR * np.sum(means, axis=0))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: SignVote(1.0), "algo.beta"),
        (lambda: SignVote().check(4, ADAM), "optim"),
        (lambda: SignVote().check(4, OPTIM), "optim.momentum"),
    ],
)
def test_impossible_settings_of_sign_vote_are_refused(make: Any, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert error.value.key == key

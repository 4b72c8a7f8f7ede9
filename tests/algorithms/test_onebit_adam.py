"""1-bit Adam and its coded mean, against recursions of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import make_experiment, summary_of
from helpers.onebit import Means, OneBit
from helpers.recursion import ADAM, assert_equal
from helpers.shaped import SHAPES, SPANS, START, D, gradient, trained
from helpers.tiny import STEPS

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.onebit_adam import OneBitAdam
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.two_phase import SignMean
from sgp_runner.core.optim import AdamW, Constant

ADAMW = AdamW(Constant(), lr=0.05, weight_decay=0.1, clip=0.5)
NEVER = 1e9
SIGNS = [Sign("l1"), Sign("l2"), Sign("l1", "vector"), Sign("l2", "vector")]
WARM_UP = 4  # steps, which are one epoch


def frozen_adam(n: int, mean: Any, steps: int = STEPS) -> np.ndarray:
    """The recursion of 1-bit Adam without weight decay, with ``mean`` after the warm-up."""
    x, m, v = START.copy(), np.zeros(D), np.zeros(D)
    for t in range(steps):
        g = np.stack([gradient(i, t, x) for i in range(n)])
        if t < WARM_UP:
            m = 0.9 * m + 0.1 * g.mean(axis=0)
            v = 0.98 * v + 0.02 * g.mean(axis=0) ** 2
        else:
            m = mean(0.9 * m + 0.1 * g)
        x = x - 0.05 * m / (np.sqrt(v) + 1e-8)
    return x


@pytest.mark.parametrize("codec", SIGNS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_onebit_adam(n: int, codec: Sign) -> None:
    spans = SPANS if codec.per == "tensor" else {"all": slice(0, D)}
    x = frozen_adam(n, OneBit(n, spans, codec.scale).mean)
    assert_equal(trained(OneBitAdam(codec), n, optim=ADAM).x, np.tile(x, (n, 1)))


def test_onebit_adam_without_a_codec_is_momentum_divided_by_the_root_of_a_frozen_variance() -> None:
    x = frozen_adam(3, lambda z: z.mean(axis=0))
    assert_equal(trained(OneBitAdam(Identity()), optim=ADAM).x, np.tile(x, (3, 1)))


@pytest.mark.parametrize("optim", [ADAM, ADAMW], ids=["adam", "adamw"])
def test_onebit_adam_that_only_warms_up_is_ar_sgd_with_adam(optim: Any) -> None:
    corrected = OneBitAdam(warmup_epochs=NEVER, bias_correction=True)
    assert_equal(trained(corrected, optim=optim).x, trained(ARSGD(), optim=optim).x)
    plain = trained(OneBitAdam(warmup_epochs=NEVER), optim=optim).x
    assert np.abs(plain - trained(ARSGD(), optim=optim).x).max() > 0.01


def test_weight_decay_of_onebit_adam_is_that_of_adamw_in_all_steps() -> None:
    """Gradients are clipped to almost nothing, and only matrices shrink."""
    x = trained(OneBitAdam(), optim=AdamW(Constant(), lr=0.05, weight_decay=0.1, clip=1e-30)).x
    shrunk = START * (1 - 0.05 * 0.1) ** STEPS
    for name, shape in SHAPES.items():
        expected = shrunk if len(shape) > 1 else START
        np.testing.assert_allclose(x[0, SPANS[name]], expected[SPANS[name]], rtol=1e-9)


@pytest.mark.parametrize("codec", SIGNS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_means_by_signs_and_the_errors_left_are_the_sum_of_exact_means(n: int, codec: Sign) -> None:
    workers = trained(Means(codec), n, 40).workers
    returned, given, error = (
        np.mean([worker.state[name].numpy() for worker in workers], axis=0)
        for name in ("returned", "given", "error")
    )
    rows = torch.stack([worker.state["served_error"] for worker in workers])
    served = SignMean(workers[0], codec).vector(rows).numpy()
    assert_equal(returned + error + served, given)
    assert np.abs(error).max() > 0
    assert (np.abs(served).max() > 0) == (n > 1)  # the mean of one worker is coded already


@pytest.mark.parametrize("codec", SIGNS, ids=str)
def test_all_workers_have_the_bytes_of_the_same_mean_by_signs(codec: Sign) -> None:
    workers = trained(Means(codec)).workers
    for worker in workers:
        assert torch.equal(worker.state["returned"], workers[0].state["returned"])
    assert np.array_equal(*np.unique(trained(OneBitAdam(codec), optim=ADAM).x, axis=0)[[0, -1]])


@pytest.mark.parametrize(
    ("codec", "chunk"),
    [
        # Of three workers: scales, and chunks of 8 of 24, of 8 of 2 and of 8 of 9 numbers.
        (Sign(), 3 * 4 + 1 + 1 + 1),
        (Sign(per="vector"), 4 + 2),  # 16 of 35
    ],
    ids=str,
)
def test_bytes_of_a_mean_by_signs(codec: Sign, chunk: int) -> None:
    """A worker sends two chunks and their scales in each of two phases."""
    for worker in trained(Means(codec)).workers:
        assert worker.comm.num_bytes_sent == STEPS * 2 * 2 * chunk
        assert worker.comm.num_sent == STEPS * 2
    full = 4 / 3 * 8 * D * WARM_UP  # all-reduces of three workers, in float64
    sent = trained(OneBitAdam(codec), optim=ADAM).workers[0].comm.num_bytes_sent
    assert sent == WARM_UP * round(full / WARM_UP) + (STEPS - WARM_UP) * 2 * 2 * chunk


def test_volume_of_onebit_adam_is_the_published_one(tmp_path: Path) -> None:
    """BERT-Large: 23,000 of 152,000 steps of warm-up, and 16 bits per number, a fifth of Adam's."""
    sent = []
    overrides = ("model=timing_only", "nodes=4", "cluster=ideal", "optim=adam", "epochs=15.2")
    size = ("timed_as.num_parameters=4096000", "timed_as.bytes_per_parameter=2")
    size += ("model.sample_steps=152",)
    for algo in (("algo=ar_sgd",), ("algo=onebit_adam", "algo.warmup_epochs=2.3")):
        summary = summary_of(make_experiment(tmp_path, *overrides, *size, *algo))
        sent.append(summary["bytes_per_node"])
    w = 23_000 / 152_000
    assert 1 / (w + (1 - w) / 16) == pytest.approx(4.89, abs=0.005)
    assert sent[0] / sent[1] == pytest.approx(4.89, abs=0.02)

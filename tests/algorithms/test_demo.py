"""DeMo against the recursion of its paper, and its cosine transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import ADAM, STEPS, assert_equal
from helpers.refusals import refusal
from helpers.tiny import START, gradient, run, sgd

from sgp_runner.algorithms.demo import DeMo
from sgp_runner.core.codecs.cosine import Chunks, CosineTopK, cosines


def test_demo_with_all_coefficients_takes_the_sign_of_the_mean_gradient() -> None:
    x = START.copy()
    for k in range(STEPS):
        x = x - 0.1 * np.sign(np.mean([gradient(i, k, x) for i in range(3)], axis=0))
    result = run(DeMo(k=64), 3, STEPS, sgd(lr=0.1))
    assert_equal(result.x, np.tile(x, (3, 1)))
    for worker in result.workers:
        np.testing.assert_allclose(worker.state["momentum"].numpy(), 0, atol=1e-6)


def test_the_weight_decay_of_demo_is_decoupled() -> None:
    x = START.copy()
    for k in range(STEPS):
        g = np.mean([gradient(i, k, x) for i in range(3)], axis=0)
        x = (1 - 0.1 * 0.3) * x - 0.1 * np.sign(g)
    assert_equal(run(DeMo(k=64), 3, STEPS, sgd(lr=0.1, weight_decay=0.3)).x, np.tile(x, (3, 1)))


@pytest.mark.parametrize(
    ("optim", "key", "fix"),
    [
        (sgd(momentum=0.9), "optim.momentum", "use optim.momentum=0."),
        (ADAM, "optim", "use optim=sgd, not adam."),
    ],
)
def test_demo_refuses_another_momentum(optim: Any, key: str, fix: str) -> None:
    said = f"{key}: DeMo has its own momentum, algo.beta: {fix}"
    assert str(refusal(DeMo().check, 4, optim)) == said


def test_the_cosine_transform_is_scipys() -> None:
    from scipy.fft import dctn

    x = torch.randn(12 * 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chunks = Chunks((12, 10), 4)  # blocks of 4 x 2
    coefficients = chunks.transform(x)
    blocks = x.view(3, 4, 5, 2).movedim(1, 2).reshape(15, 4, 2).numpy()
    expected = np.stack([dctn(block, norm="ortho").reshape(-1) for block in blocks])
    np.testing.assert_allclose(coefficients.numpy(), expected, atol=1e-12)
    assert torch.allclose(chunks.transform_back(coefficients), x, atol=1e-12)
    assert Chunks((7,), 64).size == 7 and Chunks((130,), 64).size == 26


def test_a_coefficient_has_no_sign_where_its_cosine_is_zero() -> None:
    for side, zeros in ((3, 1), (48, 16), (64, 0)):
        assert int((cosines(side, torch.float64, torch.device("cpu")) == 0).sum()) == zeros
    second = Chunks((3,), 3).transform_back(torch.tensor([0.0, 1.0, 0.0]))
    assert second.sign().tolist() == [1, 0, -1]


def test_a_message_of_demo_has_the_largest_coefficients_and_their_places() -> None:
    codec, shapes = CosineTopK(2, 4), {"a": (8, 8), "b": (6,)}
    m = torch.randn(70, generator=torch.Generator().manual_seed(0))
    message = codec.encode(m, shapes, 0)
    # Four chunks of 16 and two of 3: two coefficients each, with places of 4 and 2 bits.
    assert len(message) == 4 * 12 + 8 * 4 // 8 + 4 * 2 // 8
    coefficients = codec.decode(message, shapes, m, 0)
    assert int((coefficients != 0).sum()) == 12
    rest = m - codec.transform_back(coefficients, shapes)
    again = Chunks((8, 8), 4).transform(rest[:64])
    sent = coefficients[:64].view(4, 16)
    assert bool((again.abs().max(1).values <= sent.abs().topk(2, 1).values[:, 1] + 1e-5).all())

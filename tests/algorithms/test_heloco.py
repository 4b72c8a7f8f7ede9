"""HeLoCo: the corrections by hand, and Async DiLoCo if nothing is corrected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import OPTIM, assert_equal
from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.heloco import HeLoCo
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.core.optim import Cosine
from sgp_runner.utils.errors import ConfigError

# No two changes arrive at the same time.
SECONDS = machines(latency=0.0317, factors={0: 0.58, 1: 0.75113, 2: 1.51317, 3: 3.33191})


def turned(d: list[float], m: list[float], **settings: float) -> np.ndarray:
    vectors = (torch.tensor(each, dtype=torch.float64) for each in (d, m))
    return HeLoCo(**settings).turned(*vectors).numpy()  # type: ignore[arg-type]


def test_a_change_along_the_momentum_is_kept() -> None:
    assert_equal(turned([3.0, 4.0], [4.0, 3.0]), np.array([3.0, 4.0]))
    assert_equal(turned([3.0, 4.0], [0.0, 0.0]), np.array([3.0, 4.0]))
    assert_equal(turned([0.0, 0.0], [3.0, 4.0]), np.array([0.0, 0.0]))


def test_a_change_against_the_momentum_loses_a_share_of_that_part() -> None:
    """The cosine is -0.6; f is 5 / (5 + 3 * 10) = 1 / 7."""
    b = 0.5 * 0.6 / (7 + 1e-8 / 5)
    assert_equal(turned([-3.0, 4.0], [10.0, 0.0]), np.array([-3.0 * (1 - b), 4.0]))
    assert_equal(turned([-3.0, 4.0], [10.0, 0.0], most=0.01), np.array([-2.97, 4.0]))
    everything = turned([-3.0, 4.0], [10.0, 0.0], damping=1e9, most=1.0)
    assert_equal(everything, np.array([0.0, 4.0]))


def test_a_change_across_the_momentum_is_turned_and_keeps_its_norm() -> None:
    """The cosine is 0; f is 5 / (5 + 3 * 5) = 1 / 4."""
    out = turned([0.0, 5.0], [5.0, 0.0])
    share = 1 / (4 + 1e-8 / 5)
    direction = np.array([share, 1 - share])
    assert_equal(out, 5 * direction / np.linalg.norm(direction))
    random = np.random.default_rng(0)
    for _ in range(20):
        d, m = random.normal(size=(2, 40))
        norm = np.linalg.norm(d)
        out = turned([*d], [*m], aligned=1.0)
        if d @ m >= 0:
            assert np.linalg.norm(out) == pytest.approx(norm, rel=1e-12)
            assert out @ m / np.linalg.norm(out) > d @ m / norm
        else:
            assert np.linalg.norm(out) < norm and out @ m > d @ m


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_heloco_without_corrections_by_hand(momentum: float) -> None:
    """Changes of four workers in the order of arrival; messages take no time."""
    algo = HeLoCo(2, 0.6, momentum, aligned=-1.0)
    seconds = (0.58, 0.75113, 1.51317, 3.33191)
    result = run(algo, 4, 12, OPTIM, machines(factors=dict(enumerate(seconds))))
    theta, m = START, np.zeros(D)
    at, batch = [START] * 4, [0] * 4
    locals_ = [Momentum(OPTIM) for _ in range(4)]
    x, inner = [START] * 4, [0] * 4
    events, left = [(seconds[i], i) for i in range(4)], 44
    while events:
        now, i = min(events)
        events.remove((now, i))
        x[i] = x[i] - locals_[i].step(gradient(i, batch[i], x[i]), x[i])
        batch[i], inner[i] = batch[i] + 1, inner[i] + 1
        if inner[i] == 2 or not left:
            d = 0.5 * (at[i] - x[i])
            m = momentum * m + (1 - momentum) * d
            theta = theta - 0.6 * (d + momentum * m)
            at[i], inner[i] = theta - 0.6 * momentum * m, 0
            x[i] = at[i]
        if left:
            left -= 1
            events.append((now + seconds[i], i))
    assert_equal(result.x[4], theta)


@pytest.mark.parametrize("optim", [OPTIM, sgd(lr=0.1)])
def test_heloco_without_momentum_and_corrections_is_async_diloco(optim: Any) -> None:
    algo = HeLoCo(3, momentum=0.0, scale=1.0, aligned=-1.0)
    plain = AsyncDiLoCo(3, momentum=0.0, delay=1)
    for cluster in (SECONDS, machines(LogNormalTime(0.5))):
        assert_equal(run(algo, 4, 12, optim, cluster).x, run(plain, 4, 12, optim, cluster).x)


def test_heloco_corrects_each_tensor_alone() -> None:
    shapes = {"a": (2,), "b": (1,)}
    alone = run(HeLoCo(2), 4, 12, OPTIM, SECONDS, shapes=shapes).x[4]
    together = run(HeLoCo(2), 4, 12, OPTIM, SECONDS).x[4]
    assert np.abs(alone - together).max() > 1e-3


def test_bytes_of_heloco() -> None:
    """In float64: a change and a number of steps up, a model down."""
    sent = [worker.comm.num_bytes_sent for worker in run(HeLoCo(2), 3, 12, OPTIM).workers]
    assert sent == [6 * 8 * (D + 1)] * 3 + [18 * 8 * D]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"period": 0}, "algo.period"),
        ({"momentum": 1.0}, "algo.momentum"),
        ({"scale": 0.0}, "algo.scale"),
        ({"aligned": 1.5}, "algo.aligned"),
        ({"damping": -0.1}, "algo.damping"),
        ({"most": -0.1}, "algo.most"),
        ({"turning": -0.1}, "algo.turning"),
        ({"balance": -1.0}, "algo.balance"),
        ({"speeds": (1.0, 2.0)}, "algo.speeds"),
    ],
)
def test_impossible_settings_of_heloco_are_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        HeLoCo(**settings).check(4, OPTIM)
    assert error.value.key == key
    with pytest.raises(ConfigError, match="HeLoCo needs a learning rate above 0 at the end"):
        HeLoCo().check(4, sgd(schedule=Cosine()))

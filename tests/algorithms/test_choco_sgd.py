"""CHOCO-SGD against the recursion of its paper and against what it must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recursion import LATE, OPTIM, STEPS, Oracle, assert_equal, largest, same
from helpers.tiny import START, gradient, run, sgd

from sgp_runner.algorithms.choco_sgd import ChocoSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.quantised import Int8
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.topology.graphs import (
    Ring,
)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_choco_without_loss_is_d_psgd(nodes: int) -> None:
    assert same(ChocoSGD(Ring(), Identity(), 1.0), DPSGD(Ring(), order="adapt_then_combine"), nodes)
    assert same(ChocoSGD(Ring(), Identity(), 1.0, layout="released"), DPSGD(Ring()), nodes)


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("layout", ["paper", "released"])
def test_choco(cluster: Cluster, layout: Any) -> None:
    """The largest number of each difference is sent."""
    oracle, x_hat = Oracle(4), np.tile(START, (4, 1))
    w = oracle.p(Ring(), 0)
    for k in range(STEPS):
        x = oracle.x - oracle.d(k)
        for late in (layout == "released", layout == "paper"):
            if late:
                x = x + 0.3 * (w @ x_hat - x_hat)
            else:
                x_hat = x_hat + largest(x - x_hat)
        oracle.x = x
    algo = ChocoSGD(Ring(), TopK(k=1, side=8), 0.3, layout=layout)
    assert_equal(run(algo, 4, STEPS, OPTIM, cluster).x, oracle.x)


@pytest.mark.parametrize("codec", [TopK(k=1, side=8), Int8()])
def test_the_mean_moves_as_without_communication_whatever_the_codec(codec: Any) -> None:
    optim = sgd(lr=0.2)
    x = run(ChocoSGD(Ring(), codec, 0.3), 1, STEPS, optim).x
    assert_equal(x, run(LocalSGD(None), 1, STEPS, optim).x)
    result = run(ChocoSGD(Ring(), codec, 0.3), 4, 1, optim)
    step = np.mean([0.2 * gradient(i, 0, START) for i in range(4)], axis=0)
    assert_equal(result.x.mean(axis=0), START - step)

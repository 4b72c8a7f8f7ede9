"""Gradient tracking against the recursion of its paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recursion import PLAIN, SIZES, STEPS, SYMMETRIC, assert_equal
from helpers.tiny import START, gradient, run

from sgp_runner.algorithms.gradient_tracking import GradientTracking
from sgp_runner.topology.graphs import (
    matrix,
)


@pytest.mark.parametrize("layout", ["adapt_then_combine", "diging"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("topology", SYMMETRIC, ids=str)
def test_gradient_tracking(layout: Any, topology: Any, n: int) -> None:
    x = np.tile(START, (n, 1))
    y = g_old = None
    for k in range(STEPS):
        w = np.array(matrix(topology, n, k))
        last = np.array(matrix(topology, n, k - 1)) if k else None
        g = np.stack([gradient(i, k, x[i]) for i in range(n)])
        y = g if y is None else last @ y + g - g_old
        assert_equal(y.mean(axis=0), g.mean(axis=0))
        x = w @ (x - 0.2 * y) if layout == "adapt_then_combine" else w @ x - 0.2 * y
        g_old = g
    assert_equal(run(GradientTracking(topology, layout), n, STEPS, PLAIN).x, x)

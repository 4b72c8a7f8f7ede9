"""OSGP against its recursions, and the mass of push-sum under any delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from helpers.conservation import ROUGH, mass, tallied
from helpers.recursion import OPTIM, SHIFTS, STEPS, Oracle, assert_equal
from helpers.tiny import START, D, Result, machines, run

from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import (
    DirectedExponential,
)


@pytest.mark.parametrize("latency", [0.0, 0.3, 2.5])
@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
def test_osgp_without_delay_is_sgp(latency: float, nodes: int) -> None:
    late = machines(LogNormalTime(0.3), latency=latency)
    a, b = (
        run(OSGP(SHIFTS, tau=0), nodes, STEPS, OPTIM, late),
        run(SGP(SHIFTS), nodes, STEPS, OPTIM, late),
    )
    assert np.array_equal(a.x, b.x)
    assert a.simulation.clock.now == b.simulation.clock.now


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
@pytest.mark.parametrize("tau", [0, 1, 2, 4])
@pytest.mark.parametrize("layout", ["paper", "released"])
def test_push_sum_mass_is_conserved_whatever_is_late(
    layout: Literal["paper", "released"], tau: int, name: str, cluster: Cluster, faults: Faults
) -> None:
    nodes, steps, optim, checks = 6, 10, tallied(), list[int]()

    def check(result: Result, at_rest: Worker | None) -> None:
        numerators, weights = mass(result, at_rest)
        assert weights == pytest.approx(nodes, abs=1e-9)
        np.testing.assert_allclose(numerators, nodes * START - optim.total.numpy(), atol=1e-9)

    def look(result: Result, worker: Worker) -> None:
        check(result, worker)
        checks.append(worker.rank)
        if len(checks) == 1:  # from now on between steps too, whatever the workers are at
            for tick in range(200):
                moment = worker.now + 0.17 * tick
                result.simulation.clock.at(moment, "call", check, result, None)

    result = run(
        OSGP(SHIFTS, tau=tau, layout=layout), nodes, steps, optim, cluster, faults, each_step=look
    )
    assert len(checks) == nodes * steps
    assert result.w.sum() == pytest.approx(nodes, abs=1e-9)
    np.testing.assert_allclose(
        (result.x * result.w[:, None]).sum(axis=0), nodes * START - optim.total.numpy(), atol=1e-9
    )


@pytest.mark.parametrize(("tau", "seconds"), [(0, 70.0), (1, 36.0), (2, 25.5), (3, 22.5)])
def test_a_worker_waits_only_for_messages_that_are_tau_steps_late(tau: int, seconds: float) -> None:
    """Twenty steps of one second, messages of 2.5 seconds: every tau + 1 steps take 3.5 seconds,
    unless no worker ever waits.

    The last message is drained: 70 = 20 x 3.5; 36 = 9 x 3.5 + 2 + 2.5; 25.5 = 6 x 3.5 + 2 + 2.5;
    22.5 = 20 + 2.5.
    """
    result = run(OSGP(SHIFTS, tau=tau), 4, 20, OPTIM, machines(latency=2.5))
    assert result.simulation.clock.now == pytest.approx(seconds)


def osgp_one_step_late(
    n: int, layout: Callable[[Oracle, int], tuple[np.ndarray, np.ndarray]]
) -> Oracle:
    """Messages of step k are folded in at the end of step k + 1; ``layout`` returns numerators and
    weights to share.
    """
    oracle = Oracle(n)
    flying = np.zeros((n, D + 1))
    for k in range(STEPS):
        x, w = layout(oracle, k)
        mass = np.column_stack([x, w])
        p = oracle.p(DirectedExponential(), k)
        keep = np.diag(np.diag(p))
        arrived, flying = flying, (p - keep) @ mass
        mass = keep @ mass + arrived
        oracle.x, oracle.w = mass[:, :-1], mass[:, -1]
    oracle.x, oracle.w = oracle.x + flying[:, :-1], oracle.w + flying[:, -1]  # drained at the end
    return oracle


@pytest.mark.parametrize("tau", [1, 2, 4])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_osgp_with_messages_always_one_step_late(n: int, tau: int) -> None:
    weights: list[float] = []
    oracle = osgp_one_step_late(n, lambda oracle, k: (oracle.x - oracle.d(k), oracle.w))
    late = machines(seconds=1.0, latency=0.5)
    result = run(
        OSGP(DirectedExponential(), tau=tau),
        n,
        STEPS,
        OPTIM,
        late,
        each_step=lambda result, worker: weights.append(float(worker.push_sum[-1])),
    )
    assert_equal(result.x, oracle.x / oracle.w[:, None])
    assert_equal(result.w, oracle.w)
    assert weights[-1] == pytest.approx(2 / 3, abs=2e-3)  # halves the distance every step


@pytest.mark.parametrize(("layout", "share"), [("released", 1.0), ("released_2019", 0.5)])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_osgp_as_released_is_y_p_y_minus_d(layout: Any, share: float, n: int) -> None:
    """Sent before the gradient and folded in after it: y' = P y - d(y); in the version of 2019 half
    of d.
    """
    oracle = Oracle(n)
    for k in range(STEPS):
        oracle.x = oracle.p(DirectedExponential(), k) @ oracle.x - share * oracle.d(k)
    result = run(OSGP(DirectedExponential(), tau=0, layout=layout), n, STEPS, OPTIM)  # type: ignore[arg-type]
    assert_equal(result.x, oracle.x)
    assert_equal(result.w, np.ones(n))


def test_biased_osgp_never_divides_by_the_weight() -> None:
    n, late = 4, machines(seconds=1.0, latency=0.5)

    def biased(oracle: Oracle, k: int) -> tuple[np.ndarray, np.ndarray]:
        oracle.w = np.ones(n)
        return oracle.x - oracle.d(k), oracle.w

    oracle = osgp_one_step_late(n, biased)
    assert_equal(
        run(OSGP(DirectedExponential(), push_sum_weight=False), n, STEPS, OPTIM, late).x, oracle.x
    )


def test_biased_osgp_as_released_takes_its_gradient_at_the_kept_share() -> None:
    """With the sum never divided, ``y' = P y - d(y / 2)`` for one peer."""
    oracle = Oracle(4)
    for k in range(STEPS):
        y, oracle.x = oracle.x, oracle.x / 2
        oracle.x = oracle.p(DirectedExponential(), k) @ y - oracle.d(k)
    result = run(
        OSGP(DirectedExponential(), tau=0, layout="released", push_sum_weight=False),
        4,
        STEPS,
        OPTIM,
    )
    assert_equal(result.x, oracle.x)
    assert_equal(result.w, np.ones(4))


@pytest.mark.parametrize("interval", [2, 3])
def test_osgp_mixes_every_interval_steps_and_leaves_out_no_hop(interval: int) -> None:
    """Without delay; four nodes have two hops, of which every second step alone would only ever use
    the first.
    """
    oracle = Oracle(4)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if k % interval == 0:
            oracle.x = oracle.p(DirectedExponential(), k // interval) @ oracle.x
    assert_equal(
        run(OSGP(DirectedExponential(), tau=0, interval=interval), 4, STEPS, OPTIM).x, oracle.x
    )

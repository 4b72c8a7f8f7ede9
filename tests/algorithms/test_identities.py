"""Algorithms that must coincide, and quantities that no delay may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers.tiny import START, D, Momentum, Result, gradient, machines, run, sgd
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core import flat
from sgp_runner.core.optim import (
    SGD,
    Adam,
    Constant,
    Cosine,
    InverseSqrt,
    Schedule,
    Shapes,
)
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.engine import Gradient, Loop, Vmap
from sgp_runner.topology.graphs import BipartiteExponential, Complete, DirectedExponential, Ring
from sgp_runner.utils.errors import ConfigError, RankFailed

STEPS = 12
OPTIM = sgd(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
SHIFTS = DirectedExponential()


def same(
    a: Algorithm, b: Algorithm, nodes: int, optim: SGD | Adam = OPTIM, steps: int = STEPS
) -> bool:
    return np.allclose(
        run(a, nodes, steps, optim).x[:nodes],
        run(b, nodes, steps, optim).x[:nodes],
        rtol=0,
        atol=1e-12,
    )


def test_sgp_on_two_nodes_is_d_psgd() -> None:
    assert same(SGP(SHIFTS), DPSGD(Ring(), order="adapt_then_combine"), 2)


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_sgp_on_a_complete_graph_averages_parameters(nodes: int) -> None:
    for optim in (OPTIM, Adam(Constant(), lr=0.1)):
        assert same(SGP(Complete()), ARSGD(average="parameters"), nodes, optim)


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
def test_osgp_without_delay_is_sgp(nodes: int) -> None:
    for latency in (0.0, 0.3, 2.5):
        late = machines(LogNormalTime(0.3), latency=latency)
        a, b = (
            run(OSGP(SHIFTS, tau=0), nodes, STEPS, OPTIM, late),
            run(SGP(SHIFTS), nodes, STEPS, OPTIM, late),
        )
        assert np.array_equal(a.x, b.x)
        assert a.simulation.clock.now == b.simulation.clock.now


def test_averaging_parameters_differs_from_averaging_gradients_for_adam() -> None:
    assert same(ARSGD(), ARSGD(average="parameters"), 3)
    assert not same(ARSGD(), ARSGD(average="parameters"), 3, Adam(Constant(), lr=0.1))
    assert same(ARSGD(), PSSGD(), 3, Adam(Constant(), lr=0.1))
    assert same(ARSGD(), PipeSGD(depth=1), 3, Adam(Constant(), lr=0.1))


@pytest.mark.parametrize("tau", [1, 3, 5])
def test_slowmo_without_slow_momentum_over_local_steps_is_local_sgd(tau: int) -> None:
    for optim in (OPTIM, Adam(InverseSqrt(warmup_steps=4), lr=0.1)):
        assert same(
            SlowMo(LocalSGD(None), tau=tau, beta=0.0, buffers="keep"), LocalSGD(tau), 3, optim
        )


def test_slowmo_at_every_step_of_plain_sgd_is_momentum() -> None:
    plain, heavy = sgd(lr=0.2), sgd(lr=0.2, momentum=0.7)
    slow = run(SlowMo(ARSGD(), tau=1, beta=0.7), 3, STEPS, plain).x
    np.testing.assert_allclose(slow, run(ARSGD(), 3, STEPS, heavy).x, rtol=0, atol=1e-12)


def test_slowmo_on_one_node_without_slow_momentum_is_lookahead() -> None:
    x, slow = START.copy(), START.copy()
    for k in range(STEPS):
        x = x - 0.2 * gradient(0, k, x)
        if (k + 1) % 4 == 0:
            x = slow = slow + 0.5 * (x - slow)
    result = run(SlowMo(LocalSGD(None), tau=4, alpha=0.5, beta=0.0), 1, STEPS, sgd(lr=0.2)).x[0]
    np.testing.assert_allclose(result, x, rtol=0, atol=1e-12)


def test_slowmo_survives_a_learning_rate_of_zero() -> None:
    @dataclass(frozen=True)
    class Off:
        def factor(self, epoch: float, horizon: object) -> float:
            return 0.0

    result = run(SlowMo(LocalSGD(None), tau=2), 2, 4, sgd(schedule=Off()))
    assert np.array_equal(result.x, np.tile(START, (2, 1)))


def test_slowmo_takes_the_learning_rate_of_the_last_fast_step() -> None:
    schedule = Cosine(warmup_epochs=0)
    optim = sgd(lr=0.2, schedule=schedule)
    result = run(SlowMo(LocalSGD(None), tau=2, beta=0.5, alpha=0.7), 1, 4, optim)
    x, x0, u = START.copy(), START.copy(), np.zeros(D)
    rates = [
        0.2 * 0.5 * (1 + np.cos(np.pi * k / 4)) for k in range(4)
    ]  # four steps are the whole run
    for k, lr in enumerate(rates):
        x = x - lr * gradient(0, k, x)
        if k % 2:
            u = 0.5 * u + (x0 - x) / lr
            x = x0 = x0 - 0.7 * lr * u
    np.testing.assert_allclose(result.x[0], x, rtol=0, atol=1e-12)


def test_slowmo_over_local_adam_keeps_each_nodes_buffers() -> None:
    """While the learning rate warms up: a movement is divided by the rate that made it."""
    nodes, tau, beta = 2, 3, 0.5
    optim = Adam(InverseSqrt(warmup_steps=6), lr=0.1)
    x, x0, u = np.tile(START, (nodes, 1)), START.copy(), np.zeros(D)
    mean, square = np.zeros((2, nodes, D))
    for k in range(STEPS):
        lr = 0.1 * ((k + 1) / 6 if k + 1 < 6 else (6 / (k + 1)) ** 0.5)
        g = np.array([gradient(node, k, x[node]) for node in range(nodes)])
        mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g**2
        x = x - lr * (mean / (1 - 0.9 ** (k + 1))) / (
            np.sqrt(square / (1 - 0.98 ** (k + 1))) + 1e-8
        )
        if (k + 1) % tau == 0:
            u = beta * u + (x0 - x.mean(axis=0)) / lr
            x0 = x0 - lr * u
            x = np.tile(x0, (nodes, 1))
    np.testing.assert_allclose(
        run(SlowMo(LocalSGD(None), tau=tau, beta=beta), nodes, STEPS, optim).x,
        x,
        rtol=0,
        atol=1e-12,
    )


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


def test_gaps_by_hand() -> None:
    moved, typical = torch.tensor([3.0, -4.0, 6.0]), torch.tensor([1.0, 2.0, 3.0])

    def gaps(algo: GapAware) -> list[float]:
        return algo.gap_of(moved.clone(), typical, (2, 1)).tolist()

    assert gaps(GapAware()) == [4.0, 3.0, 3.0]
    assert gaps(GapAware(gap="layer")) == pytest.approx([1 + 5**0.5, 1 + 5**0.5, 3.0])
    assert gaps(GapAware(gap="global")) == pytest.approx([1 + (61 / 14) ** 0.5] * 3)


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


def test_a_hybrid_switches_after_its_epochs() -> None:
    """Four steps per epoch: six steps of AR-SGD, then six of SGP; momentum carries over."""
    algo = Hybrid(ARSGD(average="parameters"), SGP(SHIFTS), switch_epoch=1.5)
    together: list[bool] = []

    def look(result: Result, worker: Worker) -> None:
        if worker.rank == 2:
            together.append(bool(np.allclose(result.x[0], result.x[2], atol=1e-12)))

    result = run(algo, 3, STEPS, OPTIM, each_step=look)
    assert together == [True] * 6 + [False] * 6
    assert [worker.steps_taken for worker in result.workers] == [STEPS] * 3


@pytest.mark.parametrize("first", [SGP(SHIFTS), OSGP(SHIFTS), SlowMo(OSGP(SHIFTS), tau=4)], ids=str)
def test_a_hybrid_brings_everybody_together_at_its_switch(first: Algorithm) -> None:
    """Models and momentum: with equal gradients from then on, any difference would stay."""
    result = run(Hybrid(first, ARSGD(average="gradients"), switch_epoch=1.5), 3, STEPS, OPTIM)
    assert np.ptp(result.x, axis=0).max() < 1e-14


def test_peers_follow_their_schedule_by_epoch() -> None:
    result = run(SGP(DirectedExponential(peers={0: 2, 2: 1})), 4, STEPS, OPTIM)
    message = (D + 1) * 8
    assert [comm.num_bytes_sent for comm in result.simulation.comms] == [
        (8 * 2 + 4 * 1) * message
    ] * 4


EVERY: list[Algorithm] = [
    ARSGD(),
    ARSGD(average="parameters"),
    DPSGD(Ring()),
    SGP(SHIFTS),
    OSGP(SHIFTS),
    OSGP(SHIFTS, layout="released"),
    SlowMo(SGP(SHIFTS), tau=3),
    SlowMo(OSGP(SHIFTS), tau=3, exact_average=False),
    GapAware(),
    GapAware(momentum="per_worker"),
    PipeSGD(),
    PipeSGD(compression="quantize8"),
    LocalSGD(3),
    PSSGD(),
]


@pytest.mark.parametrize("algo", [*EVERY, ADPSGD(BipartiteExponential())], ids=str)
def test_every_algorithm_may_give_its_gradients_away_under_vmap(algo: Algorithm) -> None:
    rough = machines(LogNormalTime(0.3), latency=0.4)
    for cluster in (machines(), rough):
        loop, vmap = (
            run(algo, 4, STEPS, OPTIM, cluster, engine=engine).x
            for engine in (Loop, lambda problem: Vmap(problem, 3))
        )
        np.testing.assert_allclose(vmap, loop, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algo", EVERY, ids=str)
def test_one_node_is_enough(algo: Algorithm) -> None:
    assert np.isfinite(run(algo, 1, STEPS, OPTIM).x).all()


@pytest.mark.parametrize(
    "algo",
    [*EVERY, ADPSGD(BipartiteExponential()), ADPSGD(Ring(), averages_per_gradient=1.5)],
    ids=str,
)
def test_every_algorithm_approaches_the_optimum_and_leaves_nothing_behind(algo: Algorithm) -> None:
    cluster = machines(LogNormalTime(0.3), latency=0.2, bandwidth=8 * 8 * 4 / 0.1)
    result = run(algo, 4, 96, sgd(lr=0.05), cluster)
    curvature = [
        [gradient(i, k, np.ones(D)) - gradient(i, k, np.zeros(D)) for k in range(12)]
        for i in range(4)
    ]
    offset = [[-gradient(i, k, np.zeros(D)) for k in range(12)] for i in range(4)]
    best = np.sum(offset, axis=(0, 1)) / np.sum(curvature, axis=(0, 1))
    assert np.abs(result.x.mean(axis=0) - best).max() < 0.25 < np.abs(START - best).max()
    assert result.w.sum() == pytest.approx(len(result.w), abs=1e-9)
    assert result.simulation.fabric.in_flight == 0


@dataclass(frozen=True)
class Tallied:
    """An optimizer that adds up the steps it hands out."""

    optim: SGD
    total: Tensor = field(default_factory=lambda: torch.zeros(D, dtype=torch.float64))
    name: str = "sgd"
    slow_buffers: Literal["reset", "keep"] = "keep"

    @property
    def lr(self) -> float:
        return self.optim.lr

    @property
    def lr_reference_batch(self) -> int | None:
        return None

    @property
    def weight_decay(self) -> float:
        return self.optim.weight_decay

    @property
    def momentum(self) -> float:
        return self.optim.momentum

    @property
    def nesterov(self) -> bool:
        return self.optim.nesterov

    @property
    def schedule(self) -> Schedule:
        return self.optim.schedule

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return self.optim.buffers(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        d = self.optim.direction(g, params, buffers, lr, shapes)
        self.total.add_(d)
        return d


ROUGH: list[tuple[str, Cluster, Faults]] = [
    ("late", machines(latency=1.7), Faults({}, {})),
    ("jitter", machines(LogNormalTime(0.5), latency=0.4), Faults({}, {})),
    ("gamma", machines(GammaTime(2.0), latency=0.1, factors={1: 3.0}), Faults({}, {})),
    (
        "slow link",
        machines(LogNormalTime(0.2), bandwidth=8 * 8 * 4 / 0.5),
        Faults({0: 2.0}, {2: 5.0}),
    ),
]


def mass(result: Result, at_rest: Worker | None) -> tuple[np.ndarray, float]:
    """Sum of numerators [D] and of weights over all workers, what travels and what lies unread.

    A worker that waits for a message is in the middle of mixing: its parameters are the numerator;
    else they are z = x / w.
    """
    simulation = result.simulation
    messages = [
        message
        for mailbox in simulation.mailboxes
        for queue in mailbox.queues.values()
        for _, message, _ in queue
    ]
    messages += [
        arguments[0].message
        for _, _, event, arguments in simulation.clock.events
        if event in ("reach", "arrive")
    ]
    numerators, weights = np.zeros(D), 0.0
    waits = {task.name: task.waiting for task in simulation.scheduler.tasks}
    for worker in result.workers:
        wait = waits.get(f"rank {worker.rank}")
        mixing = worker is not at_rest and wait is not None and wait.what[0] == "message"
        if mixing and wait is not None and wait.done:
            messages.append(wait.value)  # handed over, but not folded in yet
        weight = float(worker.push_sum[-1])
        numerators = numerators + worker.params.numpy() * (1.0 if mixing else weight)
        weights += weight
    for message in messages:
        numerators, weights = numerators + message[:-1].numpy(), weights + float(message[-1])
    return numerators, weights


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
@pytest.mark.parametrize("tau", [0, 1, 2, 4])
@pytest.mark.parametrize("layout", ["paper", "released"])
def test_push_sum_mass_is_conserved_whatever_is_late(
    layout: Literal["paper", "released"], tau: int, name: str, cluster: Cluster, faults: Faults
) -> None:
    nodes, steps = 6, 10
    optim = Tallied(OPTIM)
    checks = []

    def look(result: Result, worker: Worker) -> None:
        numerators, weights = mass(result, worker)
        assert weights == pytest.approx(nodes, abs=1e-9)
        np.testing.assert_allclose(numerators, nodes * START - optim.total.numpy(), atol=1e-9)
        checks.append(worker.rank)
        if len(checks) == 1:  # from now on between steps too, whatever the workers are at
            for tick in range(200):
                result.simulation.clock.at(
                    worker.now + 0.17 * tick, "call", look_between_steps, result
                )

    def look_between_steps(result: Result) -> None:
        numerators, weights = mass(result, None)
        assert weights == pytest.approx(nodes, abs=1e-9)
        np.testing.assert_allclose(numerators, nodes * START - optim.total.numpy(), atol=1e-9)

    result = run(
        OSGP(SHIFTS, tau=tau, layout=layout), nodes, steps, optim, cluster, faults, each_step=look
    )  # type: ignore[arg-type]
    assert len(checks) == nodes * steps
    assert result.w.sum() == pytest.approx(nodes, abs=1e-9)
    np.testing.assert_allclose(
        (result.x * result.w[:, None]).sum(axis=0), nodes * START - optim.total.numpy(), atol=1e-9
    )


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_pairwise_averages_conserve_the_sum(name: str, cluster: Cluster, faults: Faults) -> None:
    optim = Tallied(OPTIM)
    result = run(
        ADPSGD(BipartiteExponential(), averages_per_gradient=2), 6, 10, optim, cluster, faults
    )  # type: ignore[arg-type]
    np.testing.assert_allclose(result.x.sum(axis=0), 6 * START - optim.total.numpy(), atol=1e-9)


@pytest.mark.parametrize("base", [OSGP(SHIFTS), OSGP(SHIFTS, tau=3, layout="released")], ids=str)
@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_exact_averages_conserve_the_mass_of_push_sum(
    base: OSGP, name: str, cluster: Cluster, faults: Faults
) -> None:
    """Without slow momentum the network's numerators lose just the local steps, also where weights
    differ before an average.
    """
    unequal = 0.0
    exact, own = (
        SlowMo(base, tau=4, beta=0.0, exact_average=exact, buffers="keep")
        for exact in (True, False)
    )
    for algo in (exact, own, Hybrid(base, ARSGD(average="parameters"), switch_epoch=1.5)):
        optim = Tallied(OPTIM)
        result = run(algo, 6, 10, optim, cluster, faults)  # type: ignore[arg-type]
        assert result.w.sum() == pytest.approx(6, abs=1e-9)
        np.testing.assert_allclose(
            (result.x * result.w[:, None]).sum(axis=0), 6 * START - optim.total.numpy(), atol=1e-9
        )
        unequal = max(unequal, float(np.ptp(result.w)))
    assert unequal > 0.1 or name == "late"


@dataclass(frozen=True)
class Leaking(SGP):
    """Loses a part of its mass."""

    async def run(self, worker: Worker) -> None:
        await super().run(worker)
        if worker.rank == 1:
            worker.push_sum[-1] *= 0.9


@pytest.mark.parametrize(
    "algo",
    [SlowMo(Leaking(SHIFTS), tau=4), Hybrid(Leaking(SHIFTS), ARSGD(), switch_epoch=1.0)],
    ids=str,
)
def test_an_exact_average_notices_lost_mass(algo: Algorithm) -> None:
    with pytest.raises(
        RankFailed, match=r"push-sum mass was lost: the mean weight of the workers is 0\.975, not 1"
    ):
        run(algo, 4, 12, OPTIM)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("nodes", [2, 5, 6])
def test_ad_psgd_averages_so_often_for_each_gradient_of_any_worker(nodes: int, rate: float) -> None:
    result = run(
        ADPSGD(BipartiteExponential(), averages_per_gradient=rate),
        nodes,
        30,
        OPTIM,
        machines(latency=0.01),
    )
    averages = sum(worker.counter("averages") for worker in result.workers)
    assert averages == pytest.approx(rate * 30 * nodes, rel=0.02)


@pytest.mark.parametrize(("tau", "seconds"), [(0, 70.0), (1, 36.0), (2, 25.5), (3, 22.5)])
def test_a_worker_waits_only_for_messages_that_are_tau_steps_late(tau: int, seconds: float) -> None:
    """Twenty steps of one second, messages of 2.5 seconds: every tau + 1 steps take 3.5 seconds,
    unless no worker ever waits.

    The last message is drained: 70 = 20 x 3.5; 36 = 9 x 3.5 + 2 + 2.5; 25.5 = 6 x 3.5 + 2 + 2.5;
    22.5 = 20 + 2.5.
    """
    result = run(OSGP(SHIFTS, tau=tau), 4, 20, OPTIM, machines(latency=2.5))
    assert result.simulation.clock.now == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: OSGP(SHIFTS, tau=-1), "algo.tau"),
        (lambda: OSGP(SHIFTS, interval=0), "algo.interval"),
        (lambda: PipeSGD(depth=0), "algo.depth"),
        (lambda: PipeSGD(clip=0.0), "algo.clip"),
        (lambda: PipeSGD(warmup_epochs=-1), "algo.warmup_epochs"),
        (lambda: SlowMo(LocalSGD(None), tau=0), "algo.tau"),
        (lambda: SlowMo(LocalSGD(None), alpha=0.0), "algo.alpha"),
        (lambda: SlowMo(LocalSGD(None), beta=1.0), "algo.beta"),
        (lambda: SlowMo(GapAware()), "algo.base"),
        (lambda: Hybrid(ARSGD(), ADPSGD(Ring()), 1.0), "algo.then"),
        (lambda: Hybrid(PSSGD(), ARSGD(), 1.0), "algo.first"),
        (lambda: Hybrid(ARSGD(), ARSGD(), 0.0), "algo.switch_epoch"),
        (lambda: LocalSGD(0), "algo.tau"),
        (lambda: SlowMo(SlowMo(SGP(SHIFTS))), "algo.base"),
        (lambda: ADPSGD(Ring(), averages_per_gradient=0), "algo.averages_per_gradient"),
        (lambda: ADPSGD(Ring()).check(5, OPTIM), "algo.topology"),
        (lambda: ADPSGD(Complete()).check(4, OPTIM), "algo.topology"),
        (lambda: DPSGD(SHIFTS).check(4, OPTIM), "algo.topology"),
        (lambda: GapAware().check(4, Adam(Constant())), "optim"),
        (lambda: GapAware(momentum="dana").check(4, OPTIM), "algo.momentum"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(make: Any, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert refused.value.key == key


def test_the_oracle_of_momentum_is_pytorchs() -> None:
    oracle, parameter = Momentum(OPTIM), torch.tensor(START, requires_grad=True)
    reference = torch.optim.SGD([parameter], lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
    x = START.copy()
    for k in range(6):
        parameter.grad = torch.from_numpy(gradient(0, k, x))
        x = x - oracle.step(gradient(0, k, x), x)
        reference.step()
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=0, atol=1e-13)

"""Ringmaster, Rennala and Ringleader: servers by hand, event by event, and what they must equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest
from helpers.conservation import ROUGH
from helpers.recursion import OPTIM, STEPS, assert_equal
from helpers.tiny import (
    CENTERS,
    SCALES,
    START,
    D,
    Momentum,
    Result,
    gradient,
    machines,
    run,
    tiny_problem,
)

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.rennala import Rennala
from sgp_runner.algorithms.ringleader import Ringleader
from sgp_runner.algorithms.ringmaster import Ringmaster
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.simulator.engine import Vmap

# No two gradients end at the same time.
SPEEDS = [(0.58, 0.75, 1.51, 3.33), (3.33, 1.51, 0.058, 0.75), (1.0, 49.9713, 1.30171)]
ALL = [Ringmaster(2), Ringmaster(2, stop=True), Rennala(3), Ringleader()]


class ByHand:
    """Workers that take ``seconds`` for a gradient, and messages that take no time."""

    def __init__(self, seconds: tuple[float, ...], total: int) -> None:
        self.seconds, self.n, self.total, self.begun = seconds, len(seconds), total, 0
        self.x, self.k, self.momentum = START, 0, Momentum(OPTIM)
        self.at, self.since = [START] * self.n, [0] * self.n  # parameters of workers, and their k
        self.batch = [-1] * self.n
        self.ends: list[tuple[float, int]] = []
        for i in range(self.n):
            self.begin(i, 0.0)

    def begin(self, i: int, now: float) -> None:
        if self.begun < self.total:
            self.begun += 1
            self.batch[i] += 1
            heapq.heappush(self.ends, (now + self.seconds[i], i))

    def adopt(self, i: int) -> None:
        self.at[i], self.since[i] = self.x, self.k

    def restart(self, i: int, now: float) -> None:
        self.adopt(i)
        if any(j == i for _, j in self.ends):
            self.ends = sorted((end, j) for end, j in self.ends if j != i)
            self.batch[i] += 1
            heapq.heappush(self.ends, (now + self.seconds[i], i))

    def step(self, g: np.ndarray) -> None:
        self.x, self.k = self.x - self.momentum.step(g, self.x), self.k + 1

    def run(self, arrive: Callable[[int, np.ndarray, float], None]) -> np.ndarray:
        while self.ends:
            now, i = heapq.heappop(self.ends)
            arrive(i, gradient(i, self.batch[i], self.at[i]), now)
        return self.x


def ringmaster(hand: ByHand, limit: int, stop: bool) -> np.ndarray:
    def arrive(i: int, g: np.ndarray, now: float) -> None:
        if hand.k - hand.since[i] < limit:
            hand.step(g)
        hand.adopt(i)
        hand.begin(i, now)
        for j in range(hand.n) if stop else ():
            if hand.k - hand.since[j] >= limit:
                hand.restart(j, now)

    return hand.run(arrive)


def rennala(hand: ByHand, batch: int) -> np.ndarray:
    collected: list[np.ndarray] = []

    def arrive(i: int, g: np.ndarray, now: float) -> None:
        assert hand.since[i] == hand.k
        collected.append(g)
        if len(collected) == batch:
            hand.step(np.mean(collected, axis=0))
            collected.clear()
            for j in range(hand.n):
                hand.restart(j, now)
        hand.begin(i, now)

    return hand.run(arrive)


class Rounds:
    """The server of Ringleader, with its phases; ``delays``: of all gradients in all steps."""

    def __init__(self, hand: ByHand) -> None:
        self.hand, self.phase, self.delays = hand, 1, [0]
        self.now: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(hand.n)]
        self.later: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(hand.n)]
        self.unserved = set(range(hand.n))

    def arrive(self, i: int, g: np.ndarray, now: float) -> None:
        hand = self.hand
        (self.now if self.phase == 1 or i in self.unserved else self.later)[i].append(
            (g, hand.since[i])
        )
        if all(self.now) if self.phase == 1 else i in self.unserved:
            self.delays += [hand.k - since for gradients in self.now for _, since in gradients]
            hand.step(
                np.mean(
                    [np.mean([g for g, _ in gradients], axis=0) for gradients in self.now], axis=0
                )
            )
            hand.adopt(i)
            self.unserved.remove(i)
            self.phase = 2
        if not self.unserved:
            self.now, self.later = self.later, [[] for _ in range(hand.n)]
            self.unserved, self.phase = set(range(hand.n)), 1
        hand.begin(i, now)


def trained(algo: Algorithm, seconds: tuple[float, ...], steps: int = 12) -> Result:
    return run(algo, len(seconds), steps, OPTIM, machines(factors=dict(enumerate(seconds))))


@pytest.mark.parametrize("seconds", SPEEDS, ids=str)
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_ringmaster_by_hand(limit: int, stop: bool, seconds: tuple[float, ...]) -> None:
    result, hand = trained(Ringmaster(limit, stop), seconds), ByHand(seconds, 12 * len(seconds))
    assert_equal(result.x[-1], ringmaster(hand, limit, stop))
    assert result.workers[-1].counter("k") == hand.k


@pytest.mark.parametrize("seconds", SPEEDS, ids=str)
@pytest.mark.parametrize("batch", [1, 2, 4, 7])
def test_rennala_by_hand(batch: int, seconds: tuple[float, ...]) -> None:
    result, hand = trained(Rennala(batch), seconds), ByHand(seconds, 12 * len(seconds))
    assert_equal(result.x[-1], rennala(hand, batch))
    assert result.workers[-1].counter("k") == hand.k == 12 * len(seconds) // batch


@pytest.mark.parametrize(
    "seconds",
    [*SPEEDS, (1.0, 7.30171), (1.0, 1.0117, 1.0231, 1.0373, 41.0911)],
    ids=lambda speeds: str(len(speeds)),
)
def test_ringleader_by_hand_and_its_largest_delay_is_attained(seconds: tuple[float, ...]) -> None:
    n = len(seconds)
    result, hand = trained(Ringleader(), seconds, 150), ByHand(seconds, 150 * n)
    rounds = Rounds(hand)
    assert_equal(result.x[-1], hand.run(rounds.arrive))
    assert result.workers[-1].counter("k") == hand.k > 2 * n
    assert max(rounds.delays) == 2 * n - 2
    assert max(result.workers[-1].progress.observed["staleness"]) <= 2 * n - 2


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_no_gradient_of_ringleader_is_later_on_any_machines(
    name: str, cluster: Cluster, faults: Faults
) -> None:
    server = run(Ringleader(), 5, 40, OPTIM, cluster, faults).workers[5]
    assert 0 < max(server.progress.observed["staleness"]) <= 8


@pytest.mark.parametrize("stop", [False, True])
def test_ringmaster_without_a_limit_is_asgd(stop: bool) -> None:
    cluster = machines(LogNormalTime(0.6), latency=0.3, factors={1: 2.0})
    mine = run(Ringmaster(10**6, stop), 4, 20, OPTIM, cluster).x[4]
    assert_equal(mine, run(GapAware("none"), 4, 20, OPTIM, cluster).x[4])


def test_ringmaster_with_a_limit_of_one_is_sgd() -> None:
    """The server applies the first of several gradients that arrive at the same time."""
    result = run(Ringmaster(1), 3, STEPS, OPTIM)
    assert_equal(result.x[3], run(LocalSGD(None), 1, STEPS, OPTIM).x[0])
    assert result.workers[3].counter("k") == STEPS


def same_batch() -> dict[str, object]:
    """A problem in which a worker always has the same batch."""
    scales, centers = (table[:, :1].repeat(STEPS, axis=1) for table in (SCALES, CENTERS))
    return {"problem": tiny_problem(scales, centers)}


def test_rennala_with_a_batch_of_one_is_sgd() -> None:
    """The others abandon all their gradients, until the fastest worker has no step left."""
    cluster = machines(factors={1: 1.7, 2: 40.0})
    result = run(Rennala(1), 3, STEPS, OPTIM, cluster, **same_batch())  # type: ignore[arg-type]
    assert [worker.steps_taken for worker in result.workers] == [34, 1, 1, 36]
    plain = run(LocalSGD(None), 1, 34, OPTIM, **same_batch())  # type: ignore[arg-type]
    assert_equal(np.stack(result.history[3][:34]), np.stack(plain.history[0]))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_rennala_of_equal_workers_is_ps_sgd(n: int) -> None:
    mine = run(Rennala(), n, STEPS, OPTIM, **same_batch())  # type: ignore[arg-type]
    theirs = run(PSSGD(), n, STEPS, OPTIM, **same_batch())  # type: ignore[arg-type]
    assert_equal(mine.x, theirs.x)
    assert mine.simulation.clock.now == pytest.approx(STEPS)


@pytest.mark.parametrize("algo", [Ringleader(), Rennala(1), Ringmaster()], ids=str)
def test_one_worker_with_a_server_is_sgd(algo: Algorithm) -> None:
    result = run(algo, 1, STEPS, OPTIM, **same_batch())  # type: ignore[arg-type]
    plain = run(LocalSGD(None), 1, STEPS, OPTIM, **same_batch())  # type: ignore[arg-type]
    assert_equal(result.x, np.tile(plain.x[0], (2, 1)))


def test_an_abandoned_gradient_takes_no_more_time() -> None:
    """Workers take 1 and 2.5 s; both restart when the first one has sent two gradients.

    Two of six gradients are of the second worker, once the first one has no step left.
    """
    result = run(Rennala(2), 2, 3, cluster=machines(factors={1: 2.5}))
    assert [entry for entry in result.trace if entry[1] == 2] == [
        (1.0, 2, 0),
        (2.0, 2, 1),
        (3.0, 2, 2),
        (4.0, 2, 3),
        (5.0, 2, 4),
        (6.5, 2, 5),
    ]
    assert result.simulation.computed == 6


@pytest.mark.parametrize("algo", ALL, ids=str)
@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_the_budget_is_spent_with_vmap_too(
    name: str, cluster: Cluster, faults: Faults, algo: Algorithm
) -> None:
    loop = run(algo, 4, 10, OPTIM, cluster, faults)
    vmap = run(algo, 4, 10, OPTIM, cluster, faults, engine=lambda problem: Vmap(problem, 3))
    assert_equal(vmap.x, loop.x)
    taken = [worker.steps_taken for worker in loop.workers]
    assert taken[4] == sum(taken[:4]) == 40


def test_bytes_of_servers() -> None:
    """In float64: parameters and gradients, with their number k in Ringmaster and Rennala."""
    sent = {
        str(algo): [worker.comm.num_bytes_sent for worker in run(algo, 3, 10, OPTIM).workers]
        for algo in (Ringmaster(2), Rennala(5), Ringleader())
    }
    assert sent[str(Ringmaster(2))] == [8 * (D + 1) * 10] * 3 + [8 * (D + 1) * 30]
    assert sent[str(Ringleader())] == [8 * D * 10] * 3 + [
        8 * D * run(Ringleader(), 3, 10, OPTIM).workers[3].counter("k")
    ]
    server = run(Rennala(5), 3, 10, OPTIM).workers[3]
    assert sent[str(Rennala(5))][3] == 8 * (D + 1) * 3 * server.counter("k")
    assert sum(sent[str(Rennala(5))][:3]) == 8 * (D + 1) * 30

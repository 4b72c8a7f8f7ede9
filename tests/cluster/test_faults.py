"""Faults: literal times of each, and that no algorithm loses anything, changes its result or stands
still under any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.clusters import cluster_of
from helpers.conservation import Tallied
from helpers.experiments import distance, instrumented, make_experiment, steps_taken
from helpers.paths import RANKS
from helpers.refusals import refusal
from helpers.tiny import START, D, Result, machines, run, sgd
from test_invariants import EXACT, check_nothing_is_left, check_sum, check_weights, noted
from test_simulator import Custom, arrivals, network
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.cluster.compute_variation import ConstantTime, LogNormalTime
from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.rates import RateSchedule
from sgp_runner.config.experiment import load_experiment
from sgp_runner.core.scheduler import Deadlock, RealClock
from sgp_runner.core.worker import Progress, Worker
from sgp_runner.distributed.rank import Rank
from sgp_runner.topology.graphs import BipartiteExponential, DirectedExponential, Ring

INF = float("inf")
REAL_RANK = str(RANKS / "real_rank.py")


def events(*given: Event) -> Faults:
    return Faults(events=given)


# Time.


@pytest.mark.parametrize(
    ("begin", "end", "finish"),
    [
        (0, 2, 2),  # done just before it stops
        (0, 3, 6),  # 2 s, then a stop of 3, then 1 s
        (2, 2, 5),  # nothing is done either
        (3, 4, 6),
        (5, 8, 8),
        (8, 12, 16),  # 2 s, then 2 at a third of the speed, which would take 6
        (8, 14, 20),  # 2 s, 9 s for 3, 1 s
        (0, 16, 25),  # all of it
    ],
)
def test_work_goes_on_after_a_stop_and_slowly_in_between(
    begin: float, end: float, finish: float
) -> None:
    assert RateSchedule(((2.0, 5.0, INF), (10.0, 19.0, 3.0))).finish(begin, end) == pytest.approx(
        finish, abs=1e-12
    )


def test_what_stops_for_good_is_never_done() -> None:
    course = RateSchedule(((2.0, INF, INF),))
    assert [course.finish(0, 1), course.finish(0, 3), course.clear(7), course.finish(INF, INF)] == [
        1,
        INF,
        INF,
        INF,
    ]


def test_spells_that_overlap_multiply() -> None:
    faults = events(
        Event("slow_node", (0,), 2, 8, 2.0),
        Event("slow_node", (0, 1), 4, 6, 3.0),
        Event("pause", (0,), 5, 6),
    )
    result = run(Custom(three_gradients), 2, 1, faults=faults, cluster=machines(seconds=2.0))
    # rank 0: 2 s | from 2 at half speed, from 4 at a sixth, still from 5 to 6, half speed to 8: 1 +
    # 1/6 + 5/6 done at 7 2/3
    assert result.simulation.machines.compute.busy_until == pytest.approx(
        [7 + 2 / 3 + 1 / 3 + 2 - 1 / 6, 6 + 4 / 3]
    )


async def three_gradients(worker: Worker) -> None:
    for _ in range(3):
        await worker.grad()


SLOW = Event("slow_link", (1,), 2, 11, 4.0)


@pytest.mark.parametrize(
    ("faults", "messages", "times"),
    [
        # A slow spell slows the part of a message that it meets. It leaves in 2 + 9 (a quarter of
        # it: 2.25) + 0.75 s; from 10 on it comes in, and its last bit is there 10 s after it left.
        (events(SLOW), [(1, 0, 5)], [21.75]),
        # It comes in from 10 on, 1 s at a quarter. What else its sender sends is not late.
        (events(SLOW), [(0, 1, 5), (0, 2, 5)], [15.75, 20.0]),
        # A paused rank sends and reads late, while its interface goes on.
        (
            events(Event("pause", (1,), 0, 100)),
            [(0, 1, 5), (2, 1, 5), (1, 2, 5)],
            [100.0, 100.0, 115.0],
        ),
        # A rank that is down receives afterwards, one after the other.
        (
            events(Event("crash", (1,), 0, 100)),
            [(0, 1, 5), (2, 1, 5), (1, 2, 5)],
            [105.0, 110.0, 115.0],
        ),
        # What is leaving when its sender crashes leaves afterwards.
        (
            events(Event("crash", (0,), 3, 50)),
            [(0, 1, 5), (0, 1, 5), (2, 1, 1)],
            [62.0, 67.0, 16.0],
        ),
        # A partition holds up messages between its sides only.
        (
            events(Event("partition", (0, 1), 0, 30)),
            [(0, 1, 5), (0, 2, 5), (2, 0, 5)],
            [15.0, 35.0, 35.0],
        ),
        # A constant delay is added to the latency.
        (Faults(delay_seconds=3.0), [(0, 1, 5), (0, 2, 3)], [18.0, 21.0]),
    ],
)
def test_a_fault_holds_up_the_messages_that_it_meets(
    faults: Faults, messages: list[tuple[int, int, float]], times: list[float]
) -> None:
    assert arrivals(*network(faults=faults), *messages) == times


@pytest.mark.parametrize(
    ("law", "variance"), [("constant", 0.0), ("exponential", 4.0), ("uniform", 4.0 / 3)]
)
def test_delays_have_the_mean_and_spread_they_promise(law: str, variance: float) -> None:
    extra = np.broadcast_to(
        Faults(delay_seconds=2.0, delay_law=law).extra_seconds(np.random.default_rng(0), (40_000,)),
        40_000,
    )  # type: ignore[arg-type]
    assert extra.mean() == pytest.approx(2.0, rel=0.01)
    assert extra.var() == pytest.approx(variance, rel=0.03)


def test_a_lost_message_comes_a_time_out_later_or_several() -> None:
    extra = Faults(drop_probability=0.25, resend_seconds=0.5).extra_seconds(
        np.random.default_rng(0), (40_000,)
    )
    assert sorted(set(extra))[:3] == [0.0, 0.5, 1.0]
    assert [(extra == late).mean() for late in (0.0, 0.5, 1.0)] == pytest.approx(
        [3 / 4, 3 / 16, 3 / 64], rel=0.05
    )


@pytest.mark.parametrize(
    "faults",
    [
        Faults(delay_seconds=20.0, delay_law="uniform"),
        Faults(drop_probability=0.5, resend_seconds=20.0),
    ],
)
def test_messages_overtake_those_of_other_senders_never_those_of_their_own(faults: Faults) -> None:
    both = [(rank, 2, 0) for _ in range(20) for rank in (0, 1)]
    times = arrivals(*network(faults=faults), *both)
    first, second = times[::2], times[1::2]
    assert first == sorted(first) and second == sorted(second)
    assert {a < b for a, b in zip(first, second, strict=True)} == {True, False}
    assert times == arrivals(*network(faults=faults), *both)
    # ... and do not depend on what others send.
    assert first == arrivals(*network(faults=faults), *both[::2])


@pytest.mark.parametrize(
    ("event", "seconds"),
    [
        (Event("pause", (1,), 2, 12), 15.0),
        (Event("crash", (0,), 2, 12), 15.0),
        (Event("partition", (1,), 2, 12), 15.0),
        (Event("partition", (1,), 0, 0.5), 5.0),  # healed before it began
        (Event("slow_link", (1,), 2, 4, 2.0), 6.0),
        (Event("pause", (0, 1), 0, 3), 8.0),
    ],
)
def test_an_all_reduce_stands_still_with_any_of_its_ranks(event: Event, seconds: float) -> None:
    cluster = machines(bandwidth=D * 8 * 8 / 4.0)  # 4 s on two nodes, after a gradient of 1 s
    assert run(
        ARSGD(), 2, 1, cluster=cluster, faults=events(event)
    ).simulation.clock.now == pytest.approx(seconds), event


def test_each_round_of_an_all_reduce_is_delayed() -> None:
    cluster = machines(bandwidth=1e18)
    assert run(
        ARSGD(), 4, 1, cluster=cluster, faults=Faults(delay_seconds=0.5)
    ).simulation.clock.now == pytest.approx(1 + 6 * 0.5)
    law = Faults(delay_seconds=0.5, delay_law="uniform")
    late = run(ARSGD(), 4, 1, cluster=cluster, faults=law).simulation.clock.now
    assert 1 + 6 * 0.5 < late < 1 + 6 * 1.0  # each round waits for the latest of four
    assert late == run(ARSGD(), 4, 1, cluster=cluster, faults=law).simulation.clock.now


@pytest.mark.parametrize(
    ("seconds", "pause", "end"),
    [
        # It can begin at 5, or at 8 after the pause, and its last quarter when both gradients are
        # complete, at 10 or 13.
        (4.0, (2, 5), 14.0),
        (12.0, (2, 5), 20.0),
        # It has begun when both stop.
        (4.0, (7, 12), 16.0),
        (12.0, (7, 12), 22.0),
        (4.0, (10.5, 12), 12.5),
        (12.0, (10.5, 12), 18.5),
    ],
)
def test_an_all_reduce_beside_the_backward_pass_of_a_paused_rank(
    seconds: float, pause: tuple[float, float], end: float
) -> None:
    """The gradient takes 10 s, and its all-reduce can begin in the middle."""
    num_bytes = D * 8
    cluster = cluster_of(
        {"default": 10.0},
        ConstantTime(),
        num_bytes * 8 / seconds,
        0.0,
        {},
        overlap=0.5,
        bucket_bytes=num_bytes // 4,
    )
    assert run(
        ARSGD(), 2, 1, cluster=cluster, faults=events(Event("pause", (1,), *pause))
    ).simulation.clock.now == pytest.approx(end)


def test_sgp_on_two_nodes_waits_for_the_paused_one() -> None:
    result = run(SGP(DirectedExponential()), 2, 3, faults=events(Event("pause", (1,), 1.5, 4.5)))
    assert sorted(result.trace) == [
        (1.0, 0, 0),
        (1.0, 1, 0),
        (5.0, 0, 1),
        (5.0, 1, 1),
        (6.0, 0, 2),
        (6.0, 1, 2),
    ]


# Every algorithm under every fault.

WINDOW = (2.5, 6.25)
FAULTS = {
    "slow node": events(Event("slow_node", (0,), *WINDOW, 5.0)),
    "slow link": events(Event("slow_link", (1,), *WINDOW, 50.0)),
    "pause": events(Event("pause", (1,), *WINDOW)),
    "pause of two": events(Event("pause", (0, 3), *WINDOW), Event("pause", (3,), 7, 9)),
    "crash": events(Event("crash", (1,), *WINDOW)),
    "crash of all": events(Event("crash", (0, 1, 2, 3), *WINDOW)),
    "partition": events(Event("partition", (0, 1), *WINDOW)),
    "churn": Faults(churn_per_hour=1800.0, absence_seconds=0.7),
    "delay": Faults(delay_seconds=0.7),
    "exponential delay": Faults(delay_seconds=0.7, delay_law="exponential"),
    "reorder": Faults(delay_seconds=2.5, delay_law="uniform"),
    "drop": Faults(drop_probability=0.3, resend_seconds=1.7),
    "everything": Faults(
        {2: 3.0},
        {3: 2.0},
        (
            Event("crash", (0, 2), 1, 3),
            Event("partition", (1,), 2, 5),
            Event("pause", (3,), 4, 6),
            Event("slow_node", (1,), 3, 9, 2.0),
        ),
        delay_seconds=0.4,
        delay_law="exponential",
        drop_probability=0.1,
    ),
}
GRAPH = DirectedExponential()
LOCKSTEP: list[Algorithm] = [
    ARSGD(),
    ARSGD("parameters"),
    DPSGD(Ring()),
    DPSGD(Ring(), "adapt_then_combine"),
    SGP(GRAPH),
    LocalSGD(3),
    PipeSGD(3),
    PipeSGD(2, compression="quantize8"),
    PSSGD(),
    SlowMo(SGP(GRAPH), 3),
    Hybrid(ARSGD(), SGP(GRAPH), 0.8),
]
FREE: list[Algorithm] = [
    OSGP(GRAPH, tau=1),
    OSGP(GRAPH, tau=3, layout="released"),
    ADPSGD(BipartiteExponential()),
    ADPSGD(BipartiteExponential(), 2),
    GapAware(),
    GapAware("staleness"),
    GapAware("none", momentum="per_worker"),
    AsyncDiLoCo(period=3, grace=0.5),
]
# A message takes some time, compute times differ, and interfaces have queues.
ROUGH = machines(LogNormalTime(0.3), bandwidth=(D + 1) * 8 * 8 / 0.2, latency=0.1)
STEPS = 8


def under(
    algo: Algorithm,
    faults: Faults | None,
    optim: Tallied | None = None,
    look: Callable[[Result, Worker], None] | None = None,
) -> Result:
    return run(
        algo, 4, STEPS, optim or sgd(0.05), ROUGH, faults, look or (lambda result, worker: None)
    )  # type: ignore[arg-type]


@cache
def undisturbed_of(algo: Algorithm) -> Result:
    return under(algo, None)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("algo", LOCKSTEP, ids=repr)
def test_what_is_synchronous_ends_as_if_nothing_had_gone_wrong_only_later(
    algo: Algorithm, fault: str
) -> None:
    disturbed, undisturbed = under(algo, FAULTS[fault]), undisturbed_of(algo)
    assert np.array_equal(disturbed.x, undisturbed.x) and np.array_equal(disturbed.w, undisturbed.w)
    assert disturbed.simulation.clock.now >= undisturbed.simulation.clock.now
    check_nothing_is_left(disturbed)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("algo", FREE, ids=repr)
def test_what_depends_on_time_loses_nothing_and_computes_each_gradient_once(
    algo: Algorithm, fault: str
) -> None:
    optim = noted()
    push_sum = isinstance(algo, OSGP)
    result = under(algo, FAULTS[fault], optim, check_weights if push_sum else None)
    check_nothing_is_left(result)
    assert abs(result.w.sum() - len(result.workers)) < EXACT
    steps = [step for _, rank, step in result.trace if rank < 4]
    assert sorted(steps) == sorted(list(range(STEPS)) * 4 if push_sum else range(4 * STEPS))
    assert sum(worker.progress.gradients for worker in result.workers) == 4 * STEPS
    if isinstance(algo, GapAware | AsyncDiLoCo):
        assert result.workers[-1].steps_taken == 4 * STEPS
    else:
        check_sum(result, optim)
    again = under(algo, FAULTS[fault], noted())
    assert again.trace == result.trace and again.x.tobytes() == result.x.tobytes()


FOR_GOOD = {
    "crash": events(Event("crash", (1,), 2.5)),
    "pause": events(Event("pause", (1,), 2.5)),
    "partition": events(Event("partition", (0, 1), 2.5)),
}


@pytest.mark.parametrize("fault", FOR_GOOD)
@pytest.mark.parametrize("algo", [*LOCKSTEP, *FREE], ids=repr)
def test_a_fault_for_good_ends_every_run_with_a_report(algo: Algorithm, fault: str) -> None:
    """Nobody goes on for ever without a rank, and nobody ends as if it had been there."""
    with pytest.raises(Deadlock) as stopped:
        under(algo, FOR_GOOD[fault])
    first, *waits, last = str(stopped.value).splitlines()
    reasons = {
        "crash": "ranks [1] are down",
        "pause": "ranks [1] are paused",
        "partition": "ranks [0, 1] are cut off from the others",
    }
    assert (first, last) == (
        "deadlock: every worker is blocked.",
        f"  {reasons[fault]} permanently, from 2.5 s on",
    )
    assert waits and all(" waits for " in line for line in waits)


def test_asynchronous_workers_use_up_the_budget_without_the_one_that_is_down() -> None:
    """They only stop at the end, at what it still owes: the gradient that it had begun."""
    seen: list[int] = []
    with pytest.raises(Deadlock, match="rank 4 waits for a message from any rank"):
        under(GapAware(), FOR_GOOD["crash"], look=lambda result, worker: seen.append(worker.step))  # type: ignore[arg-type]
    assert len(seen) == 2 * (4 * STEPS - 1)  # at the workers and at the server


@pytest.mark.parametrize("what", ["crash", "pause"])
def test_a_crashed_worker_goes_on_from_its_state(what: Any) -> None:
    """One worker alone: the same parameters, exactly the crash later."""
    faults = events(Event(what, (0,), 1.25, 3.25))  # type: ignore[arg-type]
    result, undisturbed = run(ARSGD(), 1, 3, faults=faults), run(ARSGD(), 1, 3)
    assert result.trace == [(1.0, 0, 0), (4.0, 0, 1), (5.0, 0, 2)]
    assert np.array_equal(result.x, undisturbed.x) and not np.array_equal(result.x[0], START)


# Settings.


@pytest.mark.parametrize(
    ("make", "key", "part"),
    [
        (lambda: Event("pause", ()), "faults.events.ranks", "needs ranks"),
        (
            lambda: Event("pause", (0,), -1.0),
            "faults.events.start",
            "-1.0 must be zero or positive",
        ),
        (
            lambda: Event("pause", (0,), 2.0, 2.0),
            "faults.events.end",
            "2.0 must be after the start, 2.0",
        ),
        (lambda: Event("slow_node", (0,)), "faults.events.factor", "a slow_node needs one"),
        (lambda: Event("crash", (0,), factor=2.0), "faults.events.factor", "a crash has none"),
        (
            lambda: Event("slow_link", (0,), factor=0.5),
            "faults.events.factor",
            "0.5 must be at least 1",
        ),
        (
            lambda: Faults(delay_seconds=-1.0),
            "faults.delay_seconds",
            "-1.0 must be zero or positive",
        ),
        (lambda: Faults(drop_probability=1.0), "faults.drop_probability", "1.0 must be in [0, 1)"),
        (
            lambda: Faults(drop_probability=0.1, resend_seconds=None),
            "faults.resend_seconds",
            "no algorithm tolerates",
        ),
        (lambda: Faults(resend_seconds=0.0), "faults.resend_seconds", "0.0 must be positive"),
        (
            lambda: Faults(churn_per_hour=-1.0),
            "faults.churn_per_hour",
            "-1.0 must be zero or positive",
        ),
        (lambda: Faults(churn_per_hour=1e-300), "faults.churn_per_hour", "1e-300 is too small"),
        (lambda: Faults(absence_seconds=0.0), "faults.absence_seconds", "0.0 must be positive"),
        (
            lambda: Faults(churn_per_hour=1.0).check_real(2),
            "faults",
            "only the simulator supports churn_per_hour: use network=sim",
        ),
        (
            lambda: events(Event("crash", (1, 9))).check(8, 1),
            "faults.events[0].ranks",
            "the run has no rank 9; use 0 to 8.",
        ),
        (
            lambda: events(Event("slow_node", (8,), factor=2.0)).check(8, 1),
            "faults.events[0].ranks",
            "the run has no rank 8; use 0 to 7.",
        ),
        (
            lambda: events(Event("partition", (0, 1))).check(2, 0),
            "faults.events[0].ranks",
            "a partition has two sides",
        ),
    ],
)
def test_faults_that_cannot_be_are_refused(make: Callable[[], object], key: str, part: str) -> None:
    error = refusal(make)
    assert error.key == key and part in error.sentence


def test_events_are_read_from_the_command_and_from_what_was_recorded(tmp_path: Path) -> None:
    override = (
        "faults.events=[{what: pause, ranks: [1], start: 1, end: 2}, {what: slow_link, ranks: "
        "[0,3], factor: 2}]"
    )
    made = make_experiment(tmp_path, "model=timing_only", override)
    assert made.run.faults == events(
        Event("pause", (1,), 1.0, 2.0), Event("slow_link", (0, 3), factor=2.0)
    )
    again = load_experiment(made.directory / "config.yaml", None)
    assert (again.run.faults, again.name) == (made.run.faults, made.name)


@pytest.mark.parametrize(
    ("events", "key", "sentence"),
    [
        (
            "{what: pause, rank: [1]}",
            "faults.events[0].rank",
            "there is no such setting. Did you mean 'faults.events[0].ranks'?",
        ),
        (
            "{what: pose, ranks: [1]}",
            "faults.events[0].what",
            "'pose' is not one of slow_node, slow_link, pause, crash, partition.",
        ),
        ("{what: pause, ranks: 1}", "faults.events[0].ranks", "1 is not a list such as [1,2]."),
        (
            "{what: pause, ranks: [1], end: 0}",
            "faults.events[0].end",
            "0.0 must be after the start, 0.0; null: never.",
        ),
        (
            "{ranks: [1]}",
            "faults.events[0].what",
            "the value is missing; write faults.events[0].what=...",
        ),
        ("3", "faults.events[0]", "3 is not a set of settings."),
    ],
)
def test_a_bad_event_is_named(events: str, key: str, sentence: str, tmp_path: Path) -> None:
    error = refusal(make_experiment, tmp_path, "model=timing_only", f"faults.events=[{events}]")
    assert str(error).startswith(f"{key}: {sentence}")


# Real runs.


def test_a_real_rank_sleeps_in_proportion_and_through_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    rank, watch = object.__new__(Rank), SimpleNamespace(now=1.0)
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(RealClock, "now", property(lambda clock: watch.now))
    rank.slow, rank.awake = RateSchedule(((0.0, INF, 4.0),)), RateSchedule(((5.0, 9.0, INF),))

    rank.clock, worker = RealClock(), SimpleNamespace(progress=Progress())
    result = torch.ones(1), torch.tensor(0.5)

    def compute() -> tuple[Tensor, Tensor]:
        watch.now = 3.0
        return result

    assert rank.paced(compute) == (1.0, 2.0, result)
    watch.now = 9.0  # it has slept 6 s
    assert rank.complete(worker, 1.0, 8.0, result) is result[0]  # type: ignore[arg-type]
    rank.complete(worker, 9.0, 8.0, result)  # type: ignore[arg-type]
    assert slept == [6.0, 4.0, 0.0]


@pytest.mark.parametrize("algo", ["ar_sgd", "sgp", "ad_psgd"])
def test_slow_and_paused_real_ranks_compute_the_same(algo: str, tmp_path: Path) -> None:
    settings = (
        "dtype=float64",
        "model=mlp",
        "nodes=2",
        "epochs=0.1",
        "log_every=1",
        f"algo={algo}",
        "faults=slow_node",
    )
    pause = "faults.events=[{what: pause, ranks: [0, 1], start: 0, end: 2}]"
    simulated, real = (
        make_experiment(tmp_path, *settings, pause, f"network={network}")
        for network in ("sim", "gloo")
    )
    execute(instrumented(simulated))
    summary = launch(real, program=(REAL_RANK, "-1"))
    assert float(str(summary["time_s"])) >= 2.0  # everybody's first gradient
    assert sum(steps_taken(real)) == sum(steps_taken(simulated))
    if algo != "ad_psgd":
        assert distance(simulated, real) < 1e-10

"""Properties of every algorithm over every graph, on any machines: thousands of small
simulations, the same ones each time.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
from helpers.clusters import cluster_of
from helpers.conservation import Scattering, Tallied, tallied
from helpers.graphs import Literal as Graph
from helpers.refusals import accepted
from helpers.tiny import START, Result, run, sgd
from hypothesis import assume, given, settings
from hypothesis import strategies as st
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
from sgp_runner.cluster.compute_variation import ConstantTime, GammaTime, LogNormalTime
from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import Constant
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    BipartiteExponential,
    Complete,
    DirectedExponential,
    Peers,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
    Torus,
)
from sgp_runner.topology.verify import verify

EXACT = 1e-9


def often(examples: int) -> Any:
    """Return settings for all examples in ``make test-slow``, and for a quarter in a fast run."""
    count = examples if "SGP_TEST_DEEP" in os.environ else examples // 4
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


# What is drawn.

sizes = st.integers(1, 9)
symmetric: st.SearchStrategy[Topology] = st.one_of(
    st.sampled_from([Ring(), Complete(), Torus(), BipartiteExponential()]),
    st.builds(RandomMatching, st.integers(0, 99)),
)
directed: st.SearchStrategy[Topology] = st.one_of(
    st.sampled_from([BidirectionalExponential(), StaticExponential()]),
    st.builds(
        DirectedExponential,
        st.one_of(st.integers(1, 3), st.sampled_from([{0: 2, 1: 1}, {0: 1, 1: 3}])),
    ),
)


@st.composite
def random_graphs(draw: st.DrawFn, size: int) -> Graph:
    """Any edges at all, with those of a ring in one of the steps: connected, but neither regular
    nor symmetric.
    """
    period = draw(st.integers(1, 3))
    with_ring = draw(st.integers(0, period - 1))
    out: list[tuple[Peers, ...]] = []
    for step in range(period):
        chosen = [
            draw(st.sets(st.integers(0, size - 1), max_size=3))
            | ({(rank + 1) % size} if step == with_ring else set())
            for rank in range(size)
        ]
        out.append(tuple(tuple(sorted(peers - {rank})) for rank, peers in enumerate(chosen)))
    return Graph(tuple(out))


@st.composite
def graphs(draw: st.DrawFn, size: int) -> Topology:
    return draw(st.one_of(symmetric, directed, random_graphs(size)))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Machines on which a message of this problem takes from no time to many gradients, and
    overtakes those of other senders.
    """
    return cluster_of(
        step_seconds={"default": 1.0},
        compute_time=draw(
            st.sampled_from(
                [ConstantTime(), LogNormalTime(0.5), LogNormalTime(2.0), GammaTime(1.0)]
            )
        ),
        bandwidth=draw(
            st.sampled_from([1e18, 1e3, 100.0, 30.0])
        ),  # bits per second; a message has some hundred
        latency_seconds=draw(st.sampled_from([0.0, 0.3, 1.0, 7.5])),
        node_factors=draw(
            st.dictionaries(st.integers(0, 8), st.sampled_from([0.1, 1.0, 5.0]), max_size=3)
        ),
        message_overhead_seconds=draw(st.sampled_from([0.0, 0.1])),
        duplex=draw(st.sampled_from(["full", "half"])),
        overlap=draw(st.sampled_from([0.0, 0.5])),
        heterogeneity=draw(st.sampled_from([0.0, 0.6])),
    )


@st.composite
def events(draw: st.DrawFn) -> Event:
    what = draw(st.sampled_from(["slow_node", "slow_link", "pause", "crash", "partition"]))
    start, seconds = (
        draw(st.sampled_from([0.0, 0.5, 1.0, 2.2])),
        draw(st.sampled_from([0.1, 1.0, 6.0])),
    )
    ranks = tuple(draw(st.sets(st.integers(0, 8), min_size=1, max_size=4)))
    return Event(what, ranks, start, start + seconds, 3.0 if what.startswith("slow") else None)  # type: ignore[arg-type]


def faults() -> st.SearchStrategy[Faults]:
    factors = st.dictionaries(st.integers(0, 8), st.sampled_from([1.0, 4.0, 20.0]), max_size=2)
    laws = st.sampled_from(["constant", "exponential", "uniform"])
    delays, drops = st.sampled_from([0.0, 0.0, 0.3, 2.0]), st.sampled_from([0.0, 0.0, 0.2])
    return st.builds(
        Faults, factors, factors, st.lists(events(), max_size=3).map(tuple), delays, laws, drops
    )  # type: ignore[arg-type]


def osgp(
    topology: Topology, layouts: tuple[str, ...] = ("paper", "released")
) -> st.SearchStrategy[OSGP]:
    return st.builds(
        OSGP, st.just(topology), st.integers(0, 4), st.integers(1, 3), st.sampled_from(layouts)
    )


@st.composite
def push_sums(draw: st.DrawFn, size: int) -> Algorithm:
    """Those that keep the sum of all numerators."""
    graph = draw(graphs(size))
    return draw(st.one_of(st.just(SGP(graph)), osgp(graph)))


@st.composite
def lockstep(draw: st.DrawFn, size: int) -> Algorithm:
    """Those whose messages are waited for in an order that does not depend on time."""
    graph = draw(graphs(size))
    gossip: list[Algorithm] = [
        SGP(graph),
        OSGP(graph, tau=0),
        OSGP(graph, tau=0, layout="released_2019", interval=2),
    ]
    gossip += [
        DPSGD(
            draw(symmetric),
            draw(st.sampled_from(["combine_while_computing", "adapt_then_combine"])),
        )
    ]
    exact: list[Algorithm] = [
        ARSGD(),
        ARSGD("parameters"),
        LocalSGD(3),
        PipeSGD(draw(st.integers(1, 4))),
        PipeSGD(2, compression="quantize8"),
    ]
    base = draw(st.sampled_from([*gossip, ARSGD(), LocalSGD(None)]))
    slow = SlowMo(base, draw(st.integers(1, 4)), exact_average=draw(st.booleans()), buffers="keep")
    then = draw(st.sampled_from([*gossip, *exact]))
    return draw(
        st.sampled_from(
            [
                *gossip,
                *exact,
                PSSGD(),
                slow,
                Hybrid(base, then, draw(st.sampled_from([0.3, 0.8, 5.0]))),
            ]
        )
    )


# What is watched.


def noted() -> Tallied:
    return tallied(sgd(lr=0.05, momentum=0.5, weight_decay=0.01))


def travelling(result: Result) -> list[Tensor]:
    """Messages that were sent and that no coroutine has taken in yet."""
    simulation = result.simulation
    found = [
        arguments[0].message
        for _, _, event, arguments in simulation.clock.events
        if event in ("reach", "arrive", "served")
    ]
    found += [message for mailbox in simulation.mailboxes for _, _, message in mailbox.state_dict()]
    for task in simulation.scheduler.ready:  # handed over at this very moment
        if task.waiting is not None and task.waiting.what[0] in ("message", "any message"):
            value = task.waiting.value
            found.append(value[1] if isinstance(value, tuple) else value)
    return found


def check_weights(result: Result, worker: Worker) -> None:
    total = sum(float(message[-1]) for message in travelling(result)) + sum(
        float(node.push_sum[-1]) for node in result.workers
    )
    assert abs(total - worker.size) < EXACT


def check_nothing_is_left(result: Result) -> None:
    simulation = result.simulation
    assert (
        simulation.fabric.in_flight == 0
        and not simulation.machines.collectives.under_way
        and not simulation.clock.events
    )
    assert not any(mailbox.state_dict() or mailbox.waiting for mailbox in simulation.mailboxes)


def check_sum(result: Result, optim: Tallied) -> None:
    """Numerators have changed by local steps alone."""
    expected = len(result.workers) * START - optim.total.numpy()
    numerators = (result.x * result.w[:, None]).sum(0)
    assert np.abs(numerators - expected).max() < EXACT * len(result.workers)


# The properties.


@often(700)
@given(
    data=st.data(),
    size=sizes,
    cluster=clusters(),
    faults=faults(),
    steps=st.integers(1, 7),
    seed=st.integers(0, 9),
)
def test_push_sum_loses_no_mass(
    data: st.DataObject, size: int, cluster: Cluster, faults: Faults, steps: int, seed: int
) -> None:
    algo = data.draw(push_sums(size))
    assume(accepted(algo.check, size, sgd()))
    optim = noted()
    result = run(algo, size, steps, optim, cluster, faults, check_weights, seed=seed)
    check_nothing_is_left(result)
    check_sum(result, optim)
    assert abs(result.w.sum() - size) < EXACT and (result.w > 0).all()


@often(300)
@given(
    pairs=st.integers(1, 4),
    topology=st.sampled_from([BipartiteExponential(), Ring()]),
    averages=st.integers(1, 3),
    cluster=clusters(),
    faults=faults(),
    steps=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_pairwise_averages_are_atomic(
    pairs: int,
    topology: Topology,
    averages: int,
    cluster: Cluster,
    faults: Faults,
    steps: int,
    seed: int,
) -> None:
    """An average that reads one value and overwrites another loses some of the sum."""
    optim = noted()
    result = run(ADPSGD(topology, averages), 2 * pairs, steps, optim, cluster, faults, seed=seed)
    check_nothing_is_left(result)
    check_sum(result, optim)
    assert sorted(step for _, _, step in result.trace) == list(
        range(2 * pairs * steps)
    )  # the budget, each gradient once


@often(700)
@given(
    data=st.data(),
    size=sizes,
    cluster=clusters(),
    faults=faults(),
    steps=st.integers(1, 7),
    seed=st.integers(0, 9),
)
def test_what_is_synchronous_does_not_depend_on_time(
    data: st.DataObject, size: int, cluster: Cluster, faults: Faults, steps: int, seed: int
) -> None:
    algo = data.draw(lockstep(size))
    assume(accepted(algo.check, size, sgd()))
    at_any_time, at_once = (
        run(algo, size, steps, sgd(0.05), cluster, faults, seed=seed),
        run(algo, size, steps, sgd(0.05)),
    )
    assert np.array_equal(at_any_time.x, at_once.x) and np.array_equal(at_any_time.w, at_once.w)
    for result in (at_any_time, at_once):
        check_nothing_is_left(result)
        assert len({comm.collectives for comm in result.simulation.comms[:size]}) == 1
        assert [worker.steps_taken for worker in result.workers] == [steps] * len(result.workers)


@often(100)
@given(
    data=st.data(),
    pairs=st.integers(1, 3),
    cluster=clusters(),
    faults=faults(),
    kind=st.sampled_from(["push", "pairs", "server", "lockstep"]),
)
def test_the_same_seed_gives_the_same_run(
    data: st.DataObject,
    pairs: int,
    cluster: Cluster,
    faults: Faults,
    kind: Literal["push", "pairs", "server", "lockstep"],
) -> None:
    size = 2 * pairs
    algo: Algorithm
    match kind:
        case "push":
            algo = data.draw(push_sums(size))
        case "pairs":
            algo = ADPSGD(BipartiteExponential())
        case "server":
            algo = GapAware()
        case "lockstep":
            algo = data.draw(lockstep(size))
    assume(accepted(algo.check, size, sgd()))
    first, second = (run(algo, size, 4, sgd(0.05), cluster, faults, seed=5) for _ in range(2))
    assert first.trace == second.trace and np.array_equal(first.x, second.x)


@often(60)
@given(m=st.integers(1, 5), cluster=clusters(), seed=st.integers(0, 9))
def test_the_exponential_graph_averages_a_power_of_two_exactly(
    m: int, cluster: Cluster, seed: int
) -> None:
    optim = Scattering(Constant(), momentum=0.0)
    result = run(SGP(DirectedExponential()), 2**m, m, optim, cluster, seed=seed)
    assert len(optim.taken) == 2**m
    assert np.abs(result.x - (START - np.mean(optim.taken, axis=0))).max() < 1e-12


@often(300)
@given(data=st.data(), size=st.integers(1, 6), period=st.integers(1, 3))
def test_a_proof_agrees_with_its_definition(data: st.DataObject, size: int, period: int) -> None:
    """Closure of the union graph and sums of the matrix, spelt out."""
    peers = st.sets(st.integers(0, size - 1), max_size=3)
    out = tuple(
        tuple(tuple(sorted(data.draw(peers) - {rank})) for rank in range(size))
        for _ in range(period)
    )
    reach = np.eye(size, dtype=int)
    rows = True
    for step in out:
        mixing = np.zeros((size, size))
        for src, destinations in enumerate(step):
            mixing[[src, *destinations], src] = 1 / (len(destinations) + 1)
        reach = reach | (mixing > 0)
        rows = rows and bool(np.allclose(mixing.sum(1), 1))
    connected = bool((np.linalg.matrix_power(reach, size) > 0).all())
    assert accepted(verify, Graph(out), size, "columns") == connected
    assert accepted(verify, Graph(out), size, "doubly stochastic") == (connected and rows)

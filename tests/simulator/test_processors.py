"""Processors that the ranks of a host share: literal times of tiny problems."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.clusters import changed
from helpers.tiny import machines, run

from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.simulator.fabric import packed_events, unpacked_events
from sgp_runner.simulator.processors import Host
from sgp_runner.topology.graphs import DirectedExponential, Ring
from sgp_runner.utils.errors import ConfigError


def host(cores: float) -> tuple[VirtualClock, Host, list[tuple[str, float]]]:
    clock, log = VirtualClock(), []
    one = Host(0, cores, clock)
    clock.handlers |= {
        "task ends": lambda host, turn: one.end(turn),
        "done": lambda name: log.append((name, clock.now)),
    }
    return clock, one, log


def finish(clock: VirtualClock) -> None:
    while clock.advance():
        pass


def test_tasks_share_cores_equally_and_use_one_each() -> None:
    clock, one, log = host(1)
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        one.begin(seconds, "done", name)
    finish(clock)
    assert log == [("a", 2.0), ("b", 3.0)]
    clock, two, log = host(2)
    for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        two.begin(seconds, "done", name)
    clock.at(4.0, "call", two.begin, 1.0, "done", "d")
    finish(clock)
    # 2/3 each until a ends; then two cores for two tasks.
    assert log == [("a", 1.5), ("b", 2.5), ("c", 3.5), ("d", 5.0)]


def test_a_task_does_not_end_before_the_one_that_it_follows() -> None:
    clock, one, log = host(1)
    assert one.begin(1.0, "done", "second", after=one.begin(2.0, "done", "first")) == 2.0
    finish(clock)
    assert log == [("first", 4.0), ("second", 4.0)]


def test_a_saved_host_ends_its_tasks_at_the_same_times() -> None:
    clock, one, log = host(1)
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        one.begin(seconds, "done", name)
    clock.advance(), clock.advance()
    assert log == [("a", 2.0)]
    later, other, after = host(1)
    later.now, later.events = clock.now, unpacked_events(packed_events(clock, clock.events))
    other.load_state_dict(one.state_dict())
    finish(later)
    assert after == [("b", 3.0)]


def shared(cores: float, ranks: int | None = None, **values: Any) -> Cluster:
    settings = {"bandwidth": 64.0, **values}
    return changed(machines(), cores_per_host=cores, ranks_per_host=ranks, **settings)


INSTANT = {"bandwidth": 1e18}
PASSING, MIXING = {"passing_seconds_per_byte": 1 / 24}, {"mixing_seconds_per_byte": 1 / 32}


@pytest.mark.parametrize(
    ("algo", "nodes", "steps", "cluster", "seconds"),
    [
        # Gradients of a host take turns: four ranks compute five of 1 s.
        (ARSGD(), 4, 5, shared(1, 1, **INSTANT), 5),
        (ARSGD(), 4, 5, shared(1, None, **INSTANT), 20),
        (ARSGD(), 4, 5, shared(2, None, **INSTANT), 10),
        (ARSGD(), 4, 5, shared(1, 2, **INSTANT), 10),
        (ARSGD(), 4, 5, shared(8, 4, **INSTANT), 5),
        # Messages are folded in before they count as received.
        (SGP(DirectedExponential()), 2, 5, shared(1, 1, **MIXING), 5 * (1 + 4 + 1)),
        # Processors reduce no faster than they can: each of two ranks sends and receives 24 bytes.
        # The gradients of both take 2 s, and four times 1 s go into the mean.
        (ARSGD(), 2, 1, shared(1, 2, **INSTANT, **PASSING), 2 + 4),
    ],
)
def test_seconds_of_runs_by_hand(
    algo: Any, nodes: int, steps: int, cluster: Cluster, seconds: float
) -> None:
    assert run(algo, nodes, steps, cluster=cluster).simulation.clock.now == pytest.approx(seconds)


def test_a_node_computes_faster_while_the_other_waits() -> None:
    """Rank 1 waits for its averages; of the same core rank 0 then has more."""
    trace = run(ADPSGD(Ring()), 2, 6, cluster=changed(shared(1), bandwidth=1.0)).trace
    first, second = ([time for time, rank, _ in trace if rank == node] for node in (0, 1))
    assert first[:3] == [pytest.approx(2.0), pytest.approx(3.0), pytest.approx(4.0)]
    assert second[0] > 100


def test_messages_take_processor_time_from_gradients() -> None:
    """A message of 32 bytes takes 4 s, and 1 s of a core at either end."""
    cluster = shared(1, 1, passing_seconds_per_byte=1 / 32)
    # Nothing passes while SGP computes, and processors are faster than the link.
    assert run(SGP(DirectedExponential()), 2, 5, cluster=cluster).simulation.clock.now == 5 * 5.0
    # OSGP's second gradient shares its core with the message that it sends and the one that comes.
    trace = run(OSGP(DirectedExponential()), 2, 2, cluster=changed(cluster, bandwidth=256.0)).trace
    assert [time for time, rank, _ in trace if rank == 0] == pytest.approx([1.0, 4.0])
    # Where the core needs 4 * 2 s for four messages of 2 s on the link, it is the limit.
    slow = changed(shared(1, 4, passing_seconds_per_byte=1 / 32), bandwidth=128.0)
    seconds = [
        run(SGP(DirectedExponential()), 4, 1, cluster=variant).simulation.clock.now
        for variant in (slow, changed(slow, passing_seconds_per_byte=0.0))
    ]
    assert seconds == [pytest.approx(4 + 8), pytest.approx(4 + 2)]


def test_a_server_with_processors_answers_one_gradient_after_the_other() -> None:
    cluster = shared(1, 1, serving_seconds_per_byte=1 / 24, node_factors={2: 2.0}, **INSTANT)
    trace = run(GapAware(), 2, 3, cluster=cluster).trace
    assert [time for time, rank, _ in trace if rank == 2] == pytest.approx([3, 5, 7, 9, 11, 13])


def test_the_mean_of_a_gradient_begins_before_its_end() -> None:
    cluster = shared(1, 2, overlap=0.5, bucket_bytes=1, bandwidth=24 * 8.0)
    # Half of both gradients takes 1 s, the other half beside 1 s of the mean another.
    assert run(ARSGD(), 2, 1, cluster=cluster).simulation.clock.now == pytest.approx(2.0, rel=0.1)


def test_a_slow_node_stretches_what_its_processors_take() -> None:
    slow = run(ARSGD(), 2, 2, cluster=shared(1, 2, **INSTANT), faults=Faults({1: 3.0}, {}))
    assert slow.simulation.clock.now == pytest.approx(2 * 6.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ranks_per_host", 2),
        ("passing_seconds_per_byte", 1.0),
        ("mixing_seconds_per_byte", 1.0),
    ],
)
def test_what_only_hosts_have_needs_cores(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"cluster.hosts.{key}.*also set cluster"):
        changed(machines(), **{key: value})
    with pytest.raises(ConfigError, match="cluster.compute.input_seconds"):
        changed(machines(), cores_per_host=1.0, input_seconds=0.5)
    with pytest.raises(ConfigError, match="cluster.hosts.cores_per_host"):
        changed(machines(), cores_per_host=0.0)

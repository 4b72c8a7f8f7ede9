"""Links that differ by direction, by node and between regions: literal times of messages and
collectives, and what cannot be is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.clusters import cluster_of
from helpers.experiments import make_experiment
from helpers.refusals import refusal
from helpers.tiny import D, run, sgd
from test_simulator import Custom, arrivals, network

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.cluster.compute_variation import ConstantTime
from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.regions import Region
from sgp_runner.cluster.validated import Validated
from sgp_runner.core.worker import Worker

BYTE = 8.0  # bit/s at which one byte takes a second


def cluster(**changes: Any) -> Cluster:
    """One byte takes 1 s, the first bit 10 s."""
    return cluster_of({"default": 1.0}, ConstantTime(), BYTE, 10.0, {}, **changes)


def region(nodes: int, up: float = 0.5, down: float = 0.25, latency: Any = 100.0) -> Region:
    """Two nodes whose messages to others take 2 s for each byte to leave, and 4 to enter."""
    return Region(nodes, up * BYTE, down * BYTE, latency)


TWO = (region(2), region(2))


UP, DOWN = {"bandwidth_up": BYTE / 2}, {"bandwidth_down": BYTE / 2}
OF_NODES = {"node_bandwidth_up": {1: BYTE / 3}, "node_bandwidth_down": {2: BYTE / 2}}
# Region 1 takes 10 bytes per round trip of 200 s, region 0 as many as the cluster.
WINDOWS = (region(2), replace(region(2), window_bytes=10))
FAST = (region(2, up=0.5, down=2.0), region(2, up=2.0, down=2.0), region(2, up=2.0, down=0.25))
WIDE = (region(2, up=0.5, down=8.0), region(3, up=8.0, down=8.0))
ROWS = [[0.0, 20.0, 30.0], [21.0, 0.0, 40.0], [31.0, 41.0, 0.0]]
MATRIX = tuple(region(1, 8.0, 8.0, row) for row in ROWS)
MIXED = (MATRIX[0], region(1, 8.0, 8.0, 50.0), MATRIX[2])
PARTITION = Faults(events=[Event("partition", (0, 1), 50.0, 150.0)])
CRASH = Faults(events=[Event("crash", (0,), 2.0, 12.0)])


@pytest.mark.parametrize(
    ("nodes", "how", "messages", "times"),
    [
        # A message takes the slower of its two directions.
        (2, UP, [(0, 1, 5)], [20.0]),
        (2, DOWN, [(0, 1, 5)], [20.0]),
        (2, {**UP, "bandwidth_down": 2 * BYTE}, [(0, 1, 5)], [20.0]),
        # Up, one after the other at 2 s a byte; down, at 1 s a byte.
        (3, UP, [(0, 1, 5), (0, 2, 5)], [20.0, 30.0]),
        (3, UP, [(0, 2, 5), (1, 2, 5)], [20.0, 20.0]),
        (3, DOWN, [(0, 2, 5), (1, 2, 5)], [20.0, 30.0]),
        (3, DOWN, [(0, 1, 5), (0, 2, 5)], [20.0, 25.0]),
        # A node may have rates of its own.
        (3, OF_NODES, [(0, 1, 5), (1, 0, 5)], [15.0, 25.0]),
        (3, OF_NODES, [(0, 2, 5), (2, 1, 5)], [20.0, 15.0]),
        # Within regions as without. A message to another one goes through both links.
        (4, {"regions": TWO}, [(0, 1, 5), (2, 3, 5)], [15.0, 15.0]),
        # 100 s, then 4 s a byte, the slowest on the way
        (4, {"regions": TWO}, [(0, 2, 5)], [120.0]),
        # a sender of 6 s a byte, then a receiver of 6 s a byte
        (4, {"regions": TWO, "node_bandwidth_up": {0: BYTE / 6}}, [(0, 2, 5)], [130.0]),
        (4, {"regions": TWO, "bandwidth_down": BYTE / 6}, [(0, 2, 5)], [130.0]),
        # The window of a region limits what enters it.
        (4, {"regions": WINDOWS}, [(0, 2, 50)], [1100.0]),
        (4, {"regions": WINDOWS}, [(2, 0, 50)], [300.0]),
        (4, {"regions": WINDOWS, "window_bytes": 20}, [(2, 0, 50)], [600.0]),
        # Both leave region 0, one after the other: 10 s each. The second leaves from 10 to 20 s.
        (6, {"regions": FAST}, [(0, 2, 5), (1, 3, 5)], [110.0, 120.0]),
        # From two regions, each on its own link, into region 2: 20 s each.
        (6, {"regions": FAST}, [(2, 4, 5), (3, 5, 5)], [120.0, 140.0]),
        # One in each direction, and one within the region: nothing is shared.
        (4, {"regions": TWO}, [(0, 2, 5), (2, 0, 5), (2, 3, 5)], [120.0, 120.0, 20.0]),
        # The link of a region serves what comes first: the second message of node 0 leaves its
        # interface after 5 s, that of node 1 at once.
        (5, {"regions": WIDE}, [(0, 2, 5), (0, 3, 5), (1, 4, 5)], [110.0, 130.0, 120.0]),
        # Latencies between regions are one number or a matrix.
        (3, {"regions": MATRIX}, [(0, 1, 1), (1, 2, 1), (2, 0, 1)], [21.0, 41.0, 32.0]),
        (3, {"regions": MIXED}, [(1, 0, 1), (1, 2, 2)], [51.0, 53.0]),
        # A parameter server is in the last region.
        (5, {"regions": TWO}, [(2, 4, 5), (0, 4, 5)], [15.0, 120.0]),
        # Faults hold up messages between regions; 4 s a byte, till 20 s
        (4, {"regions": TWO, "faults": PARTITION}, [(0, 2, 5)], [170.0]),
        (4, {"regions": TWO, "faults": CRASH}, [(0, 2, 5)], [120.0]),
        (4, {"regions": TWO, "faults": Faults(delay_seconds=7.0)}, [(0, 2, 5)], [127.0]),
    ],
)
def test_messages_over_unequal_links_and_between_regions_by_hand(
    nodes: int, how: dict[str, Any], messages: list[tuple[int, int, float]], times: list[float]
) -> None:
    assert arrivals(*network(nodes, **how), *messages) == times


def test_the_windows_of_the_crossings_into_regions() -> None:
    links = cluster(regions=WINDOWS, window_bytes=20, connections=2).links
    assert links.crossings() == [(100.0, 0.25 * BYTE, 0.1 * BYTE), (100.0, 0.25 * BYTE, 0.2 * BYTE)]


@pytest.mark.parametrize(
    ("changes", "reduced", "gathered"),
    [
        # 8 bytes on 4 nodes: 6 rounds of 2 bytes; 3 rounds of 8 bytes
        ({}, 6 * (10 + 2), 3 * (10 + 8)),
        ({"bandwidth_up": BYTE / 2}, 6 * (10 + 4), 3 * (10 + 16)),
        ({"bandwidth_down": BYTE / 2}, 6 * (10 + 4), 3 * (10 + 16)),
        ({"node_bandwidth_down": {3: BYTE / 5}}, 6 * (10 + 10), 3 * (10 + 40)),
        ({"bandwidth_up": BYTE / 2, "duplex": "half"}, 6 * (10 + 6), 3 * (10 + 24)),
        ({"regions": TWO}, 6 * (100 + 8), 3 * (100 + 32)),
        ({"regions": TWO, "bandwidth": BYTE / 5}, 6 * (100 + 10), 3 * (100 + 40)),
        ({"regions": (region(4), region(0))}, 6 * (10 + 2), 3 * (10 + 8)),
        # from region 0 to 1: 2 s a byte and 20 s; back: 3 s a byte and 5 s
        (
            {"regions": (region(1, 0.5, 1 / 3, 20.0), region(3, 1.0, 1.0, 5.0))},
            6 * (20 + 6),
            3 * (20 + 24),
        ),
        ({"regions": TWO, "message_overhead_seconds": 1.0}, 6 * (101 + 8), 3 * (101 + 32)),
        ({"all_reduce_bandwidth": BYTE / 2, "bandwidth_up": BYTE / 9}, 6 * (10 + 4), 3 * (10 + 16)),
    ],
)
def test_a_ring_is_bounded_by_its_slowest_hop(
    changes: dict[str, Any], reduced: float, gathered: float
) -> None:
    bandwidth = changes.pop("bandwidth", BYTE)
    made = cluster_of({"default": 1.0}, ConstantTime(), bandwidth, 10.0, {}, **changes)
    assert made.all_reduce_seconds(4, 8.0) == pytest.approx(reduced)
    assert made.all_gather_seconds(4, 8.0) == pytest.approx(gathered)


def test_a_slow_interface_slows_a_ring_through_regions_only_below_their_rate() -> None:
    made = cluster(regions=TWO)
    assert [made.all_reduce_seconds(4, 8.0, slow) for slow in (1.0, 4.0, 5.0)] == [
        6 * (100 + 8),
        6 * (100 + 8),
        6 * (100 + 10),
    ]


def test_an_all_reduce_occupies_the_links_of_regions() -> None:
    """A message of 24 bytes is leaving node 0 when a ring begins, which takes the links from 24 s
    on: it crosses afterwards, and before the next one.
    """

    async def body(worker: Worker) -> None:
        message = worker.params.new_zeros(D)
        if worker.rank == 0:
            worker.comm.send(2, message)
        await worker.comm.all_reduce(worker.params.clone())
        if worker.rank == 0:
            worker.comm.send(3, message)
        if worker.rank in (2, 3):
            await worker.comm.recv(0)

    after = 24 + 6 * (100 + 4 * 6.0)
    result = run(Custom(body), 4, 1, cluster=cluster(regions=TWO))
    fabric = result.simulation.fabric
    # Each needs 48 s to leave region 0, and 96 s to enter region 1.
    assert fabric.leave_free == [after + 2 * 48, after]
    assert fabric.enter_free == [after, after + 100 + 2 * 96]
    assert result.simulation.clock.now == fabric.enter_free[1]


def test_ar_sgd_over_two_regions_of_four() -> None:
    four = (region(4), region(4))
    result = run(ARSGD(), 8, 2, cluster=cluster(regions=four), optim=sgd())
    step_seconds = 1 + 14 * (100 + 4 * 24 / 8)  # a gradient, then rounds of an eighth of 24 bytes
    assert result.simulation.clock.now == pytest.approx(2 * step_seconds)


def beyond(made: Cluster) -> str | None:
    return made.validated.beyond(made.name, made.links, 4, 8.0)


def test_times_are_not_validated_for_unequal_links_and_regions() -> None:
    never = beyond(cluster(regions=TWO))
    assert never == "The times of cluster=custom were not compared with real times."
    warning = beyond(cluster(regions=TWO, bandwidth_up=2.0, validated=Validated(nodes=8)))
    assert warning is not None and warning.endswith(
        "(8 bit/s, up to 8 nodes): unequal links, regions."
    )


def test_left_ranks_keep_their_regions_and_links() -> None:
    made = cluster(regions=(region(2), region(3)), node_bandwidth_up={1: 5.0, 4: 6.0})
    left = made.subset({0: 0, 2: 1, 4: 2, 5: 3})  # rank 5 is a server
    assert [kept.nodes for kept in left.links.regions] == [1, 2]
    assert left.links.node_bandwidth_up == {2: 6.0}


@pytest.mark.parametrize(
    ("make", "key", "part"),
    [
        (lambda: cluster(bandwidth_up=0.0), "cluster.links.bandwidth_up", "0.0 must be positive"),
        (
            lambda: cluster(node_bandwidth_down={2: -1.0}),
            "cluster.links.node_bandwidth_down.2",
            "-1.0 must be positive",
        ),
        (
            lambda: cluster(node_bandwidth_up={9: 1.0}).check(8, 1),
            "cluster.links.node_bandwidth_up.9",
            "the run has no such rank; use 0 to 8.",
        ),
        (lambda: region(-1), "cluster.links.regions.nodes", "-1 must be zero or positive"),
        (lambda: region(1, up=0.0), "cluster.links.regions.bandwidth_up", "0.0 must be positive"),
        (
            lambda: region(1, latency=-1.0),
            "cluster.links.regions.latency_seconds",
            "-1.0 must be zero",
        ),
        (
            lambda: cluster(regions=TWO).check(8, 0),
            "cluster.links.regions",
            "the regions have 2 + 2 = 4 nodes, but the run has 8: use nodes=4, or other regions.",
        ),
        (
            lambda: cluster(regions=(region(1, latency=(1.0, 2.0, 3.0)), region(1))).check(2, 0),
            "cluster.links.regions[0].latency_seconds",
            "3 values for 2 regions: give one, or one per region.",
        ),
        (
            lambda: cluster(regions=TWO, collective="tree"),
            "cluster.collectives.algorithm",
            "not tree: use cluster.collectives.algorithm=ring or hierarchical.",
        ),
    ],
)
def test_links_that_cannot_be_are_refused(make: Callable[[], object], key: str, part: str) -> None:
    error = refusal(make)
    assert error.key == key and part in error.sentence


def test_what_the_profiles_say_of_their_links(tmp_path: Path) -> None:
    covenant = make_experiment(tmp_path, "cluster=covenant").run.cluster
    assert covenant.all_gather_seconds(2, 1.97e9) == pytest.approx(0.05 + 143.3, abs=0.05)
    assert covenant.all_gather_seconds(20, 1.97e9) == pytest.approx(2723, abs=0.5)
    two = make_experiment(tmp_path, "cluster=regions_2x4").run.cluster
    assert two.all_reduce_seconds(8, 1e9) == pytest.approx(14 * 1.0 + 0.035)  # slices hide latency


REGIONS = (
    "cluster.links.regions=[{nodes: 1, bandwidth_up: 100Mbit/s, bandwidth_down: 1Gbit/s, "
    "latency_seconds: 30ms}, {nodes: 2, bandwidth_up: 2e6, bandwidth_down: 3e6, "
    "latency_seconds: [40ms, 0]}]"
)


def test_regions_are_read_from_the_command(tmp_path: Path) -> None:
    overrides = ("nodes=3", REGIONS, "cluster.links.node_bandwidth_up={2: 20Mbit/s}")
    made = make_experiment(tmp_path, *overrides, "cluster.links.bandwidth_down=500Mbit/s")
    assert made.run.cluster.links.regions == (
        Region(1, 100e6, 1e9, 0.03),
        Region(2, 2e6, 3e6, (0.04, 0.0)),
    )
    assert [made.run.cluster.links.up(rank) for rank in range(3)] == [10e9, 10e9, 20e6]
    assert made.run.cluster.links.down(2) == 500e6


@pytest.mark.parametrize(
    ("overrides", "key", "sentence"),
    [
        (
            ("cluster.links.regions=[{nodes: 8, bandwidth_up: 1Mbit/s, bandwidth_down: 1Mbit/s, "
             "latency: 1}]",),
            "cluster.links.regions[0].latency",
            "there is no such setting. Did you mean 'cluster.links.regions[0].latency_seconds'?",
        ),
        (
            ("cluster.links.regions=[{nodes: 8, bandwidth_up: fast, bandwidth_down: 1Mbit/s, "
             "latency_seconds: 1}]",),
            "cluster.links.regions[0].bandwidth_up",
            "'fast' is not a number in bit/s (such as 100Mbit/s) or a list such as "
            "[1Mbit/s,2Mbit/s].",
        ),
        (
            ("cluster=regions_2x4", "nodes=16"),
            "cluster.links.regions",
            "the regions have 4 + 4 = 8 nodes, but the run has 16: use nodes=8, or other regions.",
        ),
    ],
)  # fmt: skip
def test_bad_regions_are_named(
    overrides: tuple[str, ...], key: str, sentence: str, tmp_path: Path
) -> None:
    error = refusal(make_experiment, tmp_path, "model=timing_only", *overrides)
    assert (error.key, error.sentence) == (key, sentence)

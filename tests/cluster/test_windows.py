"""Windows, libraries and hierarchies of a cluster: literal times of messages and collectives."""

from __future__ import annotations

from typing import Any

import pytest
from test_regions import BYTE, TWO, cluster, region
from test_simulator import arrivals, network

from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.utils.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # 8 bytes on 4 nodes, one byte takes 1 s, latency 10 s: 6 rounds of 2 bytes
        ({}, 6 * 12),
        ({"library": "nccl"}, 4 * (10 + 8)),  # one slice: trees have fewer hops
        ({"library": "gloo"}, 6 * (20.35 + 1)),
        ({"library": "gloo", "host_seconds_per_byte": 0.5}, 6 * (20.35 + 1 + 0.5)),
        ({"ring_over": "devices", "devices_per_node": 2}, 14 * (10 + 1)),
        ({"window_bytes": 5.0}, 6 * (10 + 8)),  # 5 bytes in a round trip of 20 s
        ({"window_bytes": 5.0, "connections": 2}, 6 * (10 + 4)),
        ({"window_bytes": 5.0, "connections": 8}, 6 * (10 + 2)),
        # 12 bytes sent: 1, 2 and 4 bytes in round trips of 20 s, the rest at the rate
        ({"library": "gloo", "first_window_bytes": 1.0}, 6 * (20.35 + 1) + 3 * 20 - 7),
        # two devices, 2 s a byte, reduce and broadcast 8 bytes; the ring is that of the nodes
        (
            {"collective": "hierarchical", "devices_per_node": 2, "device_bandwidth": 4.0},
            6 * 12 + 2 * 16,
        ),
        ({"collective": "hierarchical", "devices_per_node": 2}, 6 * 12),
        # two leaders, 4 s a byte, 100 s: 2 rounds of 4 bytes; inside 8 s and 10 s, twice
        ({"collective": "hierarchical", "regions": TWO}, 2 * (100 + 16) + 2 * 18),
        ({"collective": "hierarchical", "regions": (region(4), region(0))}, 6 * 12),
    ],
)
def test_all_reduces_by_hand(changes: dict[str, Any], seconds: float) -> None:
    assert cluster(**changes).all_reduce_seconds(4, 8.0) == pytest.approx(seconds)


def test_a_hierarchy_sends_as_many_bytes_as_a_ring_in_fewer_rounds() -> None:
    made = cluster(collective="hierarchical", regions=TWO)
    # Inside, one of two nodes sends 8 bytes up and one sends 8 down; the leaders send 8 each.
    assert (made.all_reduce_bytes(4, 8.0), made.all_reduce_rounds(4)) == (2 * 3 / 4 * 8, 2)
    devices = cluster(ring_over="devices", devices_per_node=2)
    assert (devices.all_reduce_bytes(4, 8.0), devices.all_reduce_rounds(4)) == (14, 14)


def test_a_hierarchical_all_gather_carries_each_part_over_a_crossing_once() -> None:
    """Two regions of two nodes, 8 bytes each: a flat ring carries 24 bytes over each crossing."""
    made = cluster(collective="hierarchical", regions=TWO)
    inside, between, broadcast = 10 + 8, 100 + 2 * 8 * 4, 10 + 2 * 8
    assert made.all_gather_seconds(4, 8.0) == inside + between + broadcast == 208
    assert cluster(regions=TWO).all_gather_seconds(4, 8.0) == 3 * (100 + 8 * 4) == 396
    assert (made.all_gather_rounds(4), cluster(regions=TWO).all_gather_rounds(4)) == (1, 3)
    # The largest region has the most to gather, the smallest the most to broadcast.
    unequal = cluster(collective="hierarchical", regions=(region(3), region(1)))
    assert unequal.all_gather_seconds(4, 8.0) == 2 * (10 + 8) + (100 + 3 * 8 * 4) + (8 + 2 * 10 + 8)
    sliced = cluster(collective="hierarchical", regions=TWO, library="nccl")
    assert sliced.all_gather_seconds(4, 8.0) == 208  # one slice each
    alone = cluster(collective="hierarchical", regions=(region(4), region(0)))
    assert alone.all_gather_seconds(4, 8.0) == 3 * (10 + 8)


def test_slices_of_an_all_gather_hide_its_latency() -> None:
    assert cluster().all_gather_seconds(4, 2**22) == 3 * (10 + 2**22)
    assert cluster(library="nccl").all_gather_seconds(4, 2**22) == 3 * 2**22 + 10


WINDOW, MET = {"window_bytes": 5.0}, {"protocol": "rendezvous"}
THREE = [(0, 2, 5), (1, 2, 3), (1, 3, 2)]
PARTED = Faults(events=[Event("partition", [0, 1], end=100.0)])


@pytest.mark.parametrize(
    ("nodes", "how", "messages", "times"),
    [
        # A round trip of 20 s carries 5 bytes, so one takes 4 s.
        (3, WINDOW, [(0, 1, 5)], [10 + 20]),
        # Another stream has the interface after 5 s; the same stream waits for its
        # acknowledgements.
        (3, WINDOW, [(0, 1, 5), (0, 2, 5)], [30, 35]),
        (3, WINDOW, [(0, 1, 5), (0, 1, 5)], [30, 50]),
        (3, {**WINDOW, "connections": 4}, [(0, 1, 5)], [15]),
        # Between regions: 5 bytes in 200 s; the first round trip carries 2 of 5 bytes, the second
        # 3.
        (4, {**WINDOW, "regions": TWO}, [(0, 2, 5)], [100 + 200]),
        (4, {"first_window_bytes": 2.0, "regions": TWO}, [(0, 2, 5)], [100 + 200 + 3 * 4]),
        # A rendezvous: while node 2 receives from node 0, node 1 cannot send to node 3.
        (4, {}, THREE, [15, 18, 15]),
        (4, MET, THREE, [15, 18, 20]),
        # The receivers of two messages are free, so only the first one waits for the latency.
        (4, MET, [(0, 1, 5), (0, 2, 3)], [15, 18]),
        (4, {**MET, "duplex": "half"}, [(0, 1, 5), (1, 0, 3)], [15, 18]),
        # The slower of the two interfaces counts, and both are occupied.
        (4, {**MET, "bandwidth_up": BYTE / 2}, THREE, [20, 26, 30]),
        # 5 bytes in a round trip of 20 s
        (4, {**MET, **WINDOW}, [(0, 1, 5), (0, 2, 5)], [30, 50]),
        # Faults of links delay a rendezvous.
        (4, {**MET, "faults": Faults(slow_links={1: 3.0})}, THREE, [15, 24, 30]),
        (4, {**MET, "faults": PARTED}, THREE, [105, 108, 110]),
    ],
)
def test_messages_through_windows_and_rendezvous_by_hand(
    nodes: int, how: dict[str, Any], messages: list[tuple[int, int, float]], times: list[float]
) -> None:
    assert arrivals(*network(nodes, **how), *messages) == times


def test_no_rendezvous_between_regions() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.links\.protocol: messages between regions"):
        cluster(protocol="rendezvous", regions=TWO)


def test_no_connections_and_negative_windows_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^cluster\.links\.connections: 0 must be positive and finite\.$"
    ):
        cluster(connections=0)
    for key in ("window_bytes", "first_window_bytes"):
        with pytest.raises(ConfigError, match=rf"^cluster\.links\.{key}: -1 must be zero "):
            cluster(**{key: -1})

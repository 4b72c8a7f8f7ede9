"""Laws of collectives and connections: cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pytest import approx

from sgp_runner.cluster.collective_laws import (
    GLOO_SEGMENT,
    NCCL_SLICE,
    chain,
    double_tree,
    pipelined_ring,
    reduce_and_broadcast,
    ring,
    ring_all_gather,
    ring_all_reduce,
    segmented_ring,
)
from sgp_runner.cluster.connection_laws import connection_rate, slow_start_seconds

SIZE = 64 * NCCL_SLICE  # 64 slices on 4 ranks: chunks of 16 s, latency of 3 s
LIBRARIES = partial(ring_all_reduce, ranks=4, num_bytes=SIZE, latency=3, whole=64)
SHORT = partial(ring_all_reduce, ranks=16, num_bytes=1, latency=3, whole=0.0)
SEGMENTS = partial(segmented_ring, 6, segments=4, segment=1)
ANNOUNCED = partial(segmented_ring, 2, segments=4, segment=3)
GATHER = partial(ring_all_gather, "nccl", 4, latency=3)
RATE = partial(connection_rate, 1e9)
FIRST = partial(slow_start_seconds, rate=8000)


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        # Whole chunks cost a latency per round.
        (partial(ring, 6, chunk=2, latency=10), 6 * (10 + 2)),
        # Slices of 1 s, chunks of 8 s: a round waits for its chunk, the last byte for its latency.
        (partial(pipelined_ring, 6, chunk=8, latency=5, part=1), 6 * 8 + 5),
        # Latency is longer than a chunk: rounds of 20 + 1 s.
        (partial(pipelined_ring, 6, chunk=8, latency=20, part=1), 5 * 21 + 8 + 20),
        (partial(pipelined_ring, 0, chunk=8, latency=20, part=1), 0),
        # A ring of single slices is a ring of whole chunks.
        (partial(pipelined_ring, 14, chunk=3, latency=10, part=3), 14 * (10 + 3)),
        # Six rounds of two pairs of segments of 1 s: 2 s without delay, with it 2.035 x 200 + 1 s.
        (partial(SEGMENTS, latency=0), 6 * 2 * 2),
        (partial(SEGMENTS, latency=200), 6 * 2 * 408),
        (partial(SEGMENTS, latency=200, host=3), 6 * 2 * 411),
        # The host is hidden while the other segment is sent.
        (partial(SEGMENTS, latency=0, host=1), 6 * 2 * 2),
        # Announcements of two ranks wait behind segments.
        (partial(ANNOUNCED, latency=200), 2 * 2 * (407 + 2 * 3)),
        (partial(ANNOUNCED, latency=200, host=4), 2 * 2 * (407 + 3 + 4)),
        (partial(ANNOUNCED, latency=0), 2 * 2 * 6),
        # Two trees of 8 ranks have 6 hops. One slice of 8 s: each hop waits for it.
        (partial(double_tree, 8, whole=8, latency=10, part=8), 6 * 18),
        # Slices of 1 s: the first passes 6 hops; 7 more follow it up, and 7 down.
        (partial(double_tree, 8, whole=8, latency=10, part=1), 6 * 11 + 14),
        # A chain passes slices on.
        (partial(chain, 1, whole=8, latency=10, part=1), 0),
        (partial(chain, 2, whole=8, latency=10, part=1), 8 + 10),
        (partial(chain, 4, whole=8, latency=10, part=1), 8 + 3 * 10 + 2),
        (partial(reduce_and_broadcast, 4, 8 * NCCL_SLICE, latency=10, whole=8), 2 * 40),
        (partial(LIBRARIES, None, add=8), 6 * 19 + 6),
        (partial(LIBRARIES, "nccl", add=8), 6 * 16 + 3),
        # A round trip of 6 s in slow start: the first carries 2 slices, the next 4.
        (partial(LIBRARIES, "nccl", first_window_bytes=2 * NCCL_SLICE), 6 * 16 + 3 + 4 + 2),
        # 16 segments of 1 s per chunk, two in 2.035 x 3 + 1 s and the host's 8 / 64 s.
        (partial(LIBRARIES, "gloo", add=8), approx(6 * 8 * 7.23)),
        # One byte takes no time: the ring has 30 rounds, the trees 8 hops, Gloo's ring 30 round
        # trips.
        (partial(SHORT, None), 90),
        (partial(SHORT, "nccl"), 24),
        (partial(SHORT, "gloo"), approx(30 * 2.035 * 3)),
        (partial(GATHER, num_bytes=SIZE, whole=64), 3 * 64 + 3),
        (partial(GATHER, num_bytes=0, whole=0), 3 * 3),
        # A connection carries a window per round trip.
        (partial(RATE, 0.1, window_bytes=1e6), 80e6),
        (partial(RATE, 0.1, window_bytes=1e6, connections=4), 320e6),
        (partial(RATE, 0.1, window_bytes=1e6, connections=16), 1e9),
        (partial(RATE, 0.0, window_bytes=1e6), 1e9),
        (partial(RATE, 0.1, window_bytes=0), 1e9),
        # 1 kB/s and a round trip of 1 s: 250, 500 and then 1000 bytes per second.
        (partial(FIRST, 2000, round_trip=1.0, first_window_bytes=250), approx(0.75 + 0.5)),
        # A message of 600 bytes: 250, and then 350, for which the second window is large enough.
        (partial(FIRST, 600, round_trip=1.0, first_window_bytes=250), approx(0.75)),
        (partial(FIRST, 200, round_trip=1.0, first_window_bytes=250), 0),
        (partial(FIRST, 2000, round_trip=1.0, first_window_bytes=0), 0),
        (partial(FIRST, 2000, round_trip=0.0, first_window_bytes=250), 0),
    ],
)
def test_laws_of_collectives_and_connections_by_hand(
    law: Callable[[], float], expected: Any
) -> None:
    assert law() == expected


def test_a_segment_of_gloo_is_as_long_as_a_slice_of_nccl() -> None:
    assert GLOO_SEGMENT == NCCL_SLICE

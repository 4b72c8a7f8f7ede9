"""Laws of collectives and connections: cases by hand."""

from __future__ import annotations

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


def test_whole_chunks_cost_a_latency_per_round() -> None:
    assert ring(6, chunk=2, latency=10) == 6 * (10 + 2)


def test_a_chunk_that_takes_longer_than_latency_hides_it() -> None:
    # Slices of 1 s, chunks of 8 s: a round waits for its chunk, the last byte for its latency.
    assert pipelined_ring(6, chunk=8, latency=5, part=1) == 6 * 8 + 5
    # Latency is longer than a chunk: rounds of 20 + 1 s.
    assert pipelined_ring(6, chunk=8, latency=20, part=1) == 5 * 21 + 8 + 20
    assert pipelined_ring(0, 8, 20, 1) == 0


def test_a_ring_of_single_slices_is_a_ring_of_whole_chunks() -> None:
    assert pipelined_ring(14, chunk=3, latency=10, part=3) == ring(14, 3, 10)


def test_a_round_trip_of_two_segments_bounds_a_segmented_ring() -> None:
    # Six rounds of two pairs of segments of 1 s: 2 s without delay, with it 2.035 x 200 + 1 s.
    assert segmented_ring(6, segments=4, segment=1, latency=0) == 6 * 2 * 2
    assert segmented_ring(6, segments=4, segment=1, latency=200) == 6 * 2 * 408
    assert segmented_ring(6, segments=4, segment=1, latency=200, host=3) == 6 * 2 * 411
    # The host is hidden while the other segment is sent.
    assert segmented_ring(6, segments=4, segment=1, latency=0, host=1) == 6 * 2 * 2


def test_announcements_of_two_ranks_wait_behind_segments() -> None:
    assert segmented_ring(2, segments=4, segment=3, latency=200) == 2 * 2 * (407 + 2 * 3)
    assert segmented_ring(2, segments=4, segment=3, latency=200, host=4) == 2 * 2 * (407 + 3 + 4)
    assert segmented_ring(2, segments=4, segment=3, latency=0) == 2 * 2 * 6


def test_two_trees_have_few_hops_and_more_bytes_than_a_ring() -> None:
    # 8 ranks, 6 hops. One slice of 8 s: each hop waits for it.
    assert double_tree(8, whole=8, latency=10, part=8) == 6 * 18
    # Slices of 1 s: the first passes 6 hops; 7 more follow it up, and 7 down.
    assert double_tree(8, whole=8, latency=10, part=1) == 6 * 11 + 14


def test_a_chain_passes_slices_on() -> None:
    assert chain(1, whole=8, latency=10, part=1) == 0
    assert chain(2, whole=8, latency=10, part=1) == 8 + 10
    assert chain(4, whole=8, latency=10, part=1) == 8 + 3 * 10 + 2
    assert reduce_and_broadcast(4, 8 * NCCL_SLICE, latency=10, whole=8) == 2 * 40


def test_all_reduces_of_the_libraries_by_hand() -> None:
    # 64 slices on 4 ranks: chunks of 16 s, latency of 3 s.
    size = 64 * NCCL_SLICE
    assert ring_all_reduce(None, 4, size, 3, whole=64, add=8) == 6 * 19 + 6
    assert ring_all_reduce("nccl", 4, size, 3, whole=64, add=8) == 6 * 16 + 3
    # A round trip of 6 s in slow start: the first carries 2 slices, the next 4.
    assert ring_all_reduce("nccl", 4, size, 3, 64, 0, 2 * NCCL_SLICE) == 6 * 16 + 3 + 4 + 2
    # 16 segments of 1 s per chunk, two in 2.035 x 3 + 1 s and the host's 8 / 64 s.
    assert GLOO_SEGMENT == NCCL_SLICE
    assert ring_all_reduce("gloo", 4, size, 3, whole=64, add=8) == approx(6 * 8 * 7.23)
    # One byte takes no time: the ring has 30 rounds, the trees 8 hops, Gloo's ring 30 round trips.
    assert [ring_all_reduce(library, 16, 1, 3, 0.0) for library in (None, "nccl")] == [90, 24]
    assert ring_all_reduce("gloo", 16, 1, 3, 0.0) == approx(30 * 2.035 * 3)
    assert ring_all_gather("nccl", 4, size, 3, whole=64) == 3 * 64 + 3
    assert ring_all_gather("nccl", 4, 0, 3, whole=0) == 3 * 3


def test_a_connection_carries_a_window_per_round_trip() -> None:
    assert connection_rate(1e9, 0.1, window_bytes=1e6) == 80e6
    assert connection_rate(1e9, 0.1, window_bytes=1e6, connections=4) == 320e6
    assert connection_rate(1e9, 0.1, window_bytes=1e6, connections=16) == 1e9
    assert connection_rate(1e9, 0.0, window_bytes=1e6) == 1e9
    assert connection_rate(1e9, 0.1, window_bytes=0) == 1e9


def test_windows_double_until_they_fill_the_link() -> None:
    # 1 kB/s and a round trip of 1 s: 250, 500 and then 1000 bytes per second.
    assert slow_start_seconds(2000, 8000, 1.0, 250) == pytest.approx(0.75 + 0.5)
    # A message of 600 bytes: 250, and then 350, for which the second window is large enough.
    assert slow_start_seconds(600, 8000, 1.0, 250) == pytest.approx(0.75)
    assert slow_start_seconds(200, 8000, 1.0, 250) == 0
    assert slow_start_seconds(2000, 8000, 1.0, 0) == 0
    assert slow_start_seconds(2000, 8000, 0.0, 250) == 0

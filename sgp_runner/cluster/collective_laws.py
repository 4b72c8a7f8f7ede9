"""Times of collectives, as functions of plain numbers.

In every round of a ring, a rank sends a chunk of the data to its neighbour. An all-reduce of n
ranks has 2 (n - 1) rounds and chunks of 1 / n of the data. All arguments are in seconds unless
stated otherwise: ``whole``, ``chunk``, ``part`` and ``segment`` are transfer times of bytes, and
``latency`` is the time of a byte from sender to receiver. docs/validation.md lists the errors of
these formulas on third-party clusters.
"""

from __future__ import annotations

from math import ceil, inf, log2
from typing import Literal

from sgp_runner.cluster.connection_laws import slow_start_seconds

# Bytes that NCCL passes on at once: a quarter of its buffer of 4 MiB (its source). Assumed: no
# measurement that we have tells slices of 64 KiB to 4 MiB apart.
NCCL_SLICE = 2**20
# Largest number of bytes that Gloo sends at once, of which it has two in flight (its source).
GLOO_SEGMENT = 2**20
# Latencies of Gloo's pair of segments beyond their round trip, fitted on rings of 4 nodes.
GLOO_DELAY = 0.035

Library = Literal["nccl", "gloo"]


def ring(rounds: int, chunk: float, latency: float) -> float:
    """Return the time of a ring that sends whole chunks.

    A rank forwards a chunk after its last byte has arrived, so each round includes a latency:
    rounds x (latency + chunk).
    """
    return rounds * (latency + chunk)


def pipelined_ring(rounds: int, chunk: float, latency: float, part: float) -> float:
    """Return the time of a ring that sends a chunk in slices of ``part``, as NCCL does.

    A rank forwards a slice when it has arrived. It begins a round when the first slice of the
    previous round has arrived, latency + part after that round began, or when its interface is
    free, a chunk after that round began. So a round takes max(chunk, latency + part), and the last
    round ends when its last byte has arrived:

        (rounds - 1) x max(chunk, latency + part) + chunk + latency

    Latency is hidden if a chunk takes longer than the latency. If a chunk is one slice, this equals
    `ring`.
    """
    if not rounds:
        return 0.0
    return (rounds - 1) * max(chunk, latency + part) + chunk + latency


def segmented_ring(
    rounds: int, segments: float, segment: float, latency: float, host: float = 0.0
) -> float:
    """Return the time of a ring with two segments in flight, as in Gloo.

    A rank announces that it can receive a segment; the announcement takes a latency, the segment
    takes its own time and a latency. Then the host copies and adds the segment, and announces the
    segment after the next. Two segments are in flight, so two of them take

        max(2 x segment, (2 + d) x latency + segment + host)

    with d = 0.035, as measured times grow a little faster with delay than a round trip.

    Without delay this is the transfer time of the bytes. With delay it is longer if the round trip
    and the host take longer than a segment. Two ranks (two rounds) have one connection for both
    directions of the ring, so an announcement waits behind the segment that is being sent:

        (2 + d) x latency + 2 x segment

    segments: segments of a chunk
    host: time of the host for a segment
    """
    waits = max(host, segment) if rounds == 2 else host
    round_trip = (2 + GLOO_DELAY) * latency
    return rounds * segments / 2 * max(2 * segment, round_trip + segment + waits)


def double_tree(ranks: int, whole: float, latency: float, part: float) -> float:
    """Return the time of an all-reduce over two binary trees, each with half of the data.

    A rank is an inner node of one tree and a leaf of the other, so every interface sends the data
    once up and once down, in slices of ``part`` that pass 2 log2(n) hops. Source: Sanders, Speck &
    Traeff 2009. NCCL uses the trees instead of the ring when they are faster, for small messages on
    many nodes. This formula is an assumption that has not been compared with measurements.
    """
    return 2 * ceil(log2(ranks)) * (latency + part) + 2 * (whole - part)


def chain(ranks: int, whole: float, latency: float, part: float) -> float:
    """Return the time to reduce to the first of ``ranks`` in a chain, or to broadcast from it.

    The last slice of ``part`` leaves the far end after all others and passes ranks - 1 hops: whole
    + (ranks - 1) x latency + (ranks - 2) x part.
    """
    return whole + (ranks - 1) * latency + (ranks - 2) * part if ranks > 1 else 0.0


def reduce_and_broadcast(ranks: int, num_bytes: float, latency: float, whole: float) -> float:
    """Return the time that a hierarchical all-reduce spends in its largest group of ``ranks``.

    The group reduces to its leader in a `chain`; the leaders of all groups form a ring; then each
    leader broadcasts to its group. The three phases are added up, which is an upper bound, as a
    library may start a phase with the first slices of the previous one.
    """
    return 2 * chain(ranks, whole, latency, slice_of(num_bytes, whole))


def ring_all_gather(
    library: Library | None, ranks: int, num_bytes: float, latency: float, whole: float
) -> float:
    """Return the time of an all-gather of ``num_bytes`` per rank over a ring of ``ranks``.

    library: nccl (`pipelined_ring`); gloo and None: `ring`
    """
    if library == "nccl":
        return pipelined_ring(ranks - 1, whole, latency, slice_of(num_bytes, whole))
    return ring(ranks - 1, whole, latency)


def slice_of(num_bytes: float, whole: float) -> float:
    """Return the time of one NCCL slice, if all ``num_bytes`` take ``whole``."""
    return whole * min(1.0, NCCL_SLICE / num_bytes) if num_bytes else 0.0


def ring_all_reduce(
    library: Library | None,
    ranks: int,
    num_bytes: float,
    latency: float,
    whole: float,
    add: float = 0.0,
    first_window_bytes: float = 0.0,
) -> float:
    """Return the time of an all-reduce of ``num_bytes`` over a ring of ``ranks``.

    library: nccl (`pipelined_ring`, or `double_tree` if it is faster), gloo (`segmented_ring`) or
        None (`ring`)
    add: time that the host takes to add up ``num_bytes``; NCCL adds on the device
    first_window_bytes: bytes of the first round trip of slow start; 0: no slow start
    """
    rounds, chunk = 2 * (ranks - 1), whole / ranks
    if library is None:
        return ring(rounds, chunk, latency) + (ranks - 1) / ranks * add
    sent, rate = rounds * num_bytes / ranks, 8 * num_bytes / whole if whole else inf
    late = slow_start_seconds(sent, rate, 2 * latency, first_window_bytes)
    if library == "gloo":
        segments = max(2.0, num_bytes / ranks / GLOO_SEGMENT)
        host = add / ranks / segments
        return late + segmented_ring(rounds, segments, chunk / segments, latency, host)
    part = slice_of(num_bytes, whole)
    return late + min(
        pipelined_ring(rounds, chunk, latency, min(chunk, part)),
        double_tree(ranks, whole, latency, part),
    )


def all_reduce_in_rounds(
    collective: str, nodes: int, latency: float, whole: float, add: float
) -> float:
    """Return the time of an all-reduce other than a ring.

    Each round takes a latency and the transfer time of its bytes. ``add`` is the time to add up the
    data. Source: Thakur, Rabenseifner & Gropp 2005, sections 4.4-4.5.
    """
    rounds = ceil(log2(nodes))
    if collective == "recursive_doubling":
        return rounds * (latency + whole + add)
    if collective == "halving_doubling":
        return 2 * rounds * latency + (nodes - 1) / nodes * (2 * whole + add)
    return rounds * (2 * (latency + whole) + add)  # tree: reduce to the root, then broadcast

"""Times of messages on TCP connections with delay, as functions of plain numbers.

A connection has at most one window of data in flight: a sender that has filled its window waits for
an acknowledgement, which arrives one round trip later. A new or idle connection starts with a small
window and doubles it in every round trip until the window fills the link (slow start; Jacobson
1988, RFC 5681). docs/validation.md lists the errors of these formulas on third-party clusters.
"""

from __future__ import annotations


def connection_rate(
    link: float, round_trip: float, window_bytes: float, connections: int = 1
) -> float:
    """Return the bits per second of a stream that is split over several connections.

    A connection carries at most one window per round trip: min(link, connections x window / round
    trip).

    link: bits per second
    window_bytes: largest window of a connection; 0: no limit
    """
    if not window_bytes or not round_trip:
        return link
    return min(link, connections * window_bytes * 8 / round_trip)


def slow_start_seconds(
    num_bytes: float, rate: float, round_trip: float, first_window_bytes: float
) -> float:
    """Return the time that slow start adds to a message of ``num_bytes``.

    A round trip that sends a window of w bytes takes ``round_trip`` instead of 8 w / rate seconds.
    The window doubles until it fills the link or carries the rest of the message.

    rate: bits per second of the link
    first_window_bytes: bytes of the first round trip, over all connections; 0: no slow start
    """
    late, window, rest = 0.0, first_window_bytes or num_bytes, num_bytes
    while window < rest and window * 8 < rate * round_trip:
        late += round_trip - window * 8 / rate
        rest -= window
        window *= 2
    return late

"""A law for the rate of TCP on a link that ``tc`` limits, fitted to our own networks.

    payload bits per second = SHARE x rate

Headers take most of the other bits: a frame of 1514 bytes has 1448 bytes of payload (95.6 %), and
the token bucket counts the whole frame. The bucket's queue takes the rest. SHARE is the mean over
networks of 100 and 300 Mbit/s with 4 and 8 nodes, which were measured before the law was applied to
other people's runs. Benchmarks measure the networks again, but do not change the law. Networks of
1000 Mbit/s are excluded, because the two cores of the machine limited them more than the links did.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
# Payload bits per bit of the rate, by nodes and bit/s; medians of three transfers.
SHARES = {
    (4, 100e6): 0.947779,
    (4, 300e6): 0.947909,
    (8, 100e6): 0.948293,
    (8, 300e6): 0.947568,
}


def share() -> float:
    """Return SHARE: payload bits per bit of the rate."""
    return fmean(SHARES.values())


def achieved(rate: float) -> float:
    """Return the payload bit/s of TCP on a link that is limited to ``rate`` bit/s."""
    return share() * rate

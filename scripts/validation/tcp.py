"""One law of what TCP achieves on a link whose rate ``tc`` limits, fitted on our own networks.

    payload bits per second = SHARE x rate

The rest is headers: 1448 bytes of payload in a frame of 1514 that the token bucket counts, 95.6 %,
and the bucket's queue. It is the mean over networks of 100 and 300 Mbit/s, with 4 and 8 nodes, as
they were measured before the law was applied to other people's runs; the networks are measured
again with each benchmark, the law stays. At 1000 Mbit/s the two cores on which all those hosts run
were the limit, not the links, so that rate says nothing about other machines.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
# Medians of three transfers, payload bits for each bit of the rate, by nodes and bit/s.
SHARES = {
    (4, 100e6): 0.947779,
    (4, 300e6): 0.947909,
    (8, 100e6): 0.948293,
    (8, 300e6): 0.947568,
}


def share() -> float:
    """Return the law's constant: payload bits for each bit of the rate."""
    return fmean(SHARES.values())


def achieved(rate: float) -> float:
    """Payload bit/s of TCP on a link that is limited to ``rate`` bit/s."""
    return share() * rate

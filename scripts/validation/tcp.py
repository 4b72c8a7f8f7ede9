"""One law of TCP's rate on a link whose rate ``tc`` limits, fitted on our own networks.

    payload bits per second = SHARE x rate

The rest is headers: 1448 bytes of payload in a frame of 1514 that the token bucket counts, 95.6 %,
and the bucket's queue. SHARE is the mean over networks of 100 and 300 Mbit/s with 4 and 8 nodes.
They were measured before the law was applied to other people's runs. Each benchmark measures the
networks again, but the law stays. At 1000 Mbit/s the limit was not the links but the two cores of
all hosts, so that rate does not apply to other machines.
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

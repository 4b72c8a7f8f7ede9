"""One law of what TCP achieves on a link whose rate ``tc`` limits, fitted on our own networks.

    payload bits per second = SHARE x rate

The rest is headers: 1448 bytes of payload in a frame of 1514 that the token bucket counts, 95.6 %,
and the bucket's queue. It is the mean over the networks of 100 and 300 Mbit/s, with 4 and 8 nodes,
in ``results/benchmarks/network.json``. At 1000 Mbit/s the two cores on which all those hosts run
are the limit, not the links, so that rate says nothing about other machines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ROOT / "results" / "benchmarks" / "network.json"
LIMITED_BY_LINKS = (100e6, 300e6)  # bit/s


def shares(path: Path = NETWORKS) -> Iterator[tuple[int, float, float]]:
    """Yield number of nodes, rate in bit/s and the share of it that TCP achieved."""
    for table in json.loads(path.read_text(encoding="utf-8"))["tables"]:
        if title := re.fullmatch(r"(\d+) nodes, (\d+) Mbit/s", table["title"]):
            (achieved,) = [each for each in table["results"] if each["what"] == "achieved"]
            nodes, rate = int(title[1]), float(title[2])
            yield nodes, rate * 1e6, median(achieved["values"]) / rate


def share() -> float:
    """The law's constant: payload bits for each bit of the rate."""
    return fmean(part for _, rate, part in shares() if rate in LIMITED_BY_LINKS)


def achieved(rate: float) -> float:
    """Payload bit/s of TCP on a link that is limited to ``rate`` bit/s."""
    return share() * rate

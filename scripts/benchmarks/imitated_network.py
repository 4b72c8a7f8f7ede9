"""Training over imitated slow links: the measurements of section network without root.

The ranks run ``sgp-run network=gloo network.bandwidth=...``. With this setting, `TrafficShaper`
delays messages and all-reduces as links of 100 or 300 Mbit/s would. It does not delay coordination
at the start and the end of a run. Other libraries are left out because they cannot use
`TrafficShaper`. First the ranks measure the rate that they achieve; if it is more than 5 % off,
nothing is reported. Everything else is as in section network. The profile and the predictions are
in ``imitated_network/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.hosts import Here
from benchmarks.measure import Table
from benchmarks.network import columns
from benchmarks.network_runs import Bench, Network

OUT = Path(__file__).resolve().parents[2] / "results" / "benchmarks" / "imitated_network"
NETWORKS = Network(4, 100e6, 8, imitated=True), Network(4, 300e6, 12, imitated=True)
CALIBRATED = NETWORKS[1], Network(4, 1000e6, 16, imitated=True)


def measure(
    networks: Sequence[Network] = NETWORKS,
    at: Sequence[Network] = CALIBRATED,
    seconds: float = 0.7,
) -> Iterator[Table]:
    """Compare predictions and measurements; arguments as in section network."""
    with TemporaryDirectory() as folder:
        first, second, *benches = (
            Bench(Here(), each, Path(folder), OUT) for each in (*at, *networks)
        )
        yield from columns((first, second), benches, seconds)

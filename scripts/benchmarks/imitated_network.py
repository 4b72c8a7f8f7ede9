"""Training over slow links that are imitated: what section network measures, without root, on any
machine.

The ranks of ``sgp-run network=gloo network.bandwidth=...`` send no earlier, and take in no earlier,
than links of 100 or 300 Mbit/s would let them (`sgp_runner.distributed.link`). Messages and
all-reduces are slowed so, not what ranks agree on at the start and the end. What would be used
instead has no such links, and is left out. Nor has a node a share of the processors to itself, so
it computes faster while others wait, which the simulator does not know of. First the ranks measure
what they achieve: if that is more than 5 % off, nothing is reported. Everything else is as in
section network; profiles and predictions are in ``imitated_network/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Table
from benchmarks.network import Bench, Network, columns
from benchmarks.on_hosts import Here

OUT = Path(__file__).resolve().parents[2] / "results" / "benchmarks" / "imitated_network"
NETWORKS = Network(4, 100e6, 8, imitated=True), Network(4, 300e6, 12, imitated=True)


def measure(networks: Sequence[Network] = NETWORKS, seconds: float = 0.7) -> Iterator[Table]:
    """seconds: for each part of a calibration."""
    with TemporaryDirectory() as folder:
        yield from columns(
            [Bench(Here(network.nodes), network, Path(folder), OUT) for network in networks],
            seconds,
        )

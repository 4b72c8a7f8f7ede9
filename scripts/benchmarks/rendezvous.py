"""The networks of section network, simulated again with `cluster.links.protocol=rendezvous`.

Nothing is measured. The profiles, the TCP rates and the real times are those that section network
has stored. The law was found in its recordings, after its predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.hosts import Here
from benchmarks.measure import Result, Table
from benchmarks.network import CALIBRATED, NETWORKS, OUT
from benchmarks.network_runs import ALGORITHMS, MODEL, Bench, Network, Profile, Timed
from sgp_runner.config.command_line import search_in
from sgp_runner.config.overrides import experiment_of
from validation.networks import tables

ONLY_IF_NAMED = True
LAW = "cluster.links.protocol=rendezvous"


def measure() -> Iterator[Table]:
    """Yield the simulated milliseconds per step on each network."""
    stored = {table["title"]: table for table in tables("network")}
    first, second = (profile(network, stored[network.title]) for network in CALIBRATED)
    with TemporaryDirectory() as folder:
        for network in NETWORKS:
            bench = Bench(Here(), network, Path(folder), OUT)
            cells = {name: Timed(words) for name, words in ALGORITHMS.items()}
            found = bench.predict(cells, (first, second), achieved(stored[network.title]))
            results = (Result(name, "ms", (milliseconds,)) for name, milliseconds in found.items())
            yield Table(network.title, tuple(results))


def profile(network: Network, table: Mapping[str, Any]) -> Profile:
    words = (search_in(str(OUT)), f"cluster={network.name}", LAW)
    return Profile(words, experiment_of([*MODEL, *words]).run.cluster, achieved(table))


def achieved(table: Mapping[str, Any]) -> float:
    """Return the bit/s of TCP that ``table`` contains."""
    [values] = [each["values"] for each in table["results"] if each["what"].startswith("achieved")]
    return 1e6 * median(values)

"""The networks of section network, simulated again with `cluster.links.protocol=rendezvous`.

Nothing is measured. The profiles, the TCP rates and the real times are those that section network
has stored. The law was found in its recordings, after its predictions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Result, Table
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.config.command_line import search_in
from sgp_runner.config.overrides import experiment_of
from validation.networks import tables

ONLY_IF_NAMED = True
OUT = Path(__file__).resolve().parents[2] / "results" / "benchmarks" / "network"
LAW = "cluster.links.protocol=rendezvous"
CORES = 2  # of the machine that ran the measurements
EVERY = 4  # steps between two records, and between two slow steps of SlowMo
WARM_UP = 2 * EVERY  # steps: the first all-reduce is slow, and SlowMo's first one follows step 4
ALGORITHMS = {
    "AR-SGD": ("algo=ar_sgd",),
    "D-PSGD": ("algo=d_psgd",),
    "AD-PSGD": ("algo=ad_psgd",),
    "SGP": ("algo=sgp",),
    "OSGP": ("algo=osgp",),
    "SlowMo": ("algo=slowmo", f"algo.tau={EVERY}"),
    "Gap-Aware": ("algo=gap_aware",),
    "Pipe-SGD": ("algo=pipe_sgd",),
}
LONGER = {"AD-PSGD": 8}  # times as many steps, because its averages can take long
MODEL = ("model=mlp", "model.hidden=[700,700]", "batch_size=128", "optim.lr=0.001")
PARAMETERS = 64 * 700 + 700 + 700 * 700 + 700 + 700 * 10 + 10


@dataclass(frozen=True)
class Network:
    """A measured network.

    bits_per_second: rate of each link. steps: number of measured steps per node.
    """

    nodes: int
    bits_per_second: float
    steps: int

    @property
    def name(self) -> str:
        return f"n{self.nodes}_{self.bits_per_second / 1e6:.0f}mbit"

    @property
    def title(self) -> str:
        return f"{self.nodes} nodes, {self.bits_per_second / 1e6:.0f} Mbit/s"


NETWORKS = (
    *(Network(4, 100e6, 8), Network(4, 300e6, 12), Network(4, 1000e6, 16)),
    *(Network(8, 100e6, 4), Network(8, 300e6, 8), Network(8, 1000e6, 12)),
)
CALIBRATED = NETWORKS[1:3]


@dataclass(frozen=True)
class Profile:
    """A calibrated network: settings that choose its profile, and its TCP rate in bit/s."""

    words: tuple[str, ...]
    cluster: Cluster
    achieved: float


def measure() -> Iterator[Table]:
    """Yield the simulated milliseconds per step on each network."""
    stored = {table["title"]: table for table in tables("network")}
    first, second = (profile(network, stored[network.title]) for network in CALIBRATED)
    with TemporaryDirectory() as folder:
        for network in NETWORKS:
            here = machines((first, second), achieved(stored[network.title]))
            results = (
                Result(name, "ms", (simulated(network, name, here, folder),)) for name in ALGORITHMS
            )
            yield Table(network.title, tuple(results))


def profile(network: Network, table: Mapping[str, Any]) -> Profile:
    words = (search_in(str(OUT)), f"cluster={network.name}", LAW)
    return Profile(words, experiment_of([*MODEL, *words]).run.cluster, achieved(table))


def achieved(table: Mapping[str, Any]) -> float:
    """Return the bit/s of TCP that ``table`` contains."""
    [values] = [each["values"] for each in table["results"] if each["what"].startswith("achieved")]
    return 1e6 * median(values)


def machines(profiles: tuple[Profile, Profile], achieved: float) -> list[str]:
    """Return the settings of machines that were calibrated at two rates, at another rate of TCP."""
    first, second = profiles
    slower = 1 / achieved - 1 / first.achieved  # s/bit
    here = [*first.words]
    links, collectives = first.cluster.links, first.cluster.collectives
    rates = {
        "links.bandwidth": links.rate,
        "collectives.all_reduce_bandwidth": collectives.all_reduce_bandwidth or links.rate,
    }
    for key, rate in rates.items():
        here.append(f"cluster.{key}={1 / (1 / rate + slower)!r}")
    # Processor time per byte: a constant, plus a fraction of the byte's time on the link.
    costs = [each.cluster.hosts.passing_seconds_per_byte for each in profiles]
    share = (costs[0] - costs[1]) / (1 / first.achieved - 1 / second.achieved)
    passing = max(min(costs) / 2, costs[0] + share * slower)
    return [*here, f"cluster.hosts.passing_seconds_per_byte={passing!r}"]


def simulated(network: Network, name: str, here: Sequence[str], folder: str) -> float:
    """Return milliseconds per simulated step with messages and gradients of the real model."""
    from sgp_runner.session.execution import perform

    steps = LONGER.get(name, 1) * network.steps + WARM_UP
    words = [
        *("model=timing_only", f"model.sample_steps={steps}", "epochs=1", "timed_as.model=mlp"),
        *(f"timed_as.num_parameters={PARAMETERS}", "timed_as.batch_size=128"),
        *(f"nodes={network.nodes}", f"log_every={EVERY}", *ALGORITHMS[name], *here),
        *(f"results={folder}", "resume=never", "logger=jsonl"),
    ]
    ranks = ceil(experiment_of(words).run.ranks / CORES)
    experiment = experiment_of([*words, f"cluster.hosts.ranks_per_host={ranks}"])
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        perform(experiment)
    asynchronous = experiment.run.algo.asynchronous
    return 1000 * step_seconds(experiment.directory, network.nodes, asynchronous)


def step_seconds(run_dir: Path, nodes: int, asynchronous: bool) -> float:
    """Return the mean seconds per step of a node between the second and the last regular record.

    The mean is over ranks with both records. The steps of asynchronous algorithms are counted over
    all nodes.
    """
    from sgp_runner.recording.recorder import read_metrics

    records = [record for record in read_metrics(run_dir) if record["kind"] == "train"]
    found = []
    for rank in range(nodes):
        regular = [record for record in records if record["rank"] == rank][2:-1]
        if len(regular) > 1:
            first, last = regular[0], regular[-1]
            seconds = (last["time_s"] - first["time_s"]) / (last["step"] - first["step"])
            found.append(seconds * (nodes if asynchronous else 1))
    return mean(found)

"""Simulated and real runs over slow networks, for sections network and imitated_network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median

from benchmarks import rivals
from benchmarks.hosts import Here, Hosts
from benchmarks.processes import Ranks, rank_of_run, ranks_on_a_core
from reproduce.archives import compressed, tar_of
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.config.command_line import search_in
from sgp_runner.config.overrides import experiment_of

EVERY = 4  # steps between two records, and between two slow steps of SlowMo
WARM_UP = 2 * EVERY  # steps: the first all-reduce is slow, and SlowMo's first one follows step 4
COMPUTE = "compute alone"
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
RIVALS = {
    "torch DDP": (rivals.ddp, "torch"),
    "fairscale's SGP": (rivals.fairscale, "fairscale"),
}
MODEL = ("model=mlp", "model.hidden=[700,700]", "batch_size=128", "optim.lr=0.001")
SAMPLES = 1437  # size of the digits' training set
LONGER = 8
FACTOR = 4  # a slow node or link is slower by this factor
SLOW = 1  # the slow rank
KEPT = ("config.yaml", "metrics*.jsonl", "recording-*.jsonl", "summary.json")
MESSAGES = 8  # number of messages that measure the rate of imitated links


@dataclass(frozen=True)
class Network:
    """A network and the length of the runs on it.

    bits_per_second: rate of each link. steps: number of measured steps per node, a multiple of
    `EVERY`. repeats: number of runs. imitated: whether ``network.bandwidth`` imitates the links;
    other libraries cannot run on such links.
    """

    nodes: int
    bits_per_second: float
    steps: int
    repeats: int = 3
    imitated: bool = False

    @property
    def tolerance(self) -> float:
        """The largest accepted relative error of the rate. On real links, headers take 5 %."""
        return 0.05 if self.imitated else 0.1

    @property
    def name(self) -> str:
        return f"n{self.nodes}_{self.bits_per_second / 1e6:.0f}mbit"

    @property
    def title(self) -> str:
        return f"{self.nodes} nodes, {self.bits_per_second / 1e6:.0f} Mbit/s"

    def words(self, *more: str, longer: int = 1) -> list[str]:
        """Return the settings of a real run with ``longer`` times as many measured steps."""
        steps = longer * self.steps + WARM_UP
        length = f"epochs={steps / (SAMPLES // (self.nodes * 128))!r}"
        quiet = (
            "eval_every=1000000",
            "checkpoint.every_minutes=null",
            "logger=jsonl",
            "network.timeout_seconds=60",
            "network.shared_memory=false",  # virtual hosts are on one machine
        )
        links = [f"network.bandwidth={self.bits_per_second:.0f}"] if self.imitated else []
        return [
            *MODEL,
            "network=gloo",
            *links,
            f"nodes={self.nodes}",
            length,
            f"log_every={EVERY}",
            *quiet,
            *more,
        ]

    @property
    def slows(self) -> tuple[str, ...]:
        """The kinds of slow-down to measure: none, except with four nodes at 300 Mbit/s."""
        if (self.nodes, self.bits_per_second) != (4, 300e6):
            return ()
        return ("node",) if self.imitated else ("node", "link")


@dataclass(frozen=True)
class Timed:
    """One time to measure and predict.

    words: settings of the algorithm. slow: whether the ``node`` or the ``link`` of rank `SLOW` is
    slow, if any.
    """

    words: tuple[str, ...]
    slow: str | None = None

    @property
    def longer(self) -> int:
        """A factor on the length of the run, because averages of AD-PSGD can take long."""
        return LONGER if self.words == ALGORITHMS["AD-PSGD"] else 1

    @property
    def faults(self) -> list[str]:
        """Settings that slow a node, or a simulated link; tc slows real links."""
        return [f"faults.slow_{self.slow}s={{{SLOW}: {FACTOR}}}"] if self.slow else []


@dataclass(frozen=True)
class Profile:
    """A calibrated network: settings that choose its profile, and its TCP rate in bit/s."""

    words: tuple[str, ...]
    cluster: Cluster
    achieved: float


class Bench:
    """The runs of one network on ``hosts``.

    folder: for logs and runs. out: for profiles and predictions.
    """

    def __init__(self, hosts: Hosts | Here, network: Network, folder: Path, out: Path) -> None:
        self.hosts, self.network, self.folder, self.out = hosts, network, folder, out
        self.kept: dict[str, dict[str, bytes]] = {}  # contents, by run, then by file

    def achieved(self) -> tuple[float, ...]:
        """Limit the links and return three measured rates in bit/s while all hosts send."""
        rate, nodes = self.network.bits_per_second, self.network.nodes
        if isinstance(self.hosts, Hosts):
            self.hosts.shape(rate)
            return tuple(self.hosts.achieved(int(rate / 8), nodes) for _ in range(3))
        with self.ranks(nodes) as ranks:
            return tuple(ranks.call(send_around, rate, int(rate / 8))[0] for _ in range(3))

    def ranks(self, count: int, slow: bool = False) -> Ranks:
        """Start ``count`` processes on the hosts; ``slow`` slows the real link of rank `SLOW`."""
        if isinstance(self.hosts, Hosts):
            self.hosts.shape(self.network.bits_per_second / (FACTOR if slow else 1), [SLOW])
        return Ranks(count, self.hosts, pinned=True)

    def calibrate(self, seconds: float) -> Profile:
        """Measure the machine on this network and write the profile to ``out``."""
        from sgp_runner.cli.calibrate import conclude
        from sgp_runner.session.execution import prepare

        achieved, name = median(self.achieved()), self.network.name
        settings = [*self.network.words(), f"name={name}", f"results={self.folder}/calibration"]
        experiment = experiment_of(settings)
        experiment.directory.mkdir(parents=True)
        prepare(experiment)
        with self.ranks(self.network.nodes) as ranks:
            ranks.call(calibrate, str(experiment.directory / "config.yaml"), seconds)
        profile = conclude(experiment, ["scripts/bench.py", "network"])
        kept = self.out / "cluster" / profile.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(profile.read_text(encoding="utf-8"), encoding="utf-8")
        words = (search_in(str(self.out)), f"cluster={name}")
        return Profile(words, experiment_of([*MODEL, *words]).run.cluster, achieved)

    def predict(
        self, cells: Mapping[str, Timed], profiles: tuple[Profile, ...], achieved: float
    ) -> dict[str, float]:
        """Return the simulated milliseconds per step of each cell.

        achieved: bit/s of TCP on this network
        """
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
        here.append(f"cluster.hosts.passing_seconds_per_byte={passing!r}")
        return {title: self.simulated(title, cell, here) for title, cell in cells.items()}

    def simulated(self, title: str, cell: Timed, here: Sequence[str]) -> float:
        """Return milliseconds per simulated step with messages and gradients of the real model."""
        from sgp_runner.session.execution import perform

        network = self.network
        timing = [
            "model=timing_only",
            f"model.sample_steps={cell.longer * network.steps + WARM_UP}",
            "epochs=1",
            "timed_as.model=mlp",
        ]
        timing += [
            f"timed_as.num_parameters={parameters()}",
            "timed_as.batch_size=128",
            f"nodes={network.nodes}",
            f"log_every={EVERY}",
        ]
        place = [
            f"results={self.folder}/simulated",
            f"name={network.name}-{slug(title)}",
            "resume=never",
            "logger=jsonl",
        ]
        words = [*timing, *cell.words, *cell.faults, *here, *place]
        ranks = experiment_of(words).run.ranks
        experiment = experiment_of(
            [*words, f"cluster.hosts.ranks_per_host={ranks_on_a_core(ranks)}"]
        )
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            perform(experiment)
        return 1000 * step_seconds(
            experiment.directory, network.nodes, experiment.run.algo.asynchronous
        )

    def times(self, cells: Mapping[str, Timed]) -> dict[str, tuple[float, ...]]:
        """Measure each cell, compute alone and other libraries in turns; return milliseconds."""
        turns: dict[str, Callable[[], float]] = {
            COMPUTE: self.real(COMPUTE, Timed(("algo=local_sgd", "algo.tau=null")))
        }
        turns |= {name: self.real(name, cell) for name, cell in cells.items()}
        if not self.network.imitated:
            turns |= {
                name: partial(self.rival, make)
                for name, (make, package) in RIVALS.items()
                if find_spec(package) is not None
            }
        found = [
            {name: 1000 * turn() for name, turn in turns.items()}
            for _ in range(self.network.repeats)
        ]
        return {name: tuple(turn[name] for turn in found) for name in turns}

    def real(self, title: str, cell: Timed) -> Callable[[], float]:
        """Return a function that runs real ranks from start to end and returns seconds per step."""
        network = self.network
        faults = cell.faults if cell.slow == "node" else []
        words = network.words(
            *cell.words,
            *faults,
            f"name={slug(title)}",
            f"results={self.folder}/{network.name}",
            "resume=never",
            "record=true",
            longer=cell.longer,
        )

        def run() -> float:
            experiment = experiment_of(words)
            with self.ranks(experiment.run.ranks, slow=cell.slow == "link") as ranks:
                ranks.call(rank_of_run, words)
            self.keep(experiment.directory)
            return step_seconds(
                experiment.directory, network.nodes, experiment.run.algo.asynchronous
            )

        return run

    def keep(self, run: Path) -> None:
        """Store the files of a run that `sgp-replay` needs, for the archive of recordings."""
        repeat = 1 + sum(name.startswith(f"{run.name}-") for name in self.kept)
        self.kept[f"{run.name}-{repeat}"] = {
            path.name: path.read_bytes().replace(str(self.folder).encode(), b"results")
            for pattern in KEPT
            for path in sorted(run.glob(pattern))
        }

    def release(self) -> None:
        """Write the archive of all recordings of this network."""
        files = {
            f"{run}/{name}": content
            for run, each in self.kept.items()
            for name, content in each.items()
        }
        archive = self.out / "recordings" / f"{self.network.name}.tar.xz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(compressed(archive.name, tar_of(files)))

    def rival(self, make: Callable[..., rivals.Step]) -> float:
        """Train with another library and return the seconds per step."""
        with self.ranks(self.network.nodes) as ranks:
            outcomes = ranks.call(rivals.train, make, self.network.words(), self.network.steps)
        return outcomes[0]["seconds"]


def step_seconds(run_dir: Path, nodes: int, asynchronous: bool) -> float:
    """Return the mean seconds per step of a node between the second and the last regular record.

    The mean is over ranks with both records. The steps of asynchronous algorithms are counted over
    all nodes.
    """
    from sgp_runner.recording.recorder import read_metrics

    records = [record for record in read_metrics(run_dir) if record["kind"] == "train"]
    found = []
    for rank in range(nodes):
        own = [record for record in records if record["rank"] == rank]
        regular = own[2:-1]  # without the first step, the first record, and the end
        if len(regular) > 1:
            first, last = (
                (float(str(record["time_s"])), int(str(record["step"])))
                for record in (regular[0], regular[-1])
            )
            found.append(
                (last[0] - first[0]) / (last[1] - first[1]) * (nodes if asynchronous else 1)
            )
    return mean(found)


def slug(title: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in title.lower())


def parameters() -> int:
    """Return the number of parameters of the model."""
    return 64 * 700 + 700 + 700 * 700 + 700 + 700 * 10 + 10


def num_bytes() -> int:
    """Return the size of a message in bytes."""
    return 4 * parameters()


# Functions that run in processes on the hosts.


def calibrate(config: str, seconds: float) -> None:
    from sgp_runner.calibration.probe_process import main

    if main([config], seconds=seconds):
        raise RuntimeError("a rank of the calibration failed")


def send_around(bits_per_second: float, num_bytes: int) -> float:
    """Send ``num_bytes`` to the next rank over imitated links and return the mean rate in bit/s.

    Each rank also receives ``num_bytes`` from the previous rank. The mean is over all ranks.
    """
    import torch

    from sgp_runner.core.scheduler import RealClock, Scheduler
    from sgp_runner.distributed.rank import connect
    from sgp_runner.distributed.torch_world import TorchWorld
    from sgp_runner.distributed.traffic_shaper import TrafficShaper

    world = TorchWorld(shaper=TrafficShaper(bits_per_second))
    world.connect(world.size)
    clock = RealClock()
    scheduler = Scheduler(clock)
    comm = connect(world, scheduler, clock)
    message, rate = torch.zeros(num_bytes // MESSAGES, dtype=torch.uint8), torch.zeros(1)

    async def exchange() -> None:
        await comm.all_reduce(torch.zeros(1))  # so that all ranks begin at the same time
        start = clock.now
        for _ in range(MESSAGES):
            comm.send((world.process_rank + 1) % world.size, message)
        for _ in range(MESSAGES):
            await comm.recv((world.process_rank - 1) % world.size)
        rate.fill_(8 * MESSAGES * message.numel() / (clock.now - start))
        world.mean(rate)

    scheduler.spawn(exchange(), "exchange")
    scheduler.run()
    comm.close()
    world.close()
    return rate.item()

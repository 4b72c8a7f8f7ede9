"""``sgp-run new``: write a folder with an algorithm, model or data set and a test, or a cluster.

The test makes a dry run, compares the simulator with real processes, and checks that the same seed
gives the same bytes, also after a run is resumed.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

from sgp_runner.cli.new_cluster import write_cluster
from sgp_runner.utils.errors import ConfigError

HELP = """usage: sgp-run new algorithm|model|data NAME
       sgp-run new cluster NAME rates=FILE round_trips=FILE regions=A,B
           [prices=FILE] [nodes=N] [base=CLUSTER]

The first form writes the folder NAME with a plug-in and its test. The second
one writes NAME.yaml, a cluster of regions, from measurements between them. All
files are CSV with the columns source (or src) and destination (or dst); rates
have mbit_per_s, round_trips min_rtt_ms or mean_rtt_ms, and prices price_per_gb
(or cost), which sgp-run plan adds to the cost.

  regions   names in the columns source and destination, two or more
  prices    a table without names of clouds is one cloud's: regions of another
            one are its destination internet
  nodes     of each region (default: 1)
  base      the cluster whose nodes and links inside a region these are
            (ethernet_10g)

examples
  sgp-run new algorithm mine
  sgp-run new cluster clouds rates=throughput.csv round_trips=rtt.csv \\
    regions=aws:us-east-1,gcp:europe-west3-a"""

ALGORITHM = '''"""NAME: gossip on a graph, and an exact average every few steps."""

from dataclasses import dataclass, field
from typing import ClassVar

from sgp_runner.plugin import Algorithm, ConfigError, Ring, Topology, verify

CONTRACT = 1  # of sgp_runner.plugin


@dataclass(frozen=True)
class CLASS(Algorithm):
    """Gossip with exact averages.

    topology: symmetric
    period: steps between exact averages
    """

    topology: Topology = field(default=Ring())
    period: int = 6
    title: ClassVar[str] = "NAME"

    def check(self, nodes, optim):
        """Raise ConfigError, with one sentence, for settings that cannot work."""
        verify(self.topology, nodes, "doubly stochastic", self.title)
        if self.period < 1:
            raise ConfigError("algo.period", f"{self.period} must be at least 1 step.")

    def phases(self, size):
        """Return the period, in steps, of messages and averages; a dry run lasts one period."""
        return [(epoch, self.period * steps) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker):
        """Run the loop of one worker; await every operation that takes time, and nothing else.

        A resumed run calls this method again, so values that later steps need must be named state:
        ``m = worker.state("momentum", lambda: x.new_zeros(x.shape))`` before the loop. In the loop,
        change the tensor in place, ``m.mul_(0.9).add_(d)``; ``m = 0.9 * m + d`` would make another
        tensor. For counts, ``worker.increment("rounds")`` adds 1, and ``worker.counter("rounds")``
        returns the number.
        """
        x = worker.params
        for k in worker.steps():
            x -= worker.update(await worker.grad())
            if (k + 1) % self.period == 0:
                x.copy_(await worker.comm.all_reduce(x.clone()))
                continue
            peers = self.topology.at(worker.epoch).out_peers(worker.rank, worker.size, k)
            x /= len(peers) + 1
            for peer in peers:
                worker.comm.send(peer, x.clone())
            for peer in peers:
                x += await worker.comm.recv(peer)
'''

MODEL = '''"""NAME: two layers on flattened inputs."""

import math
from dataclasses import dataclass
from typing import ClassVar

CONTRACT = 1  # of sgp_runner.plugin


@dataclass(frozen=True)
class CLASS:
    """Two linear layers.

    width: number of hidden units
    """

    width: int = 32
    name: ClassVar[str] = "NAME"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)  # supported tasks
    vectorizes: ClassVar[bool] = True  # False with BatchNorm
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset):
        """Return a float32 module on the CPU; torch's global generator is seeded already."""
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(dataset.input_shape), self.width),
            nn.ReLU(),
            nn.Linear(self.width, dataset.num_classes),
        )
'''

DATA = '''"""NAME: noisy points around the corners of a cube; the class is the corner."""

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.plugin import Classification, Dataset, TensorSplit, generator

CONTRACT = 1  # of sgp_runner.plugin


@dataclass(frozen=True)
class CLASS:
    """Points [3] around 8 corners.

    noise: standard deviation of a coordinate; corners are 2 apart
    """

    noise: float = 0.5
    name: ClassVar[str] = "NAME"
    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = True  # whether it is a substitute for the data of published results
    train_size: ClassVar[int] = 960

    def load(self, dtype):
        """Return both splits, with inputs in ``dtype``; they must be equal on every rank."""
        train, valid = self.points(960, 1, dtype), self.points(240, 2, dtype)
        return Dataset(self.name, Classification(), train, valid, (3,), 8)

    def points(self, count, seed, dtype):
        import torch

        labels = torch.arange(count) % 8
        corners = torch.stack([labels // bit % 2 * 2 - 1 for bit in (1, 2, 4)], 1)
        noise = self.noise * torch.randn(count, 3, generator=generator(seed))
        return TensorSplit(((corners + noise).to(dtype),), labels, labels)
'''

TEST = '''"""Checks NAME with small runs: python -m pytest"""

import json
import subprocess
import sys
from pathlib import Path

SETTINGS = ["GROUP=" + str(Path(__file__).with_name("NAME.py")), "SETTINGS"]
SETTINGS += ["epochs=1", "dtype=float64", "logger=jsonl"]


def run(folder, *words):
    """Run SETTINGS and ``words``; return the folder of the run."""
    command = [sys.executable, "-P", "-m", "sgp_runner", *SETTINGS, *words]
    command += ["results=" + str(folder), "name=run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "run"


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_the_calls_of_all_ranks_fit_together(tmp_path):
    for nodes in (2, 3, 8):  # each run starts with a dry run, without gradients
        run(tmp_path / str(nodes), f"nodes={nodes}", "DRY")


def test_the_simulator_and_real_processes_agree(tmp_path):
    simulated, real = (
        summary(run(tmp_path / network, f"network={network}", "nodes=2"))
        for network in ("sim", "gloo")
    )
    for value in ("average_loss", "consensus_distance"):
        assert abs(simulated[value] - real[value]) < 1e-10


def records(folder):
    """Return all lines except the last, which has the wall-clock time."""
    return (folder / "metrics.jsonl").read_text().splitlines()[:-1]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one, other = (run(tmp_path / name, "nodes=4") for name in ("one", "other"))
    assert records(one) == records(other) != []


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path):
    settings = ["nodes=4", "optim.schedule=constant", "checkpoint.keep_last=true"]
    run(tmp_path / "cut", *settings)  # leaves a checkpoint, from which a longer run resumes
    cut = run(tmp_path / "cut", *settings, "epochs=2")
    assert records(cut) == records(run(tmp_path / "whole", *settings, "epochs=2")) != []


def test_the_run_records_this_code(tmp_path):
    folder = run(tmp_path, "nodes=2")
    record = json.loads((folder / "environment.json").read_text())["plugins"]["NAME"]
    assert record["hash"] in (folder / "config.yaml").read_text()
    assert "NAME.py" in record["files"]
'''

README = """# NAME

    sgp-run GROUP=./NAME.py nodes=8     # train, simulated
    sgp-run GROUP=./NAME.py network=gloo nodes=4
    sgp-run GROUP=./NAME.py --cfg job   # all settings
    python -m pytest                    # check it; pip install pytest

Modules that NAME.py imports from this folder belong to it: they are hashed into the identity of
its runs.
"""

LONGEST = 100  # letters of a name, because names of files and folders are limited
# kind -> group, code, settings of the test's runs, and the setting that shortens its dry runs
KINDS = {
    "algorithm": ("algo", ALGORITHM, '"model=mlp"', '"model=timing_only"'),
    "model": ("model", MODEL, '"algo=sgp"', '"epochs=0.1"'),
    "data": ("data", DATA, '"algo=sgp", "model=mlp"', '"epochs=0.1"'),
}


def main(argv: Sequence[str]) -> int:
    """Write the folder. Raises ConfigError if the kind is unknown or the name is taken."""
    if argv[:1] == ["cluster"]:
        print(write_cluster(argv[1:]), flush=True)
        return 0
    usage = (
        f"write sgp-run new {'|'.join((*KINDS, 'cluster'))} NAME, for example: "
        "sgp-run new algorithm mine."
    )
    if len(argv) != 2:
        raise ConfigError("new", usage)
    kind, name = argv
    if kind not in KINDS:
        raise ConfigError("new", f"there is no '{kind}'; {usage}")
    group, code, settings, dry = KINDS[kind]
    check_name(name, group)
    folder = Path(name)
    values = {"NAME": name, "CLASS": class_name(name), "GROUP": group}
    values |= {'"SETTINGS"': settings, '"DRY"': dry}
    texts = {f"{name}.py": code, f"test_{name}.py": TEST, "README.md": README}
    try:
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(filled(text, values), encoding="utf-8")
    except FileExistsError:
        raise ConfigError("new", f"'{name}' already exists in this folder.") from None
    except OSError as error:
        raise ConfigError("new", f"cannot write to {folder}: {error.strerror}.") from error
    print(f"{folder}/: run it with", flush=True)
    print(f"  cd {folder} && sgp-run {group}=./{name}.py nodes=8", flush=True)
    print("  python -m pytest  # takes a minute; needs pytest", flush=True)
    return 0


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub("|".join(values), lambda match: values[match[0]], text)


def class_name(name: str) -> str:
    return name.title().replace("_", "")


def check_name(name: str, group: str) -> None:
    """Raise ConfigError unless ``name`` is valid and unused as a choice of ``group``."""
    from sgp_runner.config.choices import groups
    from sgp_runner.config.plugins.loading import check_name as check_value

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError("new", f"'{name}' is not a valid name: use a-z, then a-z, 0-9 and _.")
    if len(name) > LONGEST:
        raise ConfigError("new", f"the name has {len(name)} letters: use at most {LONGEST}.")
    check_value(name, "new")
    if keyword.iskeyword(class_name(name)):
        raise ConfigError("new", f"{class_name(name)} is a Python keyword: choose another name.")
    if name in groups()[group]:
        raise ConfigError("new", f"{group}={name} already exists: choose another name.")
    if not Path(name).exists() and importlib.util.find_spec(name) is not None:
        raise ConfigError("new", f"there is a Python module '{name}': choose another name.")

"""Plug-ins of a user, for tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sgp_runner.config.plugins import loading as plugins

ALGORITHM = '''"""Gossip, and an exact average every few steps."""

from dataclasses import dataclass
from typing import ClassVar

from helping import half

from sgp_runner.plugin import Algorithm, Ring, Topology


@dataclass(frozen=True)
class Mine(Algorithm):
    """Gossip with exact averages.

    topology: symmetric
    period: steps between exact averages
    """

    topology: Topology = Ring()
    period: int = 6
    title: ClassVar[str] = "My gossip"

    def phases(self, size):
        return [(epoch, self.period * steps) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker):
        x = worker.params
        for k in worker.steps():
            x -= worker.update(await worker.grad())
            if (k + 1) % self.period == 0:
                x.copy_(await worker.comm.all_reduce(x.clone()))
                continue
            (peer,) = self.topology.at(worker.epoch).out_peers(worker.rank, worker.size, k)
            worker.comm.send(peer, x.clone())
            x += await worker.comm.recv(peer)
            x *= half()
'''


HELPING = """def half():
    from deeper import HALF  # only when it runs

    return HALF
"""


FILES = {"deeper.py": "HALF = 0.5\n", "helping.py": HELPING, "mine.py": ALGORITHM}


TINY = ["model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "epochs=1"]


TINY += ["dtype=float64", "logger=jsonl"]


RUN = ["algo=./mine.py", *TINY]


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    for name, text in FILES.items():
        Path(name).write_text(text)


def hash_of(files: dict[str, str]) -> str:
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def another_command() -> None:
    """Forget what this process has imported, as a new one would."""
    plugins.forget()


def stored(name: str) -> Any:
    return yaml.safe_load(Path(f"results/runs/{name}/config.yaml").read_text())


PACKAGE = {
    "mypkg/__init__.py": 'CONTRACT = 1\nCHOICES = {"algo": {"pga": "mypkg.gossip:Mine"}}\n',
    "mypkg/gossip.py": ALGORITHM.replace("from helping", "from mypkg.helping"),
    "mypkg/helping.py": "def half():\n    return 0.5\n",
    "mypkg/configs/algo/pga.yaml": "defaults:\n  - /topology@topology: ring\n\nname: pga\n",
    "mypkg/configs/algo/pga_often.yaml": "defaults: [pga]\nperiod: 2\n",
    "mypkg/configs/cluster/lab.yaml": (
        "defaults: [ideal]\nname: lab\nlinks: {latency_seconds: 0.5}\n"
    ),
    "mypkg/configs/experiment/demo.yaml": (
        "# @package _global_\ndefaults:\n  - override /algo: pga_often\n\nseed: 7\n"
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package in ``folder`` look installed, with an entry point."""
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: mypkg\nVersion: 1\n",
        "entry_points.txt": "[sgp_runner.plugins]\nmypkg = mypkg\n",
    }
    write(folder / "mypkg-1.dist-info", info)
    monkeypatch.syspath_prepend(folder)

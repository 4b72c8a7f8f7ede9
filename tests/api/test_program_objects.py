"""Objects in the memory of a Python program, on real ranks."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers.refusals import refusal

import sgp_runner as sgp

SCRIPT = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

import own_loss
import sgp_runner as sgp
from sgp_runner.plugin import Algorithm, Topology
from sgp_runner.topology.graphs import Ring


@dataclass(frozen=True)
class Mine(Algorithm):
    topology: Topology
    sign: Literal["minus", "plus"] = "plus"
    title: ClassVar[str] = "Mine"

    async def run(self, worker):
        x = worker.params
        for k in worker.steps():
            x.sub_(worker.update(await worker.grad()), alpha=1 if self.sign == "minus" else -1)
            (peer,) = self.topology.at(worker.epoch).out_peers(worker.rank, worker.size, k)
            worker.comm.send(peer, x.clone())
            x.lerp_(await worker.comm.recv(peer), 0.5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(3, 2), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.rand(3) + index / 32, int(index > 16)


net, curves = Net(), []
(torch.ones(300, 300) @ torch.ones(300, 300)).sum()
for network in ("sim", "gloo"):
    result = sgp.run(
        algo=Mine(Ring(), "minus"),
        model=net,
        data=(Samples(), Samples()),
        loss=own_loss.loss,
        nodes=2,
        epochs=2,
        batch_size=8,
        dtype="float64",
        logger="jsonl",
        network=network,
        verbose=False,
    )
    curves.append(result.records.query("kind == 'eval'").sort_values(["step", "rank"]).loss)
assert len(curves[0]) == 4 and curves[0].tolist() == curves[1].tolist(), curves
print("equal")
"""
LOSS = """
from torch.nn.functional import cross_entropy

def loss(outputs, targets):
    return 2 * cross_entropy(outputs, targets)
"""


def test_a_script_runs_its_objects_on_real_ranks_with_the_losses_of_the_simulator(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_loss.py").write_text(LOSS)
    done = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("equal\n", "", 0)


class Guarded:
    """Samples that cannot be copied to another process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(3), index % 2


def test_an_object_that_cannot_be_copied_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "model=mlp network=gloo nodes=2 batch_size=2"
    assert str(refusal(sgp.run, words, data=(Guarded(), Guarded()))) == (
        "network: an object of this program cannot be copied to the ranks (TypeError: cannot "
        "pickle '_thread.lock' object): use network=sim, or write it as a plug-in, ./mine.py."
    )
    assert not list(tmp_path.rglob("*.yaml"))

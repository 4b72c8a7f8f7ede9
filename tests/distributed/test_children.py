"""Plug-ins that do more than they should when they are imported, on real ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import run_command
from helpers.processes import check_no_rank_is_left

ALGORITHM = """from dataclasses import dataclass
from typing import ClassVar

import torch

from sgp_runner.plugin import Algorithm


@dataclass(frozen=True)
class Mine(Algorithm):
    title: ClassVar[str] = "Mine"

    async def run(self, worker):
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()))


"""
MODEL = """import os
import threading
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "mine"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = True
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset):
        if os.environ.get("RANK") == "{rank}":
            threading.Event().wait()
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
PRODUCT = "TABLE = torch.randn(1000, 1000) @ torch.randn(1000, 1000)"
BACKWARD = "x = torch.randn(64, 64, requires_grad=True); (x @ x).sum().backward()"


def sgp_run(folder: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    run = ("network=gloo", "epochs=0.1", "logger=none")
    return run_command(*run, *overrides, folder=folder, variables=variables)


@pytest.mark.parametrize("code", [PRODUCT, BACKWARD], ids=["product", "backward"])
def test_a_plug_in_that_computes_when_it_is_imported(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ALGORITHM + code)
    overrides = ("algo=./mine.py", "model=mlp", "data=digits", "nodes=1")
    done = sgp_run(tmp_path, *overrides, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr


FRESH = """import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
from sgp_runner.distributed.children import is_fresh
import torch

assert is_fresh()
torch.randn(1000, 1000) @ torch.randn(1000, 1000)
assert not is_fresh()
"""


def test_a_process_that_has_computed_is_not_forked() -> None:
    variables = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", FRESH], env=variables, check=True)


@pytest.mark.parametrize(("nodes", "rank"), [(1, 0), (2, 1)])
def test_a_rank_that_stands_still_before_its_first_step(
    nodes: int, rank: int, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL.format(rank=rank))
    overrides = ("model=./mine.py", f"nodes={nodes}", "network.start_timeout_seconds=3")
    done = sgp_run(tmp_path, "algo=local_sgd", *overrides)
    (sentence,) = re.findall("^sgp-run: .*", done.stderr, flags=re.MULTILINE)
    assert sentence == (
        f"sgp-run: rank {rank} has done nothing for 3 s before its first step "
        "(network.start_timeout_seconds): its data, model or algorithm is blocked; fix "
        "that, or increase the limit."
    )
    assert done.returncode == 1
    check_no_rank_is_left(tmp_path)

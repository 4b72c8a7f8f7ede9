from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.commands import run_command

from sgp_runner import __version__
from sgp_runner.utils.provenance import VARIABLES, environment, gpu, gpu_versions


def test_it_names_versions_and_the_command_as_typed_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["sgp-run", "algo=osgp", "nodes=4"])
    monkeypatch.setenv("SOME_TOKEN", "do-not-write-me")
    seen = environment()
    assert (seen["sgp_run"], seen["command"]) == (
        __version__,
        ["sgp-run", "algo=osgp", "nodes=4"],
    )
    packages = seen["packages"]
    assert isinstance(packages, dict) and list(packages) == [
        "torch",
        "torchvision",
        "hydra",
        "omegaconf",
        "wandb",
    ]
    assert str(packages["hydra"]).startswith("1.3")
    assert datetime.datetime.fromisoformat(str(seen["started"])).utcoffset() == datetime.timedelta(
        0
    )
    assert "do-not-write-me" not in json.dumps(seen)


def test_it_names_what_the_last_bits_of_results_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    seen = environment()
    assert seen["variables"] == {"MKL_CBWR": "AVX2"}
    processor = seen["processor"]
    assert isinstance(processor, dict) and processor["machine"] == platform.machine()
    if platform.machine() == "x86_64" and sys.platform == "linux":
        assert list(processor) == [
            *("machine", "vendor_id", "cpu_family", "model", "model_name", "vectors"),
        ]
        capability = torch.backends.cpu.get_cpu_capability()
        assert ("avx512f" in processor["vectors"]) >= (capability == "AVX512")
        assert ("avx2" in processor["vectors"]) >= (capability in ("AVX2", "AVX512"))


H100 = SimpleNamespace(name="NVIDIA H100", total_memory=85_000_000_000, major=9, minor=0)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x)"


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch answer as it does where there is a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", {"cuda:0": H100}.__getitem__)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(("line", "version"), [(CLOSED, "535.129.03"), (OPEN, "570.86.15")])
def test_a_gpu_is_described(
    line: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    monkeypatch.setattr("sgp_runner.utils.provenance.DRIVER", tmp_path / "version")
    assert gpu("cuda:0") == {
        "name": "NVIDIA H100",
        "memory": 85_000_000_000,
        "capability": "9.0",
        "driver": version,
        "cuda": "12.8",
        "cudnn": 91002,
        "nccl": "2.27.3",
    }


def test_a_cpu_is_not_described_and_versions_may_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgp_runner.utils.provenance.DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert gpu("cpu") is None
    assert gpu_versions() == {"driver": None, "cuda": None, "cudnn": None, "nccl": None}


@pytest.mark.usefixtures("one_gpu")
def test_an_incompatible_library_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    versions = gpu_versions()
    assert (versions["cudnn"], versions["cuda"]) == (None, "12.8")


RUN = (
    *("network=gloo", "nodes=3", "model=quadratic", "data.samples=96", "data.dimension=4"),
    *("epochs=1", "name=run", "resume=never"),
)
RECORDING = """
import os, sys
import sgp_runner.assembly.real.rank_backend as backend
from sgp_runner.cli.main import main
from sgp_runner.utils.signals import install

def gpu(device):
    assert device == "cpu"
    rank = os.environ.get("RANK", "0")
    return {"name": "GPU of rank " + rank} if rank in "02" else None

backend.gpu = gpu  # in the ranks too, which are forks
install("sgp-run")
sys.exit(main())
"""


def test_every_rank_records_its_gpu(tmp_path: Path) -> None:
    file = tmp_path / "results/runs/run/environment.json"
    subprocess.run(
        [sys.executable, "-c", RECORDING, *RUN], cwd=tmp_path, check=True, capture_output=True
    )
    with_gpus = json.loads(file.read_text())
    assert run_command(*RUN, folder=tmp_path).returncode == 0
    assert with_gpus.pop("gpus") == [{"name": "GPU of rank 0"}, None, {"name": "GPU of rank 2"}]
    assert list(with_gpus) == list(json.loads(file.read_text()))


LIGHT = """
import importlib
import sys

heavy = {"torch", "torchvision", "wandb", "rich", "hydra", "sklearn"}
loggers = ("wandb", "csv", "jsonl", "mlflow", "tensorboard")
recording = ("recorder", "observer", *(f"loggers.{name}" for name in loggers))
importlib.import_module("sgp_runner.utils.provenance").environment()
print("environment", *heavy & {*sys.modules})
for name in recording:
    importlib.import_module(f"sgp_runner.recording.{name}")
    print(name, *heavy & {*sys.modules})
"""


def test_nothing_heavy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("environment", "recorder", "observer", "loggers.wandb", "loggers.csv"),
        *("loggers.jsonl", "loggers.mlflow", "loggers.tensorboard"),
    ]

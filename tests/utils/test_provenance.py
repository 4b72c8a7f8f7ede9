from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys

import pytest
import torch

from sgp_runner import __version__
from sgp_runner.utils.provenance import VARIABLES, environment


def test_it_names_versions_and_the_command_as_typed_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["sgp-run", "algo=osgp", "nodes=4"])
    monkeypatch.setenv("SOME_TOKEN", "do-not-write-me")
    seen = environment()
    assert seen["sgp_run"] == __version__
    assert seen["command"] == ["sgp-run", "algo=osgp", "nodes=4"]
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


@pytest.mark.parametrize(
    "module",
    [
        "utils.provenance",
        "recording.recorder",
        "recording.observer",
        "recording.loggers.wandb",
        "recording.loggers.csv",
        "recording.loggers.jsonl",
        "recording.loggers.mlflow",
        "recording.loggers.tensorboard",
    ],
)
def test_nothing_heavy_is_imported(module: str) -> None:
    code = f"""
import sys
import sgp_runner.{module} as module
if "{module}" == "utils.provenance":
    module.environment()
print(sorted({{"torch", "torchvision", "wandb", "rich", "hydra", "sklearn"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

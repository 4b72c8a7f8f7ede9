"""Provenance of a run, for ``environment.json``.

Environment variables are omitted, as they may hold secrets, except the ones that affect how
libraries compute.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from sgp_runner._version import __version__
from sgp_runner.utils.secrets import redacted

SOURCE = Path(__file__).resolve().parents[2]
CODE = ("sgp_runner", "configs")  # the code of a clone, which may also hold results
PACKAGES = {
    "torch": "torch",
    "torchvision": "torchvision",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "wandb": "wandb",
}
# The last bits of results depend on these: MKL, oneDNN and PyTorch choose by them how to compute.
PROCESSOR = ("vendor_id", "cpu family", "model", "model name")
VECTORS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
)

DRIVER = Path("/proc/driver/nvidia/version")


def environment(command: Sequence[str] = ()) -> dict[str, object]:
    """Return versions, machine, source state, start time (UTC) and the command of this process.

    command: recorded instead of this process's command
    The listed packages are not imported. ``git`` is None outside a clone, and ``packages`` has None
    for a package that is not installed. Both are determined once per process.
    """
    return {
        "sgp_run": __version__,
        "git": _git(SOURCE),
        "python": platform.python_version(),
        "packages": {name: installed_version(package) for name, package in PACKAGES.items()},
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "processor": processor(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "command": list(map(redacted, command or [Path(sys.argv[0]).name, *sys.argv[1:]])),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@cache
def processor() -> dict[str, str]:
    """Return the CPU's vendor, model and vector instructions; outside Linux its architecture."""
    kind = {"machine": platform.machine()}
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return kind
    lines = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    flags = facts.get("flags", "").split()
    kind |= {key.replace(" ", "_"): facts[key] for key in PROCESSOR if key in facts}
    return kind | {"vectors": " ".join(flag for flag in VECTORS if flag in flags)}


def gpu(device: str) -> dict[str, object] | None:
    """Return a GPU's model, memory (bytes), driver and library versions; None for a CPU.

    Versions that cannot be determined are None.
    """
    if device.partition(":")[0] != "cuda":
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        **gpu_versions(),
    }


def gpu_versions() -> dict[str, object]:
    """Return the versions of driver, CUDA, cuDNN and NCCL; None for a missing one."""
    import torch

    nccl: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    version: tuple[int, ...] = ()
    cudnn: int | None = None
    with suppress(RuntimeError):  # an incompatible library
        ask: Callable[[], int | None] = torch.backends.cudnn.version
        cudnn = ask()
        version = nccl() if torch.distributed.is_nccl_available() else ()
    return {
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "nccl": ".".join(map(str, version)) or None,
    }


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None if it is not installed."""
    try:
        first = DRIVER.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    match = re.search(r"\s(\d+(?:\.\d+)+)\s", first)
    return match and match[1]


def code_version() -> str:
    """Return the version that all ranks of a run must share; in a clone, it includes the commit."""
    commit = _run_git(SOURCE, "rev-parse", "--verify", "HEAD") if _is_clone(SOURCE) else None
    return f"{__version__} {commit}" if commit else __version__


def version_of_files(folder: Path, files: Iterable[str]) -> dict[str, object]:
    """Return the commit of the clone that contains ``folder``, and whether its ``files`` differ.

    Both are None outside a clone.
    """
    status = _run_git(folder, "--no-optional-locks", "status", "--porcelain", "--", *files)
    return {
        "commit": _run_git(folder, "rev-parse", "--verify", "HEAD"),
        "dirty": None if status is None else bool(status),
    }


@cache
def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _git(source: Path) -> dict[str, object] | None:
    """Return the commit and whether files differ, if ``source`` is the root of a clone."""
    return version_of_files(source, CODE) if _is_clone(source) else None


@cache
def _is_clone(source: Path) -> bool:
    """Return whether ``source`` is the root of a clone.

    An installed package may lie, in its ``.venv``, inside an unrelated clone.
    """
    top = _run_git(source, "rev-parse", "--show-toplevel")
    return top is not None and Path(top).resolve() == source


def _run_git(source: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(source), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

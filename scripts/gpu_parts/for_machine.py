"""The machine, a small run of the package, and the start of NCCL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUERY = "name,uuid,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,ecc.mode.current"


def machine(seen: dict[str, Any], out: Path) -> str:
    """Record the machine; start an NCCL group with one rank and check that it transfers data."""
    import torch

    from sgp_runner.utils.provenance import environment, gpu, gpu_versions

    commit = ROOT / "COMMIT"  # of a packed copy
    seen["commit"] = commit.read_text(encoding="utf-8").strip() if commit.exists() else None
    seen["environment"] = environment()
    seen["versions"] = gpu_versions()
    seen["accuracy"] = small_run(out)
    count = torch.cuda.device_count()
    if not count:
        return "no GPU"
    seen["gpus"] = [gpu(f"cuda:{number}") for number in range(count)]
    seen["nvidia_smi"] = nvidia_smi()
    seen["bytes_free"], seen["bytes"] = torch.cuda.mem_get_info(0)
    seen["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    seen["exchange"] = exchanged()
    return "yes"


def small_run(out: Path) -> float:
    """Return the accuracy of a simulated run on the CPU."""
    from gpu_parts.for_training import small

    return float(str(small(out, "cpu", "epochs=0.2", "name=small")["average"]))


def nvidia_smi() -> str | None:
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def exchanged() -> list[float]:
    """Return the value 3 after a mean, and after a message to itself, of one rank over NCCL."""
    import torch
    import torch.distributed as dist

    from benchmarks.ranks import OneRank
    from sgp_runner.core.problem import Compute
    from sgp_runner.distributed.torch_world import TorchWorld

    with OneRank():
        world = TorchWorld(1, False, Compute("cuda:0"), "nccl", True)
        world.connect(1)
        mean, received = (torch.full((128,), 3.0 * left, device="cuda:0") for left in (1, 0))
        world.mean(mean)
        transfers = [
            dist.P2POp(dist.isend, mean, 0, world.workers),
            dist.P2POp(dist.irecv, received, 0, world.workers),
        ]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        torch.cuda.synchronize()
        values = [float(mean[-1]), float(received[-1])]
        world.close()
    return values

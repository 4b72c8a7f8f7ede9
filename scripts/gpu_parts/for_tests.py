"""Tests and commands that run in separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = "GPU_CHECK_OUTCOMES"  # names the file of `noted_outcomes`


def tests(
    seen: dict[str, Any], out: Path, file: str, expression: str = "", sanitizer: bool = False
) -> str:
    """Run the tests of a file that ``expression`` selects; record their outcomes and times."""
    path = out / f"{Path(file).stem}{'_sanitized' * sanitizer}.jsonl"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    command += ["-p", "gpu_parts.noted_outcomes", "-m", "gpu", "-k", expression]
    variables = {OUTCOMES: str(path)}
    if sanitizer:
        variables["TORCH_CUDA_SANITIZER"] = "1"
    try:
        seen["exit"] = run([*command, file], variables)
    finally:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        seen["tests"] = [json.loads(line) for line in lines]
    outcomes = Counter(test["outcome"] for test in seen["tests"])
    seen["outcomes"] = dict(outcomes)
    if seen["exit"] == 0 and not outcomes["passed"]:
        return "skipped"
    return "yes" if seen["exit"] == 0 else "no"


def osgp(seen: dict[str, Any], out: Path) -> str:
    """Run OSGP with four processes, over NCCL if there are four GPUs, as NCCL cannot share one."""
    import torch

    nodes = ["network=gloo", "network.device=cuda", "nodes=4"]
    if torch.cuda.device_count() >= 4:
        nodes = ["network=nccl", "nodes=2", "gpus_per_node=2", "network.gossip=leader"]
    overrides = ["algo=osgp", "model=mlp", "epochs=1", "logger=jsonl", "resume=never", "name=osgp"]
    command = [sys.executable, "-m", "sgp_runner", *overrides, *nodes, f"results={out / 'results'}"]
    seen["exit"] = run(command, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    summary = out / "results/runs/osgp/summary.json"
    if summary.exists():
        seen["summary"] = json.loads(summary.read_text(encoding="utf-8"))
    return "yes" if seen["exit"] == 0 else "no"


def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command; kill it and its child processes on an interrupt."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

"""The worked example of CONTRIBUTING.md runs as printed: one Python file, one YAML file, nothing else touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of the package and its configurations with the two files of the example."""
    for folder in ("sgp_runner", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in blocks] == ["sgp_runner/algorithms/gossip_pga.py", "configs/algo/gossip_pga.yaml"]
    for name, content in blocks:
        (tmp_path / name).write_text(content)
        assert len(content.splitlines()) < 40
    return tmp_path


def test_the_ninth_algorithm_runs_simulated_and_real(extended: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(extended)}
    for network in ("sim", "gloo"):
        settings = ["algo=gossip_pga", f"network={network}", "nodes=2", "model=mlp", "epochs=2", "logger=jsonl"]
        command = [sys.executable, "-m", "sgp_runner", *settings]
        done = subprocess.run(command, check=False, cwd=extended, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert f"Gossip-PGA · mlp · digits · 2 nodes · {network}" in done.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "sgp_runner", "--help"], cwd=extended, env=environment, capture_output=True, text=True, check=False
    )
    assert "gossip_pga" in listed.stdout

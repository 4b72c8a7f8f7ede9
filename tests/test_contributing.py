"""The worked example of CONTRIBUTING.md runs as printed: one Python file, one YAML file and a line
that names its class.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of the package and its configurations with the example's two files and line."""
    for folder in ("sgp_runner", "configs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = dict(re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", text, flags=re.DOTALL))
    names = (
        ("algorithms/periodic_gossip", "algo/periodic_gossip"),
        ("models/linear", "model/linear"),
        ("data/sectors", "data/sectors"),
    )
    places = *names, ("topology/hypercube", "topology/hypercube")
    assert [*files] == [
        name
        for code, choice in places
        for name in (f"sgp_runner/{code}.py", f"configs/{choice}.yaml")
    ]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        assert len(content.splitlines()) < 50
    registry = tmp_path / "sgp_runner/config/choices.py"
    for _, choice in places:
        group, _, name = choice.partition("/")
        (line,) = re.findall(rf'^    ("{name}": ".+",)$', text, flags=re.MULTILINE)
        before = registry.read_text()
        registry.write_text(
            before.replace(f'    "{group}": {{\n', f'    "{group}": {{\n        {line}\n')
        )
        assert registry.read_text() != before
    return tmp_path


def run(extended: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sgp_runner", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(extended)}
    return subprocess.run(
        command,
        check=False,
        cwd=extended,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_the_examples_run_simulated_and_real(extended: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (command,) = re.findall(
        r"^    sgp-run (algo=periodic_gossip .*) network=gloo nodes=4$", text, flags=re.MULTILINE
    )
    accuracies = []
    for network in ("sim", "gloo"):
        settings = [
            *command.split(),
            f"network={network}",
            "nodes=4",
            "epochs=4",
            "dtype=float64",
            "logger=jsonl",
            "name=example",
        ]
        done = run(extended, *settings, f"results={network}")
        assert done.returncode == 0, done.stderr
        assert f"Periodic gossip · linear · sectors · 4 nodes · {network}" in done.stdout
        accuracies.append(
            json.loads((extended / network / "runs/example/summary.json").read_text())["average"]
        )
    assert accuracies[0] == accuracies[1] > 0.8
    listed = run(extended, "--help").stdout
    assert all(name in listed for name in ("periodic_gossip", "linear", "sectors", "hypercube"))
    refused = run(extended, *command.split(), "nodes=6")
    assert (
        refused.returncode == 2
        and "nodes: 6 is not a power of two: a hypercube needs one." in refused.stderr
    )


def test_the_folders_are_those_of_the_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| package |") : text.index("Outside the package")]
    packages = {path.parent.name for path in (ROOT / "sgp_runner").glob("*/__init__.py")}
    assert set(re.findall(r"`(\w+)/`", table)) == packages

"""Files for containers and clouds agree with each other, and their commands with sgp-run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from experiments import make_experiment
from places import ROOT

CONTAINERS = ROOT / "containers"


def settings(words: list[str]) -> list[str]:
    """The settings of sgp-run in a command of torchrun."""
    return words[words.index("--no-python") + 2 :]


def options(words: list[str]) -> dict[str, str]:
    """The options of torchrun."""
    found = (re.fullmatch(r"--([\w-]+)=(.*)", word) for word in words[: words.index("--no-python")])
    return {each[1]: each[2] for each in found if each}


def test_the_pods_of_kubernetes_are_the_nodes_of_the_run(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        each["kind"]: each
        for each in yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text())
    }
    job = parts["Job"]["spec"]
    pod = job["template"]["spec"]
    (rank,) = pod["containers"]
    given = options(rank["command"])
    run = make_experiment(tmp_path, *settings(rank["command"])).run
    assert run.ranks == job["completions"] == job["parallelism"] == int(given["nnodes"])
    assert run.network.name == "gloo" and run.name is not None
    name = parts["Job"]["metadata"]["name"]
    assert given["master-addr"] == f"{name}-0.{pod['subdomain']}"
    assert pod["subdomain"] == parts["Service"]["metadata"]["name"]
    assert given["node-rank"] == "$(JOB_COMPLETION_INDEX)" and job["completionMode"] == "Indexed"
    policy = parts["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == parts["Service"]["spec"]["selector"]
    claim = parts["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    assert rank["volumeMounts"][0]["mountPath"] == rank["workingDir"]


def test_the_machines_of_skypilot_are_the_nodes_of_the_run(tmp_path: Path) -> None:
    task = yaml.safe_load((CONTAINERS / "skypilot.yaml").read_text())
    words = shlex.split(task["run"].replace("<<<", ""))
    assert make_experiment(tmp_path, *settings(words)).run.ranks == task["num_nodes"]
    assert options(words)["nnodes"] == "$SKYPILOT_NUM_NODES"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for word in line.split()]
    assert len(copied) == 8
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert kept == set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_the_files_of_workflows_can_be_read() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/containers.yml").read_text())["jobs"]
    assert set(jobs) == {"image", "devcontainer"}
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"].endswith("make .venv/.fairseq")

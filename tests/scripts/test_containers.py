"""Files for containers and clouds agree with each other, and their commands with sgp-run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from helpers.experiments import make_experiment
from helpers.paths import ROOT

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


def test_the_image_has_what_gpus_need_besides_python() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends (.+) \\$", text, re.M)
    assert installed.split() == ["g++", "ibverbs-providers", "libibverbs1"]
    assert text.index("apt-get install") < text.index("USER 1000")  # as root


def test_the_files_of_workflows_can_be_read() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/containers.yml").read_text())["jobs"]
    assert set(jobs) == {"image", "devcontainer"}
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"].endswith("make .venv/.fairseq")


def workflows() -> dict[str, str]:
    return {path.name: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_workflows_name_actions_by_commit_and_tools_by_version() -> None:
    used = [line for text in workflows().values() for line in re.findall(r"uses: .*", text)]
    assert len(used) >= 8
    pinned = r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [line for line in used if not re.fullmatch(pinned, line)] == []
    tools = [line for text in workflows().values() for line in re.findall(r"(?:pipx|npx) .*", text)]
    assert len(tools) == 4
    version = r"(?:pipx run --spec [\w-]+==|npx --yes @devcontainers/cli@)\d+(?:\.\d+){2,3} .*"
    assert [line for line in tools if not re.fullmatch(version, line)] == []


def test_images_are_named_by_digest() -> None:
    digest = r"python:3\.11\.\d+-(?:slim-)?bookworm@sha256:[0-9a-f]{64}"
    (base,) = re.findall(r"^FROM (.+)$", (CONTAINERS / "Dockerfile").read_text(), re.M)
    jobs = [job for text in workflows().values() for job in yaml.safe_load(text)["jobs"].values()]
    images = [base, *(job["container"] for job in jobs if "container" in job)]
    assert len(images) == 2
    assert [image for image in images if not re.fullmatch(digest, image)] == []


def test_pods_have_no_privileges() -> None:
    (job,) = (
        each
        for each in yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text())
        if each["kind"] == "Job"
    )
    pod = job["spec"]["template"]["spec"]
    (user,) = re.findall(r"^USER (\d+)$", (CONTAINERS / "Dockerfile").read_text(), re.M)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(user),
        "fsGroup": int(user),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (rank,) = pod["containers"]
    assert rank["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    places = {each["name"]: each["mountPath"] for each in rank["volumeMounts"]}
    (scratch,) = (each["name"] for each in pod["volumes"] if "emptyDir" in each)
    assert places[scratch] == "/tmp"
    assert {each["name"] for each in pod["volumes"]} == set(places)


def test_skypilot_installs_what_the_image_has() -> None:
    task = yaml.safe_load((CONTAINERS / "skypilot.yaml").read_text())
    there = [line.removeprefix(".venv/bin/") for line in task["setup"].splitlines()[1:]]
    image = re.findall(
        r"(?:RUN|&&) (pip install .*?)(?: \\)?$", (CONTAINERS / "Dockerfile").read_text(), re.M
    )
    assert there == [line.replace('--extra-index-url "$TORCH" ', "") for line in image]

"""Files for containers agree with each other and are pinned."""

from __future__ import annotations

import json
import re

import yaml
from helpers.paths import ROOT

CONTAINERS = ROOT / "containers"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for word in line.split()]
    assert len(copied) == 8
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {line[1:] for line in ignored if line[0] == "!"} == set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_what_gpus_need_besides_python() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends (.+) \\$", text, re.M)
    assert installed.split() == ["g++", "ibverbs-providers", "libibverbs1"]
    assert text.index("apt-get install") < text.index("USER 1000")  # as root


def test_the_files_of_workflows_can_be_read() -> None:
    assert {*yaml.safe_load(workflows()["containers.yml"])["jobs"]} == {"image", "devcontainer"}
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

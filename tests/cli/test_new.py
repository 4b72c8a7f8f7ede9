"""``sgp-run new``: what it writes works, and its test checks it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sgp_runner.cli.main import main

KINDS = {"algorithm": "algo", "model": "model", "data": "data"}


@pytest.mark.parametrize(("kind", "group"), KINDS.items())
def test_a_new_plug_in_learns(
    kind: str, group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, "my_first"]) == 0
    assert "cd my_first && sgp-run " in capsys.readouterr().out
    monkeypatch.chdir("my_first")
    settings = [f"{group}=./my_first.py", *([] if kind == "model" else ["model=mlp"])]
    assert main([*settings, "nodes=4", "epochs=2", "logger=jsonl", "name=run"]) == 0
    assert json.loads(Path("results/runs/run/summary.json").read_text())["average"] > 0.8


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("kind", KINDS)
def test_its_test_passes(kind: str) -> None:
    assert main(["new", kind, "my_first"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd="my_first",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


FORGETFUL = """        x, m = worker.params, 0
        for k in worker.steps():
            m = 0.5 * m + worker.update(await worker.grad())
            x -= m
"""


@pytest.mark.timeout(1200)
def test_its_test_notices_state_that_a_resumed_run_loses() -> None:
    assert main(["new", "algorithm", "my_first"]) == 0
    file = Path("my_first/my_first.py")
    head, _, _ = file.read_text().partition("        x = worker.params\n")
    file.write_text(head + FORGETFUL)
    done = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), "-k", "bytes"],
        cwd="my_first",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed, 3 deselected" in done.stdout
    assert "FAILED test_my_first.py::test_a_resumed_run_ends_with_the_same_bytes" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "new: write sgp-run new algorithm|model|data|cluster NAME, for example: "),
        (
            "algo mine",
            "new: there is no 'algo'; write sgp-run new algorithm|model|data|cluster NAME, ",
        ),
        ("algorithm sgp", "new: algo=sgp already exists: choose another name."),
        ("algorithm My-own", "new: 'My-own' is not a valid name: use a-z, then a-z, 0-9 and _."),
        ("data json", "new: there is a Python module 'json': choose another name."),
        (f"algorithm {'a' * 300}", "new: the name has 300 letters: use at most 100."),
        ("algorithm null", "new: 'null' is a value and not a valid name: rename it, for "),
        ("model nan", "new: 'nan' is a value and not a valid name: rename it, for "),
        ("data none", "new: None is a Python keyword: choose another name."),
        ("model taken", "new: 'taken' already exists in this folder."),
    ],
)
def test_what_cannot_be_made_is_refused(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").mkdir()
    assert main(["new", *arguments.split()]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")

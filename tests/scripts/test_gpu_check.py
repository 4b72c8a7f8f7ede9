"""The answers of ``scripts/gpu_check.sh``, without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

import gpu_check
from gpu_check import PARTS, Part, answer, main, read

SCRIPT = ROOT / "scripts/gpu_check.sh"
# The end of a process, an error of CUDA, and a part that cannot be interrupted.
PROGRAM = f"""
import os, signal, sys, threading
sys.path[:0] = [{str(ROOT / "scripts")!r}, {str(ROOT)!r}]
import gpu_check
from gpu_parts import Part

def first(seen, out):
    seen["process"] = os.getpid()
    return "yes"

def dies(seen, out):
    os._exit(9)

def broken(seen, out):
    seen["process"] = os.getpid()
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def hangs(seen, out):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    threading.Event().wait()

def needs(seen, out):
    raise AssertionError("it has no GPU")

sys.modules["own"] = sys.modules["__main__"]
names = ("first", "dies", "broken", "hangs", "last")
gpu_check.PARTS.clear()
for name in names:
    function = "first" if name == "last" else name
    seconds = 0.5 if name == "hangs" else 60
    gpu_check.PARTS[name] = Part(name, "Is it?", f"own:{{function}}", seconds, gpus=0)
gpu_check.PARTS["needs"] = Part("needs", "Is it?", "own:needs", 60)
gpu_check.PROGRAM, gpu_check.GRACE_SECONDS, gpu_check.START_SECONDS = __file__, 0.5, 30
sys.exit(gpu_check.main(sys.argv[1:]))
"""


def test_every_part_has_a_function_and_the_most_wanted_have_time() -> None:
    for part in PARTS.values():
        module, _, name = part.function.partition(":")
        assert callable(getattr(import_module(module), name))
    assert [*PARTS][:2] == ["machine", "speed"] and [*PARTS][-1] == "sanitizer"
    assert sum(part.seconds for part in [*PARTS.values()][:-2]) == gpu_check.TOTAL_SECONDS == 480


def test_a_part_that_fails_keeps_what_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(seen: dict[str, Any], out: Path) -> str:
        seen["first"] = 1
        raise ValueError("no second")

    part = Part("a", "Is it?", "gpu_check:fails", 60)
    monkeypatch.setattr(gpu_check, "fails", fails, raising=False)
    line = answer(part, 1, tmp_path, 60)
    assert line.pop("seconds") == pytest.approx(0, abs=60)
    assert line == {
        "part": "a",
        "question": "Is it?",
        "answer": "no",
        "error": "ValueError: no second",
        "seen": {"first": 1},
    }
    line = answer(part, 0, tmp_path, 60)
    assert (line["answer"], line["seen"]) == ("no GPU", {})


def test_a_part_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    def waits(seen: dict[str, Any], out: Path) -> str:
        threading.Event().wait()
        return "yes"

    monkeypatch.setattr(gpu_check, "waits", waits, raising=False)
    line = answer(Part("a", "Is it?", "gpu_check:waits", 60), 1, tmp_path, 0.1)
    assert (line["answer"], line["error"]) == ("no", "OutOfTime: stopped after 0 s")


@pytest.mark.slow
def test_another_process_goes_on_after_one_that_ends_or_hangs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    lines = {str(line["part"]): line for line in read(tmp_path / "out")}
    assert [(name, line["answer"]) for name, line in lines.items()] == [
        ("first", "yes"),
        ("dies", "no"),
        ("broken", "no"),
        ("hangs", "no"),
        ("last", "yes"),
        ("needs", "no GPU"),
    ]
    assert [lines[name]["error"] for name in ("dies", "hangs")] == [
        *("its process ended with 9", "its process ended with -9")
    ]
    assert str(lines["broken"]["error"]).startswith("RuntimeError: CUDA error: ")
    assert len({lines[name]["seen"]["process"] for name in ("first", "broken", "last")}) == 3  # type: ignore[index]
    assert done.stdout.splitlines()[0] == "first      yes           Is it?"
    log = (tmp_path / "out/gpu_check.log").read_text()
    assert "=== broken: Is it?" in log and "an illegal memory access" in log


def test_parts_without_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "TOTAL_SECONDS", 1)
    assert main([str(tmp_path), "machine", "speed"]) == 0
    assert [(line["part"], line["answer"]) for line in read(tmp_path)] == [
        ("machine", "no time left"),
        ("speed", "no time left"),
    ]


def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "sped"]) == 2
    assert capsys.readouterr().err.startswith("gpu_check.py: there is no sped: machine, speed, ")


def test_outcomes_of_tests_are_noted_as_they_end(tmp_path: Path) -> None:
    from gpu_parts import for_tests

    test = tmp_path / "test_some.py"
    test.write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n"
        "def test_good(): pass\ndef test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n"
    )
    seen: dict[str, Any] = {}
    assert for_tests.tests(seen, tmp_path, str(test)) == "no"
    assert [(record["test"], record["outcome"]) for record in seen["tests"]] == [
        ("test_good", "passed"),
        ("test_bad", "failed"),
        ("test_left_out", "skipped"),
    ]
    assert "assert 1 == 2" in seen["tests"][1]["error"]
    assert for_tests.tests(seen := {}, tmp_path, str(test), "good") == "yes"
    assert for_tests.tests(seen := {}, tmp_path, str(test), "left") == "skipped"
    assert seen["outcomes"] == {"skipped": 1}
    assert json.loads((tmp_path / "test_some.jsonl").read_text())["outcome"] == "skipped"


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(
        '#!/bin/sh\ncase "$3" in torch*|numpy|scikit*) ;; *) exit 1; esac\n'
    )
    (tmp_path / "python").chmod(0o755)
    variables = {"PATH": "/usr/bin:/bin", "PYTHON": str(tmp_path / "python")}
    command = ["bash", str(SCRIPT), "run", "", str(tmp_path / "out")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and re.fullmatch(
        "gpu_check.sh: antlr4-python3-runtime hydra-core .* are missing; "
        "name the folder of their wheels.\n",
        done.stderr,
    )
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "gpu_check.sh: torch is missing: install it.\n")
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "gpu_check.sh pack FOLDER" in done.stderr


def test_the_page_has_the_answers_of_a_machine(tmp_path: Path) -> None:
    from pages.gpu_answers import table_of_answers

    lines = tmp_path / "lines"
    assert table_of_answers("", lines).startswith("No GPU has answered yet.\n\n| part |")
    gpu = {"name": "NVIDIA H200"}
    machine = {"part": "machine", "answer": "yes", "seen": {"gpus": [gpu, gpu]}}
    speed = {"part": "speed", "answer": "no", "seen": {}}
    lines.write_text("".join(json.dumps(line) + "\n" for line in (machine, speed)))
    text = table_of_answers("", lines)
    assert text.startswith("On NVIDIA H200:\n") and text.count("| yes |") == 1
    assert "in a plain loop? | no |" in text

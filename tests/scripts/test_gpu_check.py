"""The steps of ``scripts/gpu_check.sh``, with commands that need no GPU in place of theirs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.experiments import make_experiment
from helpers.paths import ROOT

import gpu_check
from gpu_check import Step, main, perform, steps

SCRIPT = ROOT / "scripts/gpu_check.sh"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.mark.parametrize(("gpus", "osgp"), [(1, ("gloo", 4)), (4, ("nccl", 4)), (0, ("gloo", 4))])
def test_settings_of_the_steps_make_runs(gpus: int, osgp: tuple[str, int], tmp_path: Path) -> None:
    runs = {}
    for step in steps(gpus, tmp_path / "results"):
        words = [word for word in step.command[1:] if re.match(r"[\w.]+=", word)]
        kept = [word for word in words if not word.startswith("results=")]
        if "sgp_runner" in step.command:
            runs[step.name] = make_experiment(tmp_path / step.name, *kept).run
    assert set(runs) == {"check", "smoke", "osgp", "resnet50"}
    assert (runs["osgp"].network.name, runs["osgp"].ranks) == osgp
    assert (runs["resnet50"].network.name, runs["resnet50"].nodes) == ("sim", 8)
    assert sum(step.seconds for step in steps(gpus, tmp_path) if not step.gpus) < 200


def test_a_step_answers_with_its_exit_code_its_time_and_its_result(tmp_path: Path) -> None:
    log, result = tmp_path / "log", tmp_path / "result.json"
    result.write_text('{"seconds": 1}')  # of an earlier run
    done = perform(Step("a", "?", python("print('said')"), result=result), 300, log)
    assert (done["answer"], done["exit"]) == ("yes", 0)
    write = f"import time; time.sleep(0.1); open({str(result)!r}, 'w').write('[2]')"
    done = perform(Step("b", "?", python(write), result=result), 300, log)
    assert done["result"] == [2]
    done = perform(Step("c", "?", python("raise SystemExit(3)")), 300, log)
    assert (done["answer"], done["exit"]) == ("no", 3)
    done = perform(Step("d", "?", python("raise SystemExit(5)")), 300, log)
    assert done["answer"] == "skipped: no such test"
    done = perform(Step("e", "?", python("import time; time.sleep(60)")), 0.5, log)
    assert (done["answer"], done["exit"]) == ("no", "stopped after 0 s")
    variables = {"CHECKED": "7"}
    show = python("import os; print(os.environ['CHECKED'])")
    perform(Step("f", "?", show, variables=variables), 300, log)
    text = log.read_text()
    assert "=== a: " in text and "\nsaid\n" in text and text.endswith("\n7\n")


@pytest.mark.parametrize(("code", "total", "answer"), [(0, 480, "yes"), (1, 480, "no"), (1, 5, "")])
def test_steps_without_gpus_or_time_are_skipped(
    code: int, total: float, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(gpu_check, "TOTAL_SECONDS", total)
    two = [
        Step("one", "Is it?", python(f"raise SystemExit({code})"), gpus=0),
        Step("two", "Has it?", python("raise SystemExit(1)"), gpus=2),
    ]
    monkeypatch.setattr(gpu_check, "steps", lambda gpus, results: two)
    assert main([str(tmp_path / "out")]) == int(answer == "no")
    found = json.loads((tmp_path / "out/gpu_check.json").read_text())
    assert found["answers"]["one"]["answer"] == (answer or "skipped: no time left")
    assert found["answers"]["two"] == {"question": "Has it?", "answer": "skipped: no GPU"}
    assert found["gpus"] == [] and found["environment"]["packages"]["torch"]


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    variables = {"PATH": "/usr/bin:/bin", "PYTHON": str(tmp_path / "python")}
    command = ["bash", str(SCRIPT), "run", "", str(tmp_path / "out")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check.sh: antlr4-python3-runtime hydra-core ")
    assert done.stderr.endswith(" are missing; name the folder of gpu_check.sh wheels.\n")
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "gpu_check.sh wheels FOLDER" in done.stderr

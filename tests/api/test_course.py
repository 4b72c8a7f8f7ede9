"""The marks of the course: ten for the solutions, none for the empty answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

COURSE = ROOT / "docs/course"


@pytest.mark.parametrize(("file", "marks"), [("solutions", "10 passed"), ("answers", "10 failed")])
def test_marks(file: str, marks: str, tmp_path: Path) -> None:
    shutil.copy(COURSE / f"{file}.py", tmp_path / "answers.py")
    shutil.copy(COURSE / "test_answers.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_answers.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].startswith(marks), done.stdout

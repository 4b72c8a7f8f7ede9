"""Git's hook that checks commit messages."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

HOOK = ROOT / "scripts" / "hooks" / "commit-msg"


def check(message: str, folder: Path) -> tuple[int, str]:
    """Return exit code and stderr of the hook."""
    path = folder / "COMMIT_EDITMSG"
    path.write_text(message)
    done = subprocess.run([sys.executable, HOOK, path], check=False, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Fix the clock of a resumed run\n\nIt began at zero.\n",
        "Process messages in order\n\nA reason.\n# Please enter the commit message\n",
        "Re-time a run on another cluster\n\nA reason.\n",
    ],
)
def test_an_imperative_with_a_reason_passes(message: str, tmp_path: Path) -> None:
    assert check(message, tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Fixed the clock\n\nWhy.\n", "begins with 'Fixed': use the imperative"),
        ("Fixes the clock\n\nWhy.\n", "begins with 'Fixes': use the imperative"),
        ("The clock of a run\n\nWhy.\n", "begins with 'The': begin with a verb"),
        ("clock: fix it\n\nWhy.\n", "begins with 'clock:': begin with a verb"),
        ("Fix the clock.\n\nWhy.\n", "ends with a full stop"),
        ("Fix " + "x" * 69 + "\n\nWhy.\n", "has 73 characters, at most 72"),
        ("Fix the clock\nWhy.\n", "the second line is not empty"),
        ("Fix the clock\n", "there is no body"),
        ("", "there is no body"),
    ],
)
def test_other_messages_are_refused_in_a_sentence(
    message: str, sentence: str, tmp_path: Path
) -> None:
    code, said = check(message, tmp_path)
    assert code == 1 and sentence in said


def test_a_ceiling_is_raised_by_a_commit_of_its_own() -> None:
    hook = runpy.run_path(str(HOOK))
    assert hook["raised_ceilings"](
        '-    "cli": 100,\n+    "cli": 101,\n-    "core": 9,\n+    "core": 8,\n+    "plan": 7,\n'
    ) == ["cli"]
    assert list(hook["raising_commits"]()) == []

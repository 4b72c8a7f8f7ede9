"""Shell scripts are checked as programs are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_shellcheck_has_no_complaint() -> None:
    scripts = [ROOT / ".ci/run", *ROOT.glob("slurm/*.sbatch"), *ROOT.glob("slurm/*.sh"), *ROOT.glob("scripts/*.sh")]
    assert {path.name for path in scripts} >= {"run", "run.sbatch", "sweep.sh", "prepare_imagenet.sh", "prepare_wmt16.sh"}
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None
    done = subprocess.run([program, *map(str, scripts)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")

"""Shell scripts pass shellcheck; the table of faults judges runs by literal values."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

import fault_table
from sgp_runner.config.choices import groups


def test_shellcheck_has_no_complaint() -> None:
    scripts = [
        ROOT / ".ci/run",
        *ROOT.glob("slurm/*.sbatch"),
        *ROOT.glob("slurm/*.sh"),
        *ROOT.glob("scripts/*.sh"),
    ]
    assert {path.name for path in scripts} >= {
        "run",
        "run.sbatch",
        "sweep.sh",
        "prepare_imagenet.sh",
        "prepare_wmt16.sh",
    }
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None
    done = subprocess.run(
        [program, *map(str, scripts)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_job_reads_the_settings_of_its_run() -> None:
    reading = [
        line
        for line in (ROOT / "slurm/run.sbatch").read_text().splitlines()
        if line.startswith(("settings=", "setting()", "devices="))
    ]
    assert len(reading) == 3
    lines = [
        f'sgp-run() {{ {sys.executable} -m sgp_runner "$@"; }}',
        "here=()",
        *reading,
        'echo "$devices $(setting on_failure) $(setting nodes)"',
    ]
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines), "run.sbatch"]
    for overrides, said in (
        ("algo=sgp model=mlp network=gloo nodes=4 gpus_per_node=2", "2 stop 4\n"),
        (
            "experiment=sgp_sgp_90 on_failure=continue gpus_per_node=1 network=gloo",
            "1 continue 32\n",
        ),
    ):
        done = subprocess.run(
            [*command, *overrides.split()], check=True, capture_output=True, text=True
        )
        assert done.stdout == said


def test_the_table_of_faults_says_how_much_was_lost_and_knows_every_algorithm() -> None:
    plain, late = {"time_s": 40.0}, [{"time_s": seconds} for seconds in (40.5, 44.9, 45.0, 100.0)]
    assert [fault_table.verdict(fault_table.Case(""), plain, run) for run in late] == [
        *("×1.01", "×1.12", "×1.12", "×2.50")
    ]
    temporary = fault_table.Case("", 10.0)
    assert [fault_table.verdict(temporary, plain, run) for run in (*late, None)] == [
        *("+0.5 s", "+4.9 s", "+5.0 s", "+60.0 s", "stops")
    ]
    rows = [["A", "40.0 s", *["×1.01"] * 11, "stops"], ["B", "9.0 s", *["+1.0 s"] * 11, "stops"]]
    text = fault_table.page(rows, {})
    assert "all algorithms at a permanent loss of messages.\n" in text
    assert "| B | 9.0 s" + " | +1.0 s" * 11 + " |\n" in text
    rows = [
        line.split(" | ")
        for line in fault_table.OUT.read_text().splitlines()
        if line.count("|") > 5 and not line.startswith("| ---")
    ]
    permanent = ("permanent crash", "permanent partition", "permanent loss of messages")
    named = [name for name in fault_table.CASES if name not in permanent]
    assert [name.strip(" |") for name in rows[0]] == ["algorithm", "undisturbed", *named]
    assert len(rows) == 1 + len(groups()["algo"])

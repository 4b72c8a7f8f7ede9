from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from sgp_runner.jobs.job_pool import RunJob, run_all
from sgp_runner.jobs.pool import IMPORTED
from sgp_runner.utils.errors import Stopped

SMALL = ("model=timing_only", "model.sample_steps=2", "nodes=2")


def test_jobs_run_beside_each_other_and_finished_ones_only_once(tmp_path: Path) -> None:
    good = RunJob("good", (*SMALL, "algo=sgp"), tmp_path)
    bad = RunJob("bad", (*SMALL, "algo=ad_psgd", "algo.topology=ring", "nodes=3"), tmp_path)
    said = {job.name: error for job, error in run_all([good, bad], processes=2)}
    assert said["good"] is None and str(said["bad"]).startswith(
        "algo.topology: AD-PSGD needs edges between odd and even ranks"
    )
    assert good.summary is not None and good.summary["steps"] == 2 and bad.summary is None
    assert good.command == "sgp-run model=timing_only model.sample_steps=2 nodes=2 algo=sgp"
    assert list(run_all([good], processes=1)) == []


def test_the_server_of_a_pool_finds_what_it_imports() -> None:
    assert [name for name in IMPORTED if find_spec(name) is None] == []


def test_values_and_folders_have_any_characters(tmp_path: Path) -> None:
    job = RunJob("slow", (*SMALL, "faults.slow_nodes={1: 10}"), tmp_path / "a, 'b'")
    assert job.command.endswith(" nodes=2 'faults.slow_nodes={1: 10}'")
    assert [error for _, error in run_all([job], processes=1)] == [None]
    recorded = json.loads((job.folder / "environment.json").read_text())["command"]
    assert recorded == ["sgp-run", *job.overrides]


def test_a_signal_ends_the_pool_and_the_same_call_goes_on(tmp_path: Path) -> None:
    jobs = [RunJob(f"sgp{seed}", (*SMALL, "algo=sgp", f"seed={seed}"), tmp_path) for seed in (1, 2)]
    running = run_all(jobs, processes=1)
    assert next(running) == (jobs[0], None)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped, match="Run the same command again to resume"):
        next(running)
    assert [job.finished for job in jobs] == [True, False]
    assert list(run_all(jobs, processes=1)) == [(jobs[1], None)]

"""The runs of the claims: that each is an experiment with a name of its own, and what is read from
them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
from places import ROOT

from claims import asynchronous, pipeline, warmup
from claims.evidence import Claim, Verdict, verdict_of
from claims.speedup import LOOKS, NODES, STEPS, learning_rate, linear_speed_up, mean_square
from reproduce.archives import unpack
from sgp_runner.config.overrides import compose, configs, parse
from sgp_runner.config.schema import make_experiment
from sgp_runner.session.job_pool import Job


def all_claims() -> list[Claim]:
    spec = importlib.util.spec_from_file_location("claims_script", ROOT / "scripts/claims.py")
    assert spec is not None and spec.loader is not None
    script = sys.modules["claims_script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return list(script.all_claims())


def test_runs_of_claims_are_experiments_and_no_two_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results" / "reproduced"
    shutil.copytree(ROOT / "results/reproduced/logs", results / "logs")
    unpack(results)  # the searches have been done
    monkeypatch.chdir(tmp_path)
    claims = all_claims()
    searches = [(*claim.searches, *claim.trials) for claim in claims]
    jobs = {job.name: job for each in searches for search in each for job in search.jobs}
    assert len(jobs) == len({job.words for job in jobs.values()})
    for claim in claims:
        for job in claim.jobs:
            assert jobs.setdefault(job.name, job) == job
    with configs():
        for job in (each[-1].jobs[0] for each in searches if each and each[-1].jobs):
            make_experiment(
                compose([setting.word for setting in parse([*job.words, f"name={job.name}"])])
            )


def finish(job: Job) -> None:
    """As if it had been run, with the result of all others."""
    job.folder.mkdir(parents=True)
    (job.folder / "summary.json").write_text(json.dumps({"average": 0.5, "ms_per_iteration": 40.0}))


def test_equal_runs_show_no_effect_and_every_run_is_in_a_finding(tmp_path: Path) -> None:
    for claims, count in ((asynchronous.claims, 9), (pipeline.claims, 20), (warmup.claims, 4)):
        (claim,) = claims(tmp_path)
        for search in claim.searches:
            for job in search.jobs:
                finish(job)
        for job in claim.jobs:
            finish(job)
        findings = claim.find()
        claim.answer.format(*findings)  # it names no finding that there is not
        assert claim.complete and len(findings) == count
        assert {finding.effect.mean for finding in findings} <= {
            0.0,
            1.0,
        }  # differences, and ratios of times
        assert {job for finding in findings for job in finding.jobs} == set(claim.jobs)
        assert {finding.effect.seeds for finding in findings} <= {1, 5, 10}


def leave(job: Job, gradient_norm: float) -> None:
    """As if it had been run."""
    finish(job)
    record = {"kind": "average", "time_s": 0.0, "gradient_norm": gradient_norm}
    (job.folder / "metrics.jsonl").write_text((json.dumps(record) + "\n") * LOOKS)


def test_speed_up_is_judged_by_the_exponents_of_nodes_and_steps(tmp_path: Path) -> None:
    assert (learning_rate(1, 1024), learning_rate(64, 1024)) == (1 / 64, 1 / 8)
    claim = linear_speed_up(tmp_path)
    for job in claim.jobs:
        nodes, steps = (int(part[1:]) for part in job.name.split("-")[1:3])
        if not job.folder.exists():
            norm = 3 * (nodes * steps) ** -0.25 if "-fast-" not in job.name else 9.0
            leave(
                job, norm * (1 + 1e-6 * ((int(job.name[-1]) ** 2 + nodes) * steps % 11))
            )  # seeds that are all alike decide nothing
    assert mean_square(claim.jobs[0]) == pytest.approx(9 / 32, rel=1e-4)
    findings = claim.find()
    claim.answer.format(*findings)
    assert [finding.effect.mean for finding in findings] == pytest.approx(
        [-0.5, -0.5, -0.5, 9 * (NODES[-1] * STEPS) ** 0.5, -0.5], rel=1e-4
    )
    assert [finding.effect.seeds for finding in findings] == [5, 5, 5, 5, 10]
    assert [finding.earlier for finding in findings] == [False, True, False, False, False]
    assert verdict_of(findings) == Verdict.REPRODUCED

"""The runs of the claims: that they are archived, and what is read from them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers.paths import ROOT

from claims.claim_files import STUDIES, Claim, all_claims
from claims.evidence import Verdict, judge, parts
from claims.recorded import commands
from claims.speedup import LOOKS, NODES, STEPS, computed, learning_rate, mean_square
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.study_file import read_study

ARCHIVE = ROOT / "results" / "reproduced"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims_script", ROOT / "scripts/claims.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["claims_script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return all_claims(ARCHIVE)


def test_every_run_of_a_claim_is_archived_with_the_settings_of_its_file(
    claims: list[Claim],
) -> None:
    assert [claim.number for claim in claims] == list(range(1, 29))
    assert {job.name for claim in claims for job in claim.jobs} - set(commands(ARCHIVE)) == set()
    assert sum(len(claim.jobs) for claim in claims) == 1111


def test_findings_name_arms_and_use_every_run(claims: list[Claim]) -> None:
    for claim in claims:
        entries = claim.texts.get("findings", [])
        named = {arm for entry in entries for arm in (*entry["of"], *entry.get("beyond", ()))}
        assert named == set(claim.arms), claim.number
        assert set(claim.texts.get("searches", ())) <= named
        assert sum(entry.get("primary", False) for entry in entries) <= 1


def test_archived_searches_were_made_with_the_settings_of_their_arm(claims: list[Claim]) -> None:
    for claim in claims:
        for arm, name in claim.texts.get("searches", {}).items():
            starts = tuple(f"tune-{name}-{key}" for key in ("beta", "lr"))
            runs = [run for run in commands(ARCHIVE) if run.startswith(starts)]
            assert runs, name
            tuned = ("optim.lr", "algo.beta", "seed", "data.holdout")
            own = {word for word in claim.arms[arm].jobs[0].overrides if not word.startswith(tuned)}
            tried = {word for word in commands(ARCHIVE)[runs[0]] if not word.startswith(tuned)}
            size = ("data.train_size", "eval_every")  # of the arms that are four times longer
            assert {word for word in own ^ tried if not word.startswith(size)} == set(), name


@pytest.mark.slow
def test_every_study_of_the_claims_can_be_run() -> None:
    for path in STUDIES.glob("*.yaml"):
        check_arms(RunMaker(read_study(path)))


def test_the_script_runs_one_claim_and_writes_the_pages_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script()
    module.ROOT = tmp_path
    assert module.main(["1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("claim 1: ")
    assert out[1:] == ["1. Exact averages by gossip: reproduced"]
    text = (tmp_path / "results/claims.md").read_text(encoding="utf-8")
    assert "[1 Exact averages by gossip](claims/01-averaging.md): reproduced, 2/2" in text
    assert "Runs to be made: 2 SGP against AR-SGD" in text
    assert module.main(["29"]) == 2
    assert "'29' is not a claim; choose from 1, 2, 3" in capsys.readouterr().err


def leave(job: RunJob, gradient_norm: float) -> None:
    """As if it had been run."""
    job.folder.mkdir(parents=True)
    (job.folder / "summary.json").write_text("{}")
    record = {"kind": "average", "time_s": 0.0, "gradient_norm": gradient_norm}
    lines = [json.dumps(record)] * LOOKS
    (job.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_speed_up_is_judged_by_the_exponents_of_nodes_and_steps(tmp_path: Path) -> None:
    assert (learning_rate(1, 1024), learning_rate(64, 1024)) == (1 / 64, 1 / 8)
    found = computed(tmp_path)
    for job in found.jobs:
        nodes, steps = (int(part[1:]) for part in job.name.split("-")[1:3])
        if not job.folder.exists():
            norm = 3 * (nodes * steps) ** -0.25 if "-fast-" not in job.name else 9.0
            leave(
                job, norm * (1 + 1e-6 * ((int(job.name[-1]) ** 2 + nodes) * steps % 11))
            )  # seeds that are all alike decide nothing
    assert mean_square(found.jobs[0]) == pytest.approx(9 / 32, rel=1e-4)
    findings = found.find()
    assert [finding.effect.mean for finding in findings] == pytest.approx(
        [-0.5, -0.5, -0.5, 9 * (NODES[-1] * STEPS) ** 0.5, -0.5], rel=1e-4
    )
    assert [finding.effect.seeds for finding in findings] == [5, 5, 5, 5, 10]
    assert [finding.earlier for finding in findings] == [False, True, False, False, False]
    assert set(parts(judge(findings)).values()) == {Verdict.REPRODUCED}

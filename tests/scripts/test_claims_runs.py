"""The runs of the claims: that each is an experiment with a name of its own, and what is read from
them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from helpers.paths import ROOT

from claims import page
from claims.evidence import Claim, Finding, Verdict, headline, judge
from claims.speedup import LOOKS, NODES, STEPS, learning_rate, linear_speed_up, mean_square
from claims.tuning import remaining
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.session.job_pool import RunJob

FACTS = {
    "average_loss": 0.5,
    "average": 0.5,
    "worker_mean": 0.5,
    "time_s": 2.0,
    "bytes_per_node": 64.0,
}


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims_script", ROOT / "scripts/claims.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["claims_script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finish(job: RunJob) -> None:
    """As if it had been run, with the result of all others; a search finds a rate of 0.05."""
    if job.finished:
        return
    job.folder.mkdir(parents=True)
    rates = [float(word[9:]) for word in job.words if word.startswith("optim.lr=")]
    tuned = {"average_loss": abs(rates[0] - 0.06)} if job.name.startswith("tune-") else {}
    facts = {**FACTS, "ms_per_iteration": 40.0, **tuned}
    (job.folder / "summary.json").write_text(json.dumps(facts))
    record = {"kind": "average", "time_s": 0.0, "gradient_norm": 1.0, "consensus_distance": 0.25}
    batch = {"kind": "train", "time_s": 0.0, "rank": 0, "loss": 0.5}
    lines = [json.dumps(batch), *[json.dumps(record)] * LOOKS]
    (job.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (job.folder / "config.yaml").write_text(
        "cluster: {compute: {step_seconds: {resnet50: 0.04}}}\n"
    )


@dataclass(frozen=True)
class Equal:
    claims: list[Claim]
    jobs: dict[str, RunJob]
    findings: list[list[Finding]]


def later(claim: Claim) -> Iterator[Sequence[RunJob]]:
    """The runs that are known once the searches have finished."""
    yield claim.jobs


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Equal:
    """All claims, whose runs have finished with the same result; these runs; the findings."""
    module = script()
    module.OUT = tmp_path_factory.mktemp("results")
    claims, jobs = list(module.all_claims()), {}
    for claim in claims:
        for needed in chain(remaining(claim.searches), later(claim)):
            for job in needed:
                assert jobs.setdefault(job.name, job) == job  # a name stands for one setting
                finish(job)
    return Equal(claims, jobs, [claim.find() for claim in claims])


def test_a_claim_has_one_primary_finding_and_every_run_is_in_a_finding(equal: Equal) -> None:
    assert [claim.number for claim in equal.claims] == list(range(1, 29))
    assert max(len(claim.subject) for claim in equal.claims) <= 32  # fits the summary
    assert len(equal.jobs) == len({job.words for job in equal.jobs.values()})
    for claim, findings in zip(equal.claims, equal.findings, strict=True):
        claim.answer.format(
            *map(page.Mean, range(len(findings)))
        )  # it names no finding that there is not
        found = {job for finding in findings for job in finding.jobs}
        assert claim.complete and found <= set(claim.jobs)
        assert found == set(claim.jobs) or claim.curves  # which show more sizes
        assert sum(finding.primary for finding in findings) == 1
        if claim.plan:
            (primary,) = (finding for finding in findings if finding.primary)
            assert primary.effect.seeds == claim.plan.seeds


def test_nothing_is_claimed_where_all_results_are_equal(equal: Equal) -> None:
    for findings in equal.findings:
        random = [each for each in judge(findings) if each.finding.effect.seeds > 1]
        assert {each.verdict for each in random} <= {Verdict.UNDECIDED}


@pytest.mark.slow
def test_runs_of_claims_are_experiments(equal: Equal) -> None:
    searches = [search for claim in equal.claims for search in claim.searches]
    wanted = {search.jobs[0] for search in searches}
    wanted |= {job for claim in equal.claims for job in claim.jobs[:1]}
    with configs():
        for job in wanted:
            make_experiment(compose(parse([*job.words, f"name={job.name}"])))


def test_the_script_runs_one_claim_and_writes_the_page_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script()
    module.ROOT = tmp_path
    assert module.main(["1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("claim 1: ") and out[1:] == [
        "1. Exact averages by gossip: 2 of 2 parts reproduced"
    ]
    text = (tmp_path / module.OUT / "claims.md").read_text(encoding="utf-8")
    assert page.NOT_JUDGED in text and "### 22. SlowMo over 1-OSGP, longer" in text
    assert module.main(["29"]) == 2
    assert "'29' is not a claim; choose from 1, 2, 3" in capsys.readouterr().err


def leave(job: RunJob, gradient_norm: float) -> None:
    """As if it had been run."""
    finish(job)
    record = {"kind": "average", "time_s": 0.0, "gradient_norm": gradient_norm}
    batch = {"kind": "train", "time_s": 0.0, "rank": 0, "loss": 0.5}
    lines = [json.dumps(batch), *[json.dumps(record)] * LOOKS]
    (job.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


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
    assert headline(judge(findings)) == "4 of 4 parts reproduced"
    assert claim.curves is not None
    nodes, steps, _ = claim.curves().lines.values()
    assert [x for x, _ in nodes] == [1024, 4096, 16384, 65536]
    assert [y for _, y in steps] == pytest.approx([9 / 32, 9 / 64, 9 / 128], rel=1e-4)

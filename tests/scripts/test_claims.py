"""Verdicts of claims, findings of arms, and the claim that needs no run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from claims.averaging import find, unevenness
from claims.claim_files import ArmRuns, finding_of
from claims.evidence import (
    Finding,
    Verdict,
    in_family,
    judge,
    parts,
    primary_of,
    verdict_of,
)
from claims.recorded import job_of, search_of
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.studies.candidates import Candidate
from sgp_runner.studies.statistics import Between, exactly, paired

YES, NO, OPEN = Verdict.REPRODUCED, Verdict.CONTRADICTED, Verdict.UNDECIDED


def tail(t: float) -> float:
    """The probability that Student's t with two degrees of freedom is larger than ``t``."""
    return (1 - t / math.sqrt(t * t + 2)) / 2


def test_a_range_is_tested_from_the_side_of_each_bound() -> None:
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])  # 2, standard error 1/sqrt(3)
    above, below = tail(2 * math.sqrt(3)), tail(math.sqrt(3))
    for expected, verdict, p in (
        (Between(least=0.0), YES, above),
        (Between(most=0.0), NO, above),
        (Between(most=3.0), YES, below),
        (Between(0.0, 3.0), YES, below),  # the larger of both
        (Between(3.0, 9.0), NO, below),
        (Between(-1.0, 0.0), NO, above),
    ):
        found, value = verdict_of(expected, effect)
        assert found == verdict and value == pytest.approx(p, rel=1e-9)
    assert [verdict_of(Between(0.0, 1.0), exactly(x)) for x in (1.0, 1.1)] == [
        (YES, 0.0),
        (NO, 0.0),
    ]


@pytest.mark.parametrize("expected", [Between(least=0.0), Between(most=0.0), Between(0.0, 0.0)])
def test_seeds_that_all_differ_alike_decide_nothing(expected: Between) -> None:
    assert verdict_of(expected, paired([0.5, 0.25, 0.1], [0.5, 0.25, 0.1])) == (OPEN, 1.0)
    assert paired([0.3, 0.2], [0.2, 0.1]).spreadless  # up to rounding


def finding(
    part: str, mean: float, *, primary: bool = False, seeds: int = 3, earlier: bool = False
) -> Finding:
    """An effect whose standard error is 1/sqrt(3), expected to be at least 0."""
    effect = paired([mean - 1, mean, mean + 1], [0.0] * 3) if seeds > 1 else exactly(mean)
    return Finding(part, "", "", effect, Between(least=0.0), primary=primary, earlier=earlier)


def test_the_primary_finding_is_tested_alone_and_the_others_share_the_level() -> None:
    # 3 is significant alone at 2.5 % (1.75 %), but not as one of two; 6 is (0.46 %).
    judged = judge(
        [
            finding("few", 3.0, primary=True),
            finding("many", 3.0),
            finding("time", -1.0, seeds=1),
            finding("late", 6.0),
        ]
    )
    assert [each.verdict for each in judged] == [YES, YES, NO, YES]
    assert [each.p for each in judged] == pytest.approx(
        [
            tail(3 * math.sqrt(3)),
            tail(3 * math.sqrt(3)),
            None,
            2 * tail(6 * math.sqrt(3)),
        ]
    )
    judged = judge([finding("few", 3.0, primary=True), finding("many", 3.0), finding("late", 3.0)])
    assert [each.verdict for each in judged] == [YES, OPEN, OPEN]


def test_a_part_has_one_verdict_and_an_open_finding_says_what_it_needs() -> None:
    findings = [
        finding("few", 3.0, primary=True),
        finding("many", 0.5),
        finding("late", -6.0),
        finding("late", 6.0),
        finding("time", 1.0, seeds=1),
    ]
    judged = judge(findings)
    assert parts(judged) == {"few": YES, "many": OPEN, "late": NO, "time": YES}
    assert [each.wanted for each in judged] == ["", "about 34 seeds", "", "", ""]


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert unevenness(3) == unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    assert parts(judge(find())) == {"powers of two": YES, "other numbers": YES}


def test_primary_findings_of_all_claims_share_the_level() -> None:
    # 1.75 % for 3, which counts twice after a second sample, and 0.46 % for 6.
    one, two, none = (
        primary_of(judge(findings))
        for findings in (
            [finding("few", 6.0, primary=True)],
            [finding("few", 3.0, earlier=True), finding("few", 3.0, primary=True)],
            [finding("few", 1.0, primary=True, seeds=1)],
        )
    )
    assert (two.verdict, two.of_looks) == (YES, OPEN)
    found = in_family({2: one, 5: two, 7: none})
    assert {number: verdict for number, (verdict, _) in found.items()} == {2: YES, 5: OPEN}
    assert [p for _, p in found.values()] == pytest.approx(
        [2 * tail(6 * math.sqrt(3)), 2 * tail(3 * math.sqrt(3))]
    )


def pretend(job: RunJob, score: float | None, seconds: float = 1.0) -> None:
    """That it has finished with this loss, and an accuracy of 1 minus it; None: it has diverged.

    Two workers' last batches have half and three halves of the loss.
    """
    job.folder.mkdir(parents=True)
    facts = {} if score is None else {"average_loss": score, "average": 1 - score}
    name = "diverged.json" if score is None else "summary.json"
    (job.folder / name).write_text(json.dumps({**facts, "time_s": seconds}), encoding="utf-8")
    steps = [(0, 0, 9.0), (1, 0, 9.0), (0, 8, (score or 0) / 2), (1, 8, (score or 0) * 3 / 2)]
    lines = (
        json.dumps({"kind": "train", "time_s": step, "rank": rank, "step": step, "loss": loss})
        for rank, step, loss in steps
    )
    (job.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def arm(
    results: Path, name: str, scores: tuple[float | None, ...], seconds: float = 1.0
) -> ArmRuns:
    jobs = tuple(RunJob(f"{name}-s{seed}", (), results) for seed in range(len(scores)))
    for job, score in zip(jobs, scores, strict=True):
        pretend(job, score, seconds)
    return ArmRuns(jobs, math.log(10), images=True)


def test_arms_are_compared_seed_by_seed(tmp_path: Path) -> None:
    arms = {
        "SGP": arm(tmp_path, "sgp", (0.75, 0.5)),
        "AR-SGD": arm(tmp_path, "ar_sgd", (0.5, 0.5), seconds=4.0),
    }
    entry = {"part": "few", "of": ["SGP", "AR-SGD"], "least": 0.0}
    found = finding_of(entry, arms)
    assert (found.effect.mean, found.what, len(found.jobs)) == (0.125, "SGP − AR-SGD", 4)
    assert found.beside == (
        "accuracy -12.50 points (-171.33 to +146.33); training loss +0.125 (-1.463 to +1.713)"
    )
    twice = finding_of({**entry, "beyond": ["AR-SGD", "SGP"]}, arms)
    assert (twice.effect.mean, twice.what) == (0.25, "(SGP − AR-SGD) − (AR-SGD − SGP)")
    assert twice.beside.startswith("accuracy -25.00 points (-342.66 to +292.66); training")
    time = finding_of({**entry, "measure": "time_s"}, arms)
    assert (time.effect, time.what) == (exactly(0.25), "SGP / AR-SGD, time")
    excess = finding_of({**entry, "measure": "percent"}, arms)
    assert (excess.effect.mean, excess.unit) == (25.0, "% of the validation loss")


def test_a_diverged_run_counts_as_a_model_that_guesses(tmp_path: Path) -> None:
    arms = {"a": arm(tmp_path, "a", (None, 1.0)), "b": arm(tmp_path, "b", (1.0, 1.0))}
    found = finding_of({"part": "", "of": ["a", "b"]}, arms)
    assert (found.effect.mean, found.beside) == ((math.log(10) - 1) / 2, "")


def archive(results: Path, commands: dict[str, str]) -> None:
    lines = "".join(f"{name},sgp-run {command}\n" for name, command in commands.items())
    (results / "runs.csv").write_text(f"run,command\n{lines}", encoding="utf-8")


def test_an_archived_run_is_found_by_its_settings(tmp_path: Path) -> None:
    archive(tmp_path, {"old-s1": "algo=sgp nodes=4 seed=1", "older-s1": "nodes=4 algo=sgp seed=1"})
    words = ["nodes=8", "seed=1", "algo=sgp", "nodes=4"]  # of two values, the last one counts
    assert job_of(tmp_path, words, "new").name == "old-s1"
    assert job_of(tmp_path, words[:3], "new").name == "new"


def test_the_best_run_of_an_archived_search_is_chosen(tmp_path: Path) -> None:
    scores = {
        "beta0.3-lr0.1": 0.5,
        "beta0.5-lr0.1": 0.25,
        "beta0.5-lr0.2": 0.75,
        "beta0.5-lr0.05": 1,
    }
    names = {f"tune-slowmo-{each}-s101": score for each, score in scores.items()}
    archive(tmp_path, dict.fromkeys([*names, "tune-slowmo-late-lr0.1-s101"], "algo=slowmo"))
    for name, score in names.items():
        pretend(RunJob(name, (), tmp_path), score)
    found = search_of(tmp_path, "slowmo")
    assert (found.chosen, found.at_the_edge) == (Candidate(0.1, ("algo.beta=0.5",)), False)
    assert found.runs == 4

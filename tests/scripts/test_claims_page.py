"""The page of the claims: what stands in its tables, what links to which log, and its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from claims import figures
from claims.evidence import Claim, Curves, Finding, Sample, Verdict
from claims.page import WAITS, groups, shown, write
from claims.tuning import Search
from reproduce.archives import LOST
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between, Interval, exactly


def finished(job: RunJob, score: float) -> RunJob:
    job.folder.mkdir(parents=True)
    facts = {"average_loss": score, "real_s": 1800.0}
    (job.folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    return job


def claim_of(results: Path) -> Claim:
    """A claim with a second sample: an earlier finding contradicts, the new one agrees."""
    jobs = [finished(RunJob(f"sgp-n8-s{seed}", ("algo=sgp",), results), 0.5) for seed in (6, 7)]
    search = Search("sgp", ("algo=sgp",), results, (0.1,), (0.1, 0.2), seeds=(101,))
    for value, score in ((0.1, 0.75), (0.2, 0.25)):
        finished(search.job(value, 101), score)
    effect = Interval(1.5, 1.0, 2.0, 2)
    beside = "accuracy +1.00 points"
    new = Finding(
        "few", "SGP", "nats", effect, Between(least=0.0), tuple(jobs), beside, primary=True
    )
    old = replace(new, effect=Interval(-1.5, -1.6, -1.4, 5), jobs=(), beside="", primary=False)
    time = Finding("time", "SGP", "ratio", exactly(2.0), Between(most=1.0))
    return Claim(
        number=3,
        subject="Speed",
        sentence="SGP is fast.",
        source="A table",
        tried="It was run.",
        answer="Yes: {0}, not {1} but {1:size}.",
        samples=(Sample(lambda: jobs, lambda: [new, replace(old, earlier=True), time], (search,)),),
        plan=SeedPlan(matters=1.0, spread=0.1, seeds=3, unit="nats", pilot="pilot"),
    )


def test_an_effect_is_shown_with_its_interval_if_it_has_a_width() -> None:
    assert shown(Interval(-3.7944, -5.162, -2.423, 5)) == "-3.79 (-5.16 to -2.42)"
    assert shown(Interval(0.9057, 0.9057, 0.9057, 5)) == "0.906 (all seeds alike)"
    assert shown(Interval(-1e-14, -1e-14, -1e-14, 5)) == "0 (all seeds alike)"
    assert shown(exactly(0.9057)) == "0.906"


def test_runs_are_grouped_by_what_they_have_in_common_but_the_seed(tmp_path: Path) -> None:
    jobs = [RunJob(name, (), tmp_path) for name in ("sgp-n8-s1", "sgp-n8-s12", "timing-sgp_90")]
    logs = "logs/{}.tar.xz#{}/metrics.jsonl".format
    assert groups(jobs, tmp_path) == (
        ("sgp-n8", (("1", logs("sgp", "sgp-n8-s1")), ("12", logs("sgp", "sgp-n8-s12")))),
        ("timing-sgp_90", (("log", logs("timing", "timing-sgp_90")),)),
    )


def test_the_page_begins_with_answers_and_a_finding_is_one_short_line(tmp_path: Path) -> None:
    claim = claim_of(tmp_path)
    to_come = Sample(lambda: [RunJob("missing", (), tmp_path)], list)
    added = replace(claim, samples=(*claim.samples, to_come))
    waiting = replace(claim, number=4, samples=(to_come,), earlier="contradicted")
    reason = replace(waiting, number=5, explains=3)
    (view,) = write([added, waiting, reason], tmp_path)
    assert view.cost == "4 runs, 2.0 hours one after the other"
    page = (tmp_path / "claims.md").read_text(encoding="utf-8").splitlines()
    assert page[3].endswith("(figures/summary.svg)")
    assert page[5:9] == [
        "| claim | primary finding | parts | answer |",
        "| --- | --- | --- | --- |",
        "| [3. Speed](#claim3) | reproduced | 1 of 2 parts reproduced; contradicted: time | "
        "Yes: 1.5, not -1.5 but 1.5. |",
        "| [4. Speed](#claim4) | runs to be made | | |",
    ]
    assert page[10:13] == [
        "| reason for a verdict | primary finding | parts | answer |",
        "| --- | --- | --- | --- |",
        "| [5. Speed](#claim5) | runs to be made | | |",
    ]
    assert view.plan.endswith(
        "a spread of 0.056, with which the same effect is found with a probability of 99 %."
    )
    assert (
        "| 1 | few * | SGP, nats | 1.5 (1 to 2); accuracy +1.00 points | at least 0 | 2 | 0.0083 | "
        "reproduced |"
    ) in page
    assert page.index("Earlier sample, which no longer decides:") < page.index(
        "| 2 | few | SGP, nats | -1.5 (-1.6 to -1.4) | at least 0 | 5 | 9.9e-07 | contradicted |"
    )
    assert "| tune-sgp | optim.lr | 0.1: 0.75, 0.2: 0.25 | 0.2, at the edge of the search |" in page
    assert (
        "- 1: sgp-n8 [6](logs/sgp.tar.xz#sgp-n8-s6/metrics.jsonl) "
        "[7](logs/sgp.tar.xz#sgp-n8-s7/metrics.jsonl)"
    ) in page
    assert f"Repeat it: `.venv/bin/python scripts/claims.py 3` ({view.cost}){WAITS}" in page
    assert "By an earlier design: [contradicted](earlier/claims.md#claim4)." in page
    html = (tmp_path / "claims.html").read_text(encoding="utf-8")
    assert '<a href="logs/sgp.tar.xz#sgp-n8-s7/metrics.jsonl">7</a>' in html
    assert (
        '<img src="figures/claim3.svg" alt="few: 1.5, reproduced; time: 2, contradicted">' in html
    )
    assert (tmp_path / "figures/claim3.svg").stat().st_size > 1000


def test_the_page_counts_the_runs_of_lost_commits(tmp_path: Path) -> None:
    claim = claim_of(tmp_path)
    for job, commit in zip(claim.jobs, (min(LOST), "f" * 40), strict=True):
        made = json.dumps({"git": {"commit": commit, "dirty": False}})
        (job.folder / "environment.json").write_text(made, encoding="utf-8")
    write([claim], tmp_path)
    sentence = "The commits of 1 of these runs are not in the repository."
    assert f"\n**{sentence}**\n" in (tmp_path / "claims.md").read_text(encoding="utf-8")
    assert f"<strong>{sentence}</strong>" in (tmp_path / "claims.html").read_text(encoding="utf-8")


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    line = figures.Line(1, "Speed", (Verdict.REPRODUCED, Verdict.UNDECIDED))
    texts = []
    for folder in "ab":
        figures.save(figures.summary([line]), tmp_path / folder / "summary.svg")
        texts.append((tmp_path / folder / "summary.svg").read_bytes())
    assert texts[0] == texts[1] and b"<svg" in texts[0]


def test_a_figure_has_at_most_eight_curves() -> None:
    lines = {str(number): [(1.0, 1.0), (2.0, number + 1.0)] for number in range(9)}
    with pytest.raises(ValueError, match="^9 curves are more than 8"):
        figures.curves(Curves("x", "y", lines))


def test_names_of_curves_keep_apart_and_below_the_top() -> None:
    assert figures.spaced([0.0, 0.5, 0.51], 0.25) == [0.0, 0.5, 0.75]
    assert figures.spaced([0.9, 0.95, 1.0], 0.25) == [0.5, 0.75, 1.0]

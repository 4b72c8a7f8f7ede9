"""The page of the claims: what stands in its tables, what links to which log, and that the answers
fit their findings.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from claims.evidence import Between, Claim, Finding, Interval, Sample, Verdict, exactly, verdict_of
from claims.page import WAITS, groups, shown, write
from claims.tuning import Search
from sgp_runner.session.job_pool import Job


def finished(job: Job, score: float) -> Job:
    job.folder.mkdir(parents=True)
    (job.folder / "summary.json").write_text(
        json.dumps({"worker_mean": score, "average": score}), encoding="utf-8"
    )
    return job


def claim_of(results: Path) -> Claim:
    """Judged anew: an earlier finding contradicts, the new one agrees."""
    jobs = [finished(Job(f"sgp-n8-s{seed}", ("algo=sgp",), results), 0.5) for seed in (6, 7)]
    trial = Search("sgp", ("algo=sgp",), results, values=(0.1, 0.2), seeds=(101,))
    for job, score in zip(trial.jobs, (0.25, 0.75), strict=True):
        finished(job, score)
    new = Finding("accuracy, points", Interval(1.5, 1.0, 2.0, 2), Between(least=0.0), tuple(jobs))
    old = replace(new, effect=Interval(-1.5, -2.0, -1.0, 5), jobs=(), earlier=True)
    facts = {
        "subject": "Speed",
        "sentence": "SGP is fast.",
        "source": "A table",
        "tried": "It was run.",
        "answer": "Yes: {0}, not {1}.",
    }
    return Claim(3, samples=(Sample(lambda: jobs, lambda: [new, old]),), trials=(trial,), **facts)  # type: ignore[arg-type]


def test_an_effect_is_shown_with_its_interval_if_it_has_a_width() -> None:
    assert shown(Interval(-3.7944, -5.162, -2.423, 5)) == "-3.79 (-5.16 to -2.42)"
    assert (
        shown(Interval(0.9057, 0.9057, 0.9057, 5)),
        shown(Interval(-1e-14, -1e-14, -1e-14, 5)),
    ) == (
        "0.906 (all seeds alike)",
        "0 (all seeds alike)",
    )
    assert shown(exactly(0.9057)) == "0.906"


def test_runs_are_grouped_by_what_they_have_in_common_but_the_seed(tmp_path: Path) -> None:
    jobs = [Job(name, (), tmp_path) for name in ("sgp-n8-s1", "sgp-n8-s12", "timing-sgp_90")]
    logs = "logs/{}.tar.xz#{}/metrics.jsonl".format
    assert groups(jobs, tmp_path) == (
        ("sgp-n8", (("1", logs("sgp", "sgp-n8-s1")), ("12", logs("sgp", "sgp-n8-s12")))),
        ("timing-sgp_90", (("log", logs("timing", "timing-sgp_90")),)),
    )


def test_the_page_begins_with_answers_and_a_finding_is_one_short_line(tmp_path: Path) -> None:
    claim = claim_of(tmp_path)
    assert verdict_of(claim.find()) == Verdict.REPRODUCED  # the earlier finding does not decide
    to_come = Sample(lambda: [Job("missing", (), tmp_path)], list)
    shapes = {
        "16 x 16 pixels": finished(Job("shapes", ("data=shapes",), tmp_path), 0.932),
        "others": Job("unfinished", (), tmp_path),
    }
    added = replace(claim, samples=(*claim.samples, to_come))
    assert [
        view.claim.number
        for view in write([added, replace(claim, number=4, samples=(to_come,))], shapes, tmp_path)
    ] == [3]
    page = (tmp_path / "claims.md").read_text(encoding="utf-8").splitlines()
    assert page[3:6] == [
        "| claim | verdict | answer |",
        "| --- | --- | --- |",
        "| [3. Speed](#claim3) | reproduced | Yes: 1.5, not -1.5. |",
    ]
    assert "| 1 | accuracy, points | 1.5 (1 to 2) | at least 0 | 2 | reproduced |" in page
    assert page.index("Earlier sample, which no longer decides:") < page.index(
        "| 2 | accuracy, points | -1.5 (-2 to -1) | at least 0 | 5 | contradicted |"
    )
    assert "| tune-sgp | optim.lr | 0.1: 0.25, 0.2: 0.75 | 0.2, at the edge of the search |" in page
    assert (
        "- 1: sgp-n8 [6](logs/sgp.tar.xz#sgp-n8-s6/metrics.jsonl) "
        "[7](logs/sgp.tar.xz#sgp-n8-s7/metrics.jsonl)"
    ) in page
    assert (
        f"Repeat it: `.venv/bin/python scripts/claims.py 3`{WAITS}" in page
        and "- 4. SGP is fast. A table." in page
    )
    assert (
        page[-1]
        == "On shapes of 16 x 16 pixels ResNet-20 reaches 93.2% (`sgp-run data=shapes`, one seed)."
    )
    html = (tmp_path / "claims.html").read_text(encoding="utf-8")
    assert (
        '<a href="logs/sgp.tar.xz#sgp-n8-s7/metrics.jsonl">7</a>' in html
        and "<td>Yes: 1.5, not -1.5.</td>" in html
    )

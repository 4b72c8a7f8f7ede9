"""The pages of the claims: their sentences, tables and links, and the figures."""

from __future__ import annotations

import csv
import json
import zipfile
from dataclasses import replace
from pathlib import Path

from claims.claim_files import Claim
from claims.computed import Computed
from claims.evidence import Finding, Verdict, judge
from claims.figures import forest
from claims.page import Shown, effect_text, family_of, rows_of, write
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.report.render.pictures import save
from sgp_runner.studies.statistics import Between, Interval, exactly


def finished(job: RunJob, commit: str) -> RunJob:
    job.folder.mkdir(parents=True)
    facts = {"average_loss": 0.5, "real_s": 1800.0}
    (job.folder / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    made = json.dumps({"git": {"commit": commit, "dirty": False}})
    (job.folder / "environment.json").write_text(made, encoding="utf-8")
    return job


def claim_of(results: Path) -> Claim:
    """A claim with a second sample: an earlier finding contradicts, the new one agrees."""
    jobs = [
        finished(RunJob(f"sgp-n8-s{seed}", ("algo=sgp",), results), commit)
        for seed, commit in ((6, "e" * 40), (7, "f" * 40))
    ]
    nats = "validation loss, nats"
    effect = Interval(1.5, 1.0, 2.0, 2)
    new = Finding("few", "SGP", nats, effect, Between(least=0.0), tuple(jobs), "", primary=True)
    old = replace(new, effect=Interval(-1.5, -1.6, -1.4, 5), jobs=(), primary=False, earlier=True)
    time = Finding("time", "SGP, time", "ratio", exactly(2.0), Between(most=1.0))
    texts = {
        "subject": "Speed",
        "sentence": "SGP is fast.",
        "source": "A table",
        "answer": "Yes: {0:ci}, not {1} but {1:size}.",
        "tried": "It was run.",
        "plan": {"seeds": 3, "matters": 1.0, "spread": 0.1, "unit": "nats", "pilot": "pilot"},
        "deviation": "It was [repeated]({design}/30.yaml).",
    }
    return Claim(3, "03-speed", texts, (), {}, Computed(jobs, lambda: [new, old, time]))


def test_an_effect_is_shown_with_its_interval_if_it_has_a_width() -> None:
    assert effect_text(Interval(-3.7944, -5.162, -2.423, 5)) == "-3.79 [-5.16, -2.42]"
    assert effect_text(Interval(0.9057, 0.9057, 0.9057, 5)) == "0.906 (all seeds alike)"
    assert effect_text(Interval(-1e-14, -1e-14, -1e-14, 5)) == "0 (all seeds alike)"
    assert effect_text(exactly(0.9057)) == "0.906"


def test_an_answer_formats_means_with_or_without_sign_and_interval() -> None:
    mean = Shown(Interval(-0.25, -0.5, 0.125, 5))
    assert f"{mean} {mean:size} {mean:ci} {mean:-ci}" == (
        "-0.25 0.25 -0.25 [-0.5, 0.125] 0.25 [-0.125, 0.5]"
    )


def test_more_than_two_findings_of_a_part_share_a_row() -> None:
    findings = [
        Finding("slow", f"{number}", "", exactly(number), Between(least=least))
        for number, least in ((1.0, 0.0), (2.0, 0.0), (3.0, 4.0))
    ]
    (row,) = rows_of(judge(findings), earlier=False)
    assert (row.what, row.effect) == ("slow: 3 findings", "1, 2, 3")
    assert (row.expected, row.verdict) == ("≥ 0, ≥ 4", "1 contradicted")


def test_a_claim_has_a_line_in_the_table_and_a_page(tmp_path: Path) -> None:
    claim = claim_of(tmp_path)
    missing = Computed([RunJob("missing", (), tmp_path)])
    waiting = replace(claim, number=4, computed=missing)
    (view,) = write([claim, waiting], tmp_path, tmp_path)
    index = (tmp_path / "claims.md").read_text(encoding="utf-8")
    answer = "Yes: 1.5 [1, 2], not -1.5 but 1.5."
    assert f"\n[3 Speed](claims/03-speed.md): reproduced, 1/2 | {answer}\n" in index
    assert "\nRuns to be made: 4 Speed.\n" in index
    page = (tmp_path / "claims/03-speed.md").read_text(encoding="utf-8").splitlines()
    assert page[:5] == [
        "# 3 Speed",
        "",
        "> SGP is fast.",
        "",
        f"A table. **Reproduced, 1/2 parts.** {answer}",
    ]
    assert page[8:13] == [
        "finding | nats [95 %] | verdict (expected)",
        "---|---|---",
        "SGP * | 1.5 [1, 2] | reproduced (≥ 0)",
        "SGP, time | 2 | contradicted (≤ 1)",
        "SGP | -1.5 [-1.6, -1.4] | first sample (≥ 0)",
    ]
    assert "It was run. 3 seeds (spread 0.056, planned 0.1; power 99 %)." in page
    assert page[-1] == "Repeat: `.venv/bin/python scripts/claims.py 3` (2 runs, 60 minutes)."
    assert (tmp_path / "claims/figures/claim3.svg").stat().st_size > 1000
    with (tmp_path / "claims/findings.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["decides"] for line in lines] == ["True", "False", "True"]
    assert (lines[0]["runs"], lines[0]["samples"]) == ("sgp-n8-s6 sgp-n8-s7", "2")
    assert (view.kind, view.family and view.family[0]) == ("measured", Verdict.REPRODUCED)


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    judged = judge(claim_of(tmp_path).find())
    save(forest(judged), tmp_path, "claim3", ("svg",))
    one = (tmp_path / "claim3.svg").read_bytes()
    save(forest(judged), tmp_path, "claim3", ("svg",))
    assert one == (tmp_path / "claim3.svg").read_bytes() and b"<svg" in one


def test_effects_are_drawn_over_their_ranges_within_the_edges(tmp_path: Path) -> None:
    nats, ratio = forest(judge(claim_of(tmp_path).find()))
    expected, reproduced = nats.series  # the earlier sample does not decide
    assert (nats.x.title, nats.x.span) == ("validation loss, nats", (-0.16, 2.16))
    assert (expected.low, expected.high) == ([0.0], [2.16])  # no upper bound
    assert (reproduced.name, reproduced.x, reproduced.low) == ("reproduced", [1.5], [1.0])
    assert [each.name for each in ratio.series] == ["expected", "contradicted"]


def test_studies_are_one_family(tmp_path: Path) -> None:
    """Holm: 3 x 0.01, then 2 x 0.03, then 0.04 or the largest so far."""
    archives = []
    for name, p in (("a", 0.01), ("b", 0.04), ("c", 0.03)):
        archives.append(tmp_path / f"{name}.zip")
        lines = ["p,primary", f"{p},True", "1e-9,False", ",True"]
        with zipfile.ZipFile(archives[-1], "w") as file:
            file.writestr("table.csv", "\n".join(lines))
    assert family_of(archives) == ["0.03", "0.06", "0.06"]

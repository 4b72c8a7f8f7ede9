"""The page and the picture of the audit, from gains with literal effects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from audit_page import AuditRow, draw, page, papers
from sgp_runner.config.choices import CONFIGS
from sgp_runner.studies.audit import Gain
from sgp_runner.studies.measures import measure_of
from sgp_runner.studies.statistics import Interval
from sgp_runner.studies.study_file import read_study

DESIGNS = CONFIGS / "study" / "audit"


def tuned_only(mean: float, half: float) -> AuditRow:
    """Return a row whose claim has no published settings."""
    return replace(row("pipe_sgd", (0.0, 0.004), (mean, half)), gain=None, edges=("AR-SGD",))


def row(name: str, transferred: tuple[float, float], tuned: tuple[float, float]) -> AuditRow:
    at, after = (Interval(mean, mean - half, mean + half, 8) for mean, half in (transferred, tuned))
    accuracy, study = measure_of("accuracy"), read_study(DESIGNS / f"{name}.yaml")
    gain = Gain(accuracy, at, after, margin=0.0025)
    return AuditRow(name, study, accuracy, after, gain, 0.05, "An answer.", seeds=8)


def test_each_row_has_its_effects_verdict_paper_and_archive() -> None:
    rows = [row("slowmo_local_sgd", (0.015, 0.004), (0.0005, 0.001))]
    text = page(rows, {"slowmo_sgp": read_study(DESIGNS / "slowmo_sgp.yaml")})
    assert (
        "| [SlowMo, not local SGD](#slowmo_local_sgd) | **collapses** | +1.5 points [+1.1, +1.9] | "
        "+0.05 points [-0.05, +0.15] | 0.25 points | 8 |\n"
    ) in text
    assert (
        '<a id="slowmo_local_sgd"></a>\n\n## Does SlowMo improve local SGD on Fashion-MNIST?\n\n'
        "Published: SlowMo over local SGD reaches 93.20 instead of 91.73 % on CIFAR-10 (Wang et "
        "al. 2020).\n\nAn answer.\n\n    sgp-run study verify results/audit/slowmo_local_sgd.zip\n"
    ) in text
    assert text.endswith(
        "## Set down, but not run yet\n\n- Does SlowMo improve SGP on Fashion-MNIST? "
        "`sgp-run study audit --rows slowmo_sgp`\n"
    )


def test_a_claim_without_published_settings_is_judged_by_its_tuned_effect() -> None:
    effects = ((-0.009, 0.001), (0.009, 0.001), (0.0005, 0.001), (0.002, 0.003))
    rows = [tuned_only(*effect) for effect in effects]
    assert [row.verdict for row in rows] == ["worse", "better", "no difference", "undecided"]
    assert (
        "| [Pipe-SGD, not AR-SGD](#pipe_sgd) | **worse** † | not published | "
        "-0.9 points [-1, -0.8] | 0.25 points | 8 |\n"
    ) in page(rows[:1], {})
    assert [papers([row])[-2].split(" | ")[-1] for row in rows] == [
        *("worse |", "better |", "agrees |", "not shown |")
    ]


def test_differences_of_the_papers_stand_beside_ours() -> None:
    lines = papers(
        [
            row("slowmo_local_sgd", (0.015, 0.004), (0.0005, 0.001)),
            row("slowmo_sgp", (0.003, 0.004), (0.02, 0.003)),
            row("gap_aware", (0.003, 0.004), (-0.02, 0.003)),
            row("pipe_sgd", (0.003, 0.004), (-0.0005, 0.001)),
        ]
    )
    source = "| Wang et al. 2020, ICLR 2020 submission: slowmo_"
    assert lines[5:] == [
        "| Assran et al. 2019, authors' slides: sgp_sgp_270, 77.10 against 76.20 % | +0.90 | not "
        "run yet | |",
        f"{source}cifar10_local_sgd_slowmo, 93.20 against 91.73 % | +1.47 | +0.05 points [-0.05, "
        "+0.15] | no difference |",
        f"{source}cifar10_sgp_slowmo, 94.32 against 93.90 % | +0.42 | +2 points [+1.7, +2.3] | "
        "agrees |",
        f"{source}wmt16_local_adam_slowmo, 27.14 against 26.62 BLEU | +0.52 | not run yet | |",
        "| Barkai et al. 2020: Gap-Aware ends better than Staleness-Aware |  | -2 points [-2.3, "
        "-1.7] | opposite |",
        "| Li et al. 2018: Pipe-SGD ends as well as synchronous SGD |  | -0.05 points [-0.15, "
        "+0.05] | agrees |",
        "",
    ]


def test_without_archives_the_page_lists_designs_alone() -> None:
    text = page([], {"slowmo_sgp": read_study(DESIGNS / "slowmo_sgp.yaml")})
    assert "| gain |" not in text and "audit.svg" not in text
    assert "- Does SlowMo improve SGP on Fashion-MNIST?" in text


def test_the_picture_is_the_same_bytes_again(tmp_path: Path) -> None:
    rows = [
        row("slowmo_local_sgd", (0.015, 0.004), (0.0005, 0.001)),
        row("slowmo_sgp", (0.03, 0.004), (0.02, 0.003)),
        tuned_only(-0.009, 0.001),
    ]
    for path in (first := tmp_path / "a.svg", second := tmp_path / "b.svg"):
        draw(rows, path)
    assert ElementTree.parse(first).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert first.read_bytes() == second.read_bytes()

"""Claims about formulas, studies of the claims, and links of the pages of results."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import pytest
from helpers.paths import ROOT

import claims
from sgp_runner.config.overrides import experiment_of
from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.study_file import SHIPPED, read_study
from sgp_runner.utils.reading import read_yaml

SMALL = """\
3 Bytes:
  settings: model=timing_only nodes=4 algo=ar_sgd epochs=1 model.sample_steps=4 cluster=laptop
  measure: bytes_per_node
  ratios:
    4 nodes / 2: {of: "", over: nodes=2, least: 1.5, most: 1.5}
    4 nodes / 4: {of: "", over: "", most: 0.5}
"""


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [claims.unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert claims.unevenness(3) == claims.unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    lines = list(claims.averages())
    assert len(lines) == 18 and all(least <= value <= most for _, value, least, most in lines)


def test_a_ratio_is_judged_by_its_band(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(SMALL, encoding="utf-8")
    claims.main(file)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "3 Bytes: 4 nodes / 2: 1.5 in [1.5, 1.5]: holds",
        "3 Bytes: 4 nodes / 4: 1 in [-inf, 0.5]: does not hold",
    ]
    file.write_text(SMALL.replace("nodes=2", "nodes=two"), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"^sgp-run .* nodes=two: "):
        claims.main(file)


def test_lines_of_the_file_are_timing_studies_with_bands() -> None:
    for claim in read_yaml(claims.FILE).values():
        for case in claim["ratios"].values():
            assert -inf < case.get("least", -inf) or case.get("most", inf) < inf
            for side in ("of", "over"):
                run = experiment_of(f"{claim['settings']} {case[side]}".split()).run
                assert run.model.name == "timing_only"


@pytest.mark.slow
def test_every_study_of_the_claims_can_be_run() -> None:
    for path in SHIPPED.glob("claims/*.yaml"):
        check_arms(RunMaker(read_study(path)))


def test_links_of_the_results_lead_to_files() -> None:
    pages = sorted((ROOT / "results").rglob("*.md"))
    assert len(pages) > 50
    for page in pages:
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page

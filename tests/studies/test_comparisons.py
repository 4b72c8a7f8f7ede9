"""The rules of a comparison, on runs that are pretended."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from helpers.studied import conducted

from sgp_runner.studies.comparisons import answer, compare, headline
from sgp_runner.studies.study_latex import table_tex
from sgp_runner.studies.study_table import comparison_table, difference_note


def test_a_diverged_run_counts_as_the_worst_of_the_study_and_every_text_names_it(
    tmp_path: Path,
) -> None:
    """Guessing among ten classes has a loss of 2.30, which is below two of the finite runs."""
    losses = {"osgp": [inf] * 3, "sgp": [2.679, 2.31, 2.327], "ar_sgd": [2.0, inf, 2.1]}
    done = conducted(tmp_path, losses, ["loss"])
    (loss,) = compare(done)
    assert loss.values == {
        "osgp": (2.679, 2.679, 2.679),
        "sgp": (2.679, 2.31, 2.327),
        "ar_sgd": (2.0, 2.679, 2.1),
    }
    table = comparison_table(done, [loss], ["laptop"], "simulated")
    assert [row[1].links[0].text for row in table.cells] == ["ar_sgd", "sgp", "osgp"]
    assert table.cells[2][2].links[0].text == "diverged"
    named = " Diverged: 3 of 3 runs of osgp, 1 of 3 runs of ar_sgd."
    assert table.note.endswith(named)
    assert answer(done, loss, "laptop", "simulated").endswith(named)
    assert loss.outliers == set()  # three seeds are too few for ranks
    done = conducted(tmp_path / "finite", {"sgp": [inf, 2.0], "ar_sgd": [1.0, 1.1]}, ["loss"])
    (loss,) = compare(done)
    assert loss.values["sgp"] == (2.302585092994046, 2.0)


def test_one_diverged_run_does_not_hide_a_difference_of_all_others(tmp_path: Path) -> None:
    """Seven pairs, and the one with a diverged run has the largest rank of their differences."""
    sgp = [0.10, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16]
    losses = {"sgp": sgp, "ar_sgd": [0.15, 0.17, 0.19, 0.21, inf, 0.24, 0.25]}
    done = conducted(tmp_path, losses, ["loss"])
    (by_mean,) = compare(done, by_ranks=False)
    (loss,) = compare(done)
    # All seven differences are negative: 2 / 2^7, and the median of their 28 averages.
    comparison = loss.comparisons["sgp"]
    assert (comparison.p, comparison.verdict) == (0.015625, "better")
    assert comparison.effect.mean == pytest.approx(-0.08)
    ends = (0.14 - 2.302585092994046 - 0.09) / 2, -0.06
    assert (comparison.effect.low, comparison.effect.high) == pytest.approx(ends)
    assert by_mean.comparisons["sgp"].verdict == "undecided"
    assert [loss.text(name) for name in losses] == ["0.1300", "0.2100"]
    assert [by_mean.text(name) for name in losses] == ["0.1300", "0.5018"]
    assert loss.ranks == {"sgp": 1, "ar_sgd": 2}
    assert answer(done, loss, "laptop", "simulated").endswith(
        "Diverged: 1 of 7 runs of ar_sgd; these arms have medians and are compared by ranks."
    )
    assert " & 0.2100 {\\scriptsize median} " in table_tex(done, [loss], ["loss"])


def test_an_arm_that_ends_early_without_the_target_changes_no_other_comparison(
    tmp_path: Path,
) -> None:
    """Runs of 60 s reach a loss of 1 after about 50 and 54 s; those of osgp end after 10 s."""
    losses = {"sgp": [0.5, 0.49, 0.51], "osgp": [1.5, 1.6, 1.7], "ar_sgd": [0.75, 0.74, 0.77]}
    seconds = {"sgp": 60.0, "osgp": 10.0, "ar_sgd": 60.0}
    measures = ["time_to_loss(1)"]
    (three,) = compare(conducted(tmp_path / "three", losses, measures, seconds))
    del losses["osgp"]
    done = conducted(tmp_path / "two", losses, measures, seconds)
    (two,) = compare(done)
    assert two.values["sgp"] == pytest.approx((50.0, 49.8675, 50.1342), abs=1e-4)
    assert two.comparisons["sgp"].effect.mean == pytest.approx(-4.065997, abs=1e-6)
    assert two.comparisons["sgp"].verdict == "better"
    assert three.comparisons["sgp"].effect == two.comparisons["sgp"].effect
    assert three.comparisons["sgp"].p == two.comparisons["sgp"].p
    assert {**three.values, "osgp": ()} == {**two.values, "osgp": ()}
    assert three.values["osgp"] == (10.0, 10.0, 10.0)
    assert three.comparisons["osgp"].verdict == "undecided"
    assert three.ranks == {"sgp": 1, "osgp": 1, "ar_sgd": 2} and three.best == "sgp"
    assert headline(done, three, "", "simulated").startswith("sgp is fastest: 50 s of simulated ")


def test_the_equivalence_of_secondary_arms_is_adjusted(tmp_path: Path) -> None:
    """Each arm is within 0.5 with p = 0.0175 alone, which is enough for the primary arm only."""
    losses = {name: [1.2, 1.1, 1.3] for name in ("sgp", "osgp", "d_psgd")}
    base = [1.0, 1.0, 1.0]
    (loss,) = compare(conducted(tmp_path, {**losses, "ar_sgd": base}, ["loss"]))
    equal = {name: comparison.equal for name, comparison in loss.comparisons.items()}
    alone = pytest.approx(0.0175, abs=1e-4)
    assert equal["sgp"] == alone
    assert [equal[name] for name in ("osgp", "d_psgd")] == [pytest.approx(0.035, abs=2e-4)] * 2
    verdicts = [comparison.verdict for comparison in loss.comparisons.values()]
    assert verdicts == ["equal", "undecided", "undecided"]


def test_an_interval_beside_an_adjusted_p_value_says_that_it_is_not(tmp_path: Path) -> None:
    losses = {"sgp": [1.2, 1.1, 1.3], "osgp": [1.3, 1.2, 1.45], "ar_sgd": [1.0, 1.0, 1.0]}
    done = conducted(tmp_path, losses, ["loss"])
    (loss,) = compare(done)
    first, second = (difference_note(loss.comparisons[name]) for name in ("sgp", "osgp"))
    assert first == "= +0.2 (-0.048 to +0.45 nats), p = 0.074"
    assert second == "▼ +0.32 (+0.0041 to +0.63 nats, unadjusted), p = 0.049"
    (line,) = (line for line in table_tex(done, [loss], ["loss"]).splitlines() if "caption" in line)
    assert "3 seeds with 95 \\% intervals of each mean, unadjusted; + and - mark" in line

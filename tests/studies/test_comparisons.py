"""The rules of a comparison, on runs that are pretended."""

from __future__ import annotations

from math import inf
from pathlib import Path

from helpers.studied import conducted

from sgp_runner.studies.comparisons import answer, compare
from sgp_runner.studies.study_table import comparison_table


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
    done = conducted(tmp_path / "finite", {"sgp": [inf, 2.0], "ar_sgd": [1.0, 1.1]}, ["loss"])
    (loss,) = compare(done)
    assert loss.values["sgp"] == (2.302585092994046, 2.0)

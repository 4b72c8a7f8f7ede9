"""The page of the papers' tables, from rehearsals with known losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduce import runs
from reproduce.rehearsals import rehearsal_section, stated_section
from reproduce.runs import jobs, rehearsal, rows_of

CIFAR = "slowmo_cifar10"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "OUT", tmp_path / "results" / "reproduced")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finish(row: str, *losses: float) -> None:
    """Leave the summaries of a row's rehearsals, with the seeds from 1 on."""
    for seed, loss in enumerate(losses, 1):
        folder = rehearsal(row, seed).folder
        folder.mkdir(parents=True)
        facts = {"metric": "accuracy", "average": 0.5, "average_loss": loss}
        facts |= {"model": "mlp", "data": "shapes"}
        (folder / "summary.json").write_text(json.dumps(facts))


def lines(section: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("| slowmo")
    ]


def test_a_table_without_runs_says_that_they_are_still_to_be_made() -> None:
    section = rehearsal_section(CIFAR)
    assert [line[:4] for line in lines(section)][:2] == [
        ["slowmo_cifar10_local_sgd", "91.73", "7", "to be run"],
        ["slowmo_cifar10_local_sgd_slowmo", "93.2", "4", "to be run"],
    ]
    assert "**21 of 21 runs are still to be made:** `scripts/reproduce.py rehearsal`." in section
    assert "- Quality: not known until all runs are made." in section


def test_a_row_counts_with_all_of_its_seeds() -> None:
    finish("slowmo_cifar10_sgp", 0.9, 0.8)
    assert {line[3] for line in lines(rehearsal_section(CIFAR))} == {"to be run"}
    assert "**19 of 21 runs" in rehearsal_section(CIFAR)


def test_a_finished_table_has_both_orders_and_their_correlation() -> None:
    for place, row in enumerate(rows_of(CIFAR)):
        finish(row, 0.5 + place / 10, 0.6 + place / 10, 0.7 + place / 10)
    section = rehearsal_section(CIFAR)
    first, *_, last = lines(section)
    assert first[1:6] == ["91.73", "7", "0.600 (0.500 to 0.700)", "1", "50.0"]
    assert last[:6] == [
        "slowmo_cifar10_ar_sgd",
        "92.66",
        "6",
        "1.200 (1.100 to 1.300)",
        "7",
        "50.0",
    ]
    assert "- Quality: Kendall's tau -0.43 (95 %: -0.84 to 0.28, 7 rows)." in section
    assert "still to be made" not in section and section.count("Ours: mlp on shapes.") == 1


def test_a_diverged_run_counts_as_guessing() -> None:
    finish("slowmo_cifar10_sgp", 0.9, 0.8)
    folder = rehearsal("slowmo_cifar10_sgp", 3).folder
    folder.mkdir(parents=True)
    (folder / "diverged.json").write_text("{}")
    (line,) = (each for each in lines(rehearsal_section(CIFAR)) if each[0] == "slowmo_cifar10_sgp")
    assert line[3:6] == ["1.334 (0.800 to 2.303)", "1", ""]


def test_orders_stated_in_words_are_answered_by_losses_of_the_same_seeds() -> None:
    assert stated_section().count("to be run") == 4
    finish("gapaware_cifar10_gap_aware", 0.5, 0.6, 0.9)
    finish("gapaware_cifar10_asgd", 0.8, 0.8, 0.8)
    assert "yes: loss 0.667 and 0.800; 2 of 3 seeds" in stated_section()


def test_rehearsals_are_runs_of_presets_under_names_of_their_own() -> None:
    names = [job.name for job in jobs(["rehearsal"])]
    assert len(names) == len({*names}) == 3 * (5 + 7 + 7 + 5 + 3 + 3)
    assert names[0] == "rehearsed-sgp_ar_sgd_90-s1" and all("rehearsed-" in each for each in names)

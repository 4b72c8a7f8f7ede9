"""Errors of the tables in ``docs/validation.md``: literal values."""

from __future__ import annotations

import pytest

from sgp_runner.report.read.published import published
from validation import page, sources
from validation.cells import Cell, cells, mean_and_worst


def cells_of(table: str, *labels: str) -> list[Cell]:
    return [cell for cell in cells() if cell.table == table and set(labels) <= set(cell.labels)]


def errors_of(table: str, *labels: str) -> list[float]:
    return [round(cell.error, 1) for cell in cells_of(table, *labels)]


@pytest.mark.parametrize(
    ("table", "library", "limited", "free"),
    [
        ("rings", "nccl", (0.6, 1.3), (2.7, 4.1)),
        ("rings", "gloo", (1.7, 4.6), (0.1, 0.2)),
        ("sends", "nccl", (1.0, 2.8), (2.2, 5.9)),
        ("sends", "gloo", (0.4, 1.4), (1.6, 3.7)),
    ],
)
def test_errors_on_links_with_and_without_a_rate(
    table: str, library: str, limited: tuple[float, float], free: tuple[float, float]
) -> None:
    fitted = cells_of(table, library)
    assert all(cell.fitted for cell in fitted)
    split = [[cell for cell in fitted if ("not limited" in cell.labels) == yes] for yes in (0, 1)]
    assert [len(part) for part in split] == [12, 4 if table == "rings" else 8]
    assert [rounded(part) for part in split] == [limited, free]


def rounded(listed: list[Cell]) -> tuple[float, float]:
    mean, worst = mean_and_worst(cell.error for cell in listed)
    return round(mean, 1), round(worst, 1)


def test_windows_between_regions() -> None:
    pairs = cells_of("regions")
    assert len(pairs) == 63
    fitted = [cell for cell in pairs if cell.fitted]
    assert len(fitted) == 35 and rounded(fitted) == (4.4, 13.5)
    assert rounded([cell for cell in pairs if not cell.fitted]) == (6.1, 12.2)
    assert errors_of("regions", "Tokyo", "Seoul") == [-0.9, 0.0]


def test_errors_of_predicted_times() -> None:
    errors: dict[tuple[str, ...], list[float]] = {
        ("jobs",): [0.0, -3.4, 0.0, -7.3, 0.0, 2.1],
        ("torchft",): [0.2, -12.7, -0.6],
        ("delay",): [3.0, 1.4, 6.3, 2.4, -5.5],
        ("diloco", "50 Mbit/s", "H = 8"): [-0.2],
        ("diloco", "not shaped", "H = 32"): [-2.3],
    }
    assert {labels: errors_of(*labels) for labels in errors} == errors
    assert len(cells_of("diloco")) == 15


def test_a_training_script_on_eight_machines_was_predicted() -> None:
    """Constants are fitted on four; NCCL at AWS's own rate on 16 was predicted too."""
    script = cells_of("script")
    assert rounded([cell for cell in script if cell.fitted]) == (4.4, 9.7)
    assert rounded([cell for cell in script if not cell.fitted]) == (7.4, 13.4)
    assert errors_of("rings16") == [-9.6, -3.9, -0.6, 0.0]


def test_a_source_has_its_predicted_times_and_a_dot_for_each_time() -> None:
    slow = next(source for source in sources.SOURCES if "D-PSGD" in source.title)
    count, predicted, mean, worst = sources.scores(slow)
    assert (count, predicted, round(mean, 1), round(worst, 1)) == (12, True, 19.5, 29.6)
    assert len(sources.row_of(slow, 0)) == 1 + 12 and sources.MISSED in sources.row_of(slow, 0)[1]
    assert [sources.place(ratio) for ratio in (0.5, 1.0, 2.0)] == [250.0, 477.0, 704.0]


def test_a_table_has_a_line_or_a_place_for_each_cell_and_their_errors() -> None:
    lines = page.times("torchft").splitlines()
    assert (lines[0], lines[2], lines[-1]) == (
        "|  | real | simulated | error |",
        "| torchft, 100 Mbit/s, period | 20.87 | 20.9 | +0.2 % (fitted) |",
        "Errors of 2 predicted times: **mean 6.6 %, worst 12.7 %**.",
    )
    lines = page.times("sends").splitlines()
    assert lines[0] == (
        "| delay | rate | nccl, 64 MiB | nccl, 128 MiB | gloo, 64 MiB | gloo, 128 MiB |"
    )
    assert lines[2].startswith("| 0 ms | not limited | 0.055 (+1.8 %) | 0.112 (-0.1 %) | 0.107 (")
    assert lines[-1] == "Errors of 40 fitted times: **mean 1.2 %, worst 5.9 %**."


def test_times_of_papers_are_the_published_ones() -> None:
    rows = [row for row in published() if row.startswith(("sgp_", "slowmo_"))]
    timed = {row: published()[row]["ms_per_iteration"].value for row in rows if is_timed(row)}
    papers = {cell.cell: 1000 * cell.seconds for cell in [*cells_of("sgp"), *cells_of("slowmo")]}
    assert papers == pytest.approx(timed) and len(papers) == 17


def is_timed(row: str) -> bool:
    return "ms_per_iteration" in published()[row]


@pytest.mark.slow
def test_a_published_row_is_left_out_by_fitting_its_constant_on_its_twin() -> None:
    (cell,) = cells_of("slowmo", "slowmo_wmt16_sgp")
    assert page.error(cell) == "+0.0 % (fitted; left out: +2.4 %)"

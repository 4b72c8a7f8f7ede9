"""Bandwidths of Streaming DiLoCo: times by hand, and the page."""

from __future__ import annotations

import pytest

import streaming_diloco as script

BITS = 16 * 0.86e9  # of an exchange of the whole model


def test_steps_of_diloco_and_of_data_parallel_by_hand() -> None:
    diloco = script.study("1B", "diloco", script.TRAVELLING)
    assert script.step_seconds(diloco, 2.0) == pytest.approx(
        (100 * 0.1 + BITS / 2e9 - 0.667 * 0.1) / 100, rel=1e-9
    )
    parallel = script.study("1B", "data_parallel", script.TRAVELLING)
    assert script.step_seconds(parallel, 100.0) == pytest.approx(
        0.1 + BITS / 100e9 - 0.667 * 0.1, rel=1e-9
    )


def test_the_smallest_bandwidth_of_the_grid_that_reaches_a_utilisation() -> None:
    run = script.study("1B", "diloco", script.TRAVELLING)
    # Half of the time: an exchange takes 100 steps longer than it is hidden.
    least = BITS / 1e9 / (100 * 0.1 + 0.667 * 0.1)
    assert script.needed(run, 50) == pytest.approx(10 ** (-1 + 14 * 4 / 49))
    assert script.GRID[13] < least < script.GRID[14]


def test_a_published_figure_counts_as_its_nearest_cell() -> None:
    assert [script.cell_of(rounded) for rounded in (0.1, 1.4, 0.4, 1000)] == [0, 14, 7, 49]


def test_the_page_has_the_simulated_cells_beside_the_published_ones() -> None:
    text = (script.OURS / "README.md").read_text(encoding="utf-8")
    for model in script.NOMINAL:
        assert script.bandwidths_of(model) in text
    assert "**24 are met, 25 within one cell**" in script.bandwidths_of("1B")
    assert "**16 are met, 25 within one cell**" in script.bandwidths_of("10B")
    assert "**15 are met, 25 within one cell**" in script.bandwidths_of("100B")

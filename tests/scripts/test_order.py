"""Published and our order of a table's rows."""

from __future__ import annotations

import pytest

from reproduce.order import agreement, interval, ranks, stated, tau
from sgp_runner.config.choices import groups


def test_kendalls_tau_counts_pairs_in_the_same_order() -> None:
    assert tau([1, 2, 3, 4], [1, 2, 3, 4]) == 1 and tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)  # 5 pairs less 1


def test_an_interval_is_that_of_fishers_z() -> None:
    # atanh(0.5) = 0.549306; 1.959964 * sqrt(0.437 / 6) = 0.528949
    assert interval(0.5, 10) == (
        pytest.approx(0.020355, abs=1e-6),
        pytest.approx(0.792551, abs=1e-6),
    )
    # A perfect order of 7 rows counts as 1 - 2 / 42.
    assert interval(1.0, 7) == interval(1 - 2 / 42, 7)
    low, high = interval(-1.0, 7)
    assert (low, high) == (pytest.approx(-0.9891, abs=1e-4), pytest.approx(-0.8036, abs=1e-4))


def test_a_large_table_has_a_correlation_with_its_interval() -> None:
    published = {str(row): float(row) for row in range(6)}
    turned = {row: -value for row, value in published.items()}
    assert agreement(published, published) == "Kendall's tau 1.00 (95 %: 0.65 to 0.99, 6 rows)"
    assert agreement(published, turned) == "Kendall's tau -1.00 (95 %: -0.99 to -0.65, 6 rows)"


def test_a_small_table_lists_the_pairs_that_are_not_in_the_published_order() -> None:
    published = {"sgp": 2.0, "ar_sgd": 1.0, "osgp": 2.0}
    assert agreement(published, {"sgp": 3.0, "ar_sgd": 1.0, "osgp": 2.0}) == (
        "2 of 2 pairs in the published order"
    )
    assert agreement(published, {"sgp": 3.0, "ar_sgd": 2.0, "osgp": 2.0}) == (
        "1 of 2 pairs in the published order; not ar_sgd and osgp"
    )


def test_equal_values_share_a_rank() -> None:
    assert ranks({"a": 2.0, "b": 1.0, "c": 2.0, "d": 3.0}) == {"a": 2, "b": 1, "c": 2, "d": 4}


def test_what_papers_state_in_words_is_about_presets() -> None:
    every = list(stated())
    assert [(each.measure, each.better, each.worse) for each in every] == [
        ("loss", "gapaware_cifar10_gap_aware", "gapaware_cifar10_staleness_aware"),
        ("loss", "gapaware_cifar10_gap_aware", "gapaware_cifar10_asgd"),
        ("time", "pipesgd_pipe_sgd", "pipesgd_ps_sync"),
        ("time", "pipesgd_pipe_sgd", "pipesgd_d_sync"),
    ]
    presets = groups()["experiment"]
    assert all({each.better, each.worse} <= {*presets} and each.source for each in every)

"""Published and our order of a table's rows."""

from __future__ import annotations

import pytest

from reproduce.order import agreement, tau


def test_kendalls_tau_counts_pairs_in_the_same_order() -> None:
    assert tau([1, 2, 3, 4], [1, 2, 3, 4]) == 1 and tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)  # 5 pairs less 1


def test_a_large_table_has_a_correlation_for_each_seed() -> None:
    published = {str(row): float(row) for row in range(6)}
    turned = {row: -value for row, value in published.items()}
    assert agreement(published, [published]) == "tau 1.00"
    assert agreement(published, [published, turned]) == "tau 0.00 (-1.00 to 1.00 over 2 seeds)"


def test_a_small_table_lists_the_pairs_that_are_not_in_the_published_order() -> None:
    published = {"sgp": 2.0, "ar_sgd": 1.0, "osgp": 2.0}
    assert agreement(published, [{"sgp": 3.0, "ar_sgd": 1.0, "osgp": 2.0}]) == "2 of 2 pairs"
    assert agreement(published, [{"sgp": 3.0, "ar_sgd": 2.0, "osgp": 2.0}]) == (
        "1 of 2 pairs; not ar_sgd and osgp"
    )

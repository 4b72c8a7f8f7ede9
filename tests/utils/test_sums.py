"""Sums of floating-point numbers."""

from sgp_runner.utils.sums import sum_in_order


def test_numbers_are_added_from_left_to_right_in_every_version_of_python() -> None:
    assert sum_in_order([0.1] * 10) == 0.9999999999999999
    assert sum_in_order(iter([1e16, 1.0, -1e16])) == 0.0
    assert repr(sum_in_order([2, 3])) == "5" and repr(sum_in_order([])) == "0"

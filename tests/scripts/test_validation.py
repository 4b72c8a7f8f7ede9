"""Constants and errors of the tables in ``docs/validation.md``: literal values."""

from __future__ import annotations

import pytest

from validation.tcp import achieved, shares


def test_tcp_achieves_the_same_share_of_every_rate_that_links_limit() -> None:
    assert [(nodes, rate, round(part, 4)) for nodes, rate, part in shares()] == [
        (4, 100e6, 0.9478),
        (4, 300e6, 0.9479),
        (4, 1000e6, 0.8422),
        (8, 100e6, 0.9483),
        (8, 300e6, 0.9476),
        (8, 1000e6, 0.802),
    ]
    assert achieved(1e9) == pytest.approx(947.89e6, abs=0.01e6)

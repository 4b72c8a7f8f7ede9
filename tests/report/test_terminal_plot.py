"""The plot of a ranking in characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.report_runs import settings_of, write_run

from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.render import terminal as module
from sgp_runner.report.render.terminal import terminal_plot

LAB = {"cluster": {"name": "lab"}, "timed_as": {"model": "resnet50"}}
CURVE = [[0.5], [0.7], [0.7], [0.95]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WIDTH", 25)
    monkeypatch.setattr(module, "HEIGHT", 5)


def drawn(root: Path, target: float) -> str:
    (ranking,) = rankings(settings_of(root), target)
    return terminal_plot(ranking)


def test_settings_are_drawn_with_their_ranks_over_time_at_which_factors_are_distances(
    tmp_path: Path,
) -> None:
    curve = [*CURVE[:-1], [0.9]]
    write_run(tmp_path, "slow", curve, algorithm="AR-SGD", seconds=40.0, settings=LAB)
    write_run(tmp_path, "fast", curve, seconds=10.0, settings=LAB)
    assert drawn(tmp_path, 0.85).splitlines() == [
        "mlp trained, clock of ResNet-50 on",
        "2 nodes of lab, simulated",
        "    90 % ┤            1           2",
        "    80 % ┤···········1···········2·",
        "    70 % ┤     111111      222222",
        "    60 % ┤  111         222",
        "    50 % ┤11          22",
        "         └┬───────────────┬─────┬──",
        "          10 s          1 min 2 min",
        "1 SGP   2 AR-SGD",
    ]
    # Near 1 the axis is one of errors.
    assert drawn(tmp_path, 0.9).splitlines()[2:7] == [
        "    90 % ┤············1···········2",
        "         ┤            1           2",
        "    80 % ┤           1           2",
        "         ┤    1111111     2222222",
        "    50 % ┤1111        2222",
    ]


def test_a_setting_that_never_reaches_the_target_is_drawn_and_a_measured_clock_is_called_so(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "fast", CURVE, clock="wall")
    write_run(tmp_path, "never", [[0.5], [0.6]], algorithm="AR-SGD", clock="wall")
    assert drawn(tmp_path, 0.9).splitlines() == [
        "mlp trained, 2 nodes, measured",
        "    95 % ┤                        1",
        "    90 % ┤······················11·",
        "    80 % ┤                    11",
        "         ┤       1111111111111",
        "    50 % ┤1111111222222",
        "         └┬───────────┬────────────",
        "          10 s      20 s",
        "1 SGP   2 AR-SGD",
    ]


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "studies", "timed")
    write_run(tmp_path / "single", "one", [[0.5]])
    write_run(tmp_path / "ideal", "no time passes", CURVE, seconds=0.0)
    for name in ("studies", "single", "ideal"):
        assert drawn(tmp_path / name, 0.5) == ""

"""Constants and errors of the tables in ``docs/validation.md``: literal values."""

from __future__ import annotations

import pytest

from sgp_runner.cluster.hardware import Cluster
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.report.read.published import published
from validation import diloco, slowmo
from validation.tcp import achieved


def test_tcp_achieves_the_same_share_of_every_rate() -> None:
    assert [achieved(1e9), achieved(100e6)] == pytest.approx([947.89e6, 94.789e6], abs=0.01e6)


def test_profiles_have_the_constants_of_the_measured_runs_with_one_inner_step() -> None:
    assert diloco.step_seconds() == pytest.approx(
        cluster("").compute.step_seconds["llama_30m"], abs=5e-6
    )
    assert diloco.connect_seconds() == pytest.approx(
        cluster("").collectives.connect_seconds, abs=5e-4
    )
    for rate, bandwidth in diloco.ring_bandwidths().items():
        profile = cluster(diloco.PROFILES[rate])
        assert profile.collectives.all_reduce_bandwidth == pytest.approx(bandwidth, rel=1e-3)
        assert rate is None or profile.links.bandwidth == rate


def cluster(which: str) -> Cluster:
    with configs():
        return make_experiment(compose(parse([f"cluster=diloco_l40s{which}"]))).run.cluster


def test_measured_steps_of_diloco_are_predicted_from_those_with_one_inner_step() -> None:
    found = {cell.words: cell for cell in diloco.measured()}
    assert len(found) == 15
    fifty, unshaped = found["H = 8", "50 Mbit/s"], found["H = 32", "not shaped"]
    assert (fifty.window, fifty.syncs) == ((8, 79), 9)
    assert (unshaped.window, unshaped.syncs) == ((20, 149), 4)
    errors = [round(diloco.cell_of(cell).error, 1) for cell in (fifty, unshaped)]
    assert errors == [-0.2, -2.3]


@pytest.mark.slow
def test_a_published_row_is_left_out_by_fitting_its_constant_on_its_twin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowmo, "STEPS", 48)
    cell = slowmo.cell_of("slowmo_wmt16_sgp")
    assert (cell.fitted, round(cell.error, 1), round(cell.error_left_out, 1)) == (True, 0.0, 2.4)
    rows = [row for row in published() if slowmo.is_timed(row)]
    assert len(rows) == 12 and "slowmo_cifar10_sgp" not in rows

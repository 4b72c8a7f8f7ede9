"""Calibration: fits on literal values, the simulator's own constants found again, the file read
back, and real processes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.clusters import changed, cluster_of
from helpers.experiments import make_experiment
from helpers.paths import RANKS
from helpers.tiny import run

from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.assembly.networks.gloo import Gloo
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.calibration.fit import (
    Line,
    constants,
    fit_line,
    fit_proportion,
    leave_one_out,
    points_of,
    slowest,
    spread,
)
from sgp_runner.calibration.probe import FILE, Measured, Probe, measuring
from sgp_runner.calibration.profile import CalibratedSetting, profile
from sgp_runner.cli.calibrate import prepared
from sgp_runner.cli.main import main
from sgp_runner.cluster.coding_times import CodingTimes
from sgp_runner.cluster.compute_variation import ConstantTime, LogNormalTime
from sgp_runner.cluster.validated import Validated
from sgp_runner.config.command_line import search_in
from sgp_runner.core.codecs.all_codecs import CODECS

# 2 s and 1 ms per byte; a ring of four takes 2 * 3 * (2 s + 1/4 of 2 ms per byte).
MEASURED = Measured(
    nodes=4,
    cores_per_host=1.0,
    ranks_per_host=1,
    num_bytes=4000,
    exchanges={1000: [3.0, 3.0, 3.0], 2000: [4.0], 4000: [6.0, 6.0]},
    all_reduces={1000: [15.0], 2000: [18.0], 4000: [24.0]},
    steps=[10.0, 9.0, 11.0],
    barriers=[1.0],
    locked_steps=[12.0],
    mean_steps=[31.5],
    mixing=[0.5, 0.3, 0.4],
    serving=[0.9, 0.8, 2.0],
    streaming=[2.6, 2.4],
    quiet_steps=[10.0, 9.0, 12.0],
    busy_steps=[10.4, 9.6, 12.2],
    busy_bytes=[2000.0, 2000.0, 4000.0],
    encodes={"int8": {100: [1.0, 2.0, 4.0], 1000: [30.0]}, "low_rank": {500: [1.0], 1000: [4.0]}},
    decodes={"int8": {100: [0.5], 1000: [5.0]}, "low_rank": {500: [1.0], 1000: [1.0]}},
    model_works={"int8": 1000, "low_rank": 1000, "top_k": 0},
)


def test_a_line_through_medians_weighed_by_their_spread() -> None:
    assert fit_line({1: [3.0], 2: [5.0], 4: [9.0]}) == Line(pytest.approx(1.0), pytest.approx(2.0))
    assert fit_line({1: [2.0], 2: [1.0]}) == Line(
        0.0, pytest.approx(4 / 6.8)
    )  # slower for less: through the origin
    assert fit_line({1: [1.0], 2: [3.0]}) == Line(
        0.0, pytest.approx((1 + 6 / 9) / (1 + 4 / 9))
    )  # below the origin: through it
    assert spread([5.0]) == pytest.approx(0.1)  # 2 % of it
    assert spread([1.0, 2.0, 3.0, 4.0, 9.0]) == pytest.approx((4 - 2) / 2 / 5**0.5)
    loose = fit_line({1: [3.0], 2: [1.0, 50.0, 99.0], 4: [9.0]})
    assert (loose(1), loose(4)) == (pytest.approx(3.0, rel=0.01), pytest.approx(9.0, rel=0.01))


def test_a_line_is_exact_at_the_models_own_size() -> None:
    line = fit_line({1: [3.0], 2: [5.5], 4: [9.0]}, through=4)
    slope = (3 * 6 / 3.0**2 + 2 * 3.5 / 5.5**2) / (
        3**2 / 3.0**2 + 2**2 / 5.5**2
    )  # weights are 1 / 3^2 and 1 / 5.5^2, times 1 / 0.02^2
    assert (line(4), line.slope) == (pytest.approx(9.0), pytest.approx(slope))
    assert fit_line({1: [1.0], 2: [3.0]}, through=2) == Line(
        0.0, 1.5
    )  # below the origin: through it


def test_each_size_is_predicted_by_the_line_through_the_others() -> None:
    points = points_of({1: [3.0], 2: [5.5], 4: [9.0]}, 4)
    assert [point.left_out for point in points] == [
        pytest.approx(3.75),
        pytest.approx(5.0),
        pytest.approx(10.5),
    ]
    assert leave_one_out(points) == pytest.approx((0.75 / 3 + 0.5 / 5.5 + 1.5 / 9) / 3)


def test_constants_of_literal_measurements() -> None:
    found = constants(MEASURED)
    assert (
        found.latency_seconds,
        found.bandwidth,
        found.all_reduce_latency_seconds,
        found.all_reduce_bandwidth,
    ) == pytest.approx((2.0, 8000.0, 2.0, 4000.0))
    assert slowest(4) == pytest.approx(1.0491, abs=1e-4)
    assert (found.step_seconds, found.cv, found.overlap) == pytest.approx(
        (10.0, (11 / 10 - 1) / slowest(4), (11 + 24 - 31.5) / 10)
    )
    assert (
        found.mixing_seconds_per_byte,
        found.passing_seconds_per_byte,
        found.serving_seconds_per_byte,
    ) == pytest.approx((0.4 / 4000, 0.4 / 2000, 0.9 / 4000))
    assert constants(
        replace(MEASURED, streaming=[0.4, 0.3, 0.4])
    ).serving_seconds_per_byte == pytest.approx(0.4 / 4000)


def test_coding_takes_a_time_in_proportion_to_the_numbers() -> None:
    found = constants(MEASURED)
    assert found.encode_seconds == {"int8": pytest.approx(0.03), "low_rank": pytest.approx(0.004)}
    assert found.decode_seconds == {"int8": pytest.approx(0.005), "low_rank": pytest.approx(0.001)}
    shared = replace(MEASURED, cores_per_host=1.0, ranks_per_host=2)
    assert constants(shared).encode_seconds["int8"] == pytest.approx(0.015)
    small, large = points_of(MEASURED.encodes["int8"], 1000, fit_proportion)
    assert (small.fitted, small.left_out, large.fitted, large.left_out) == pytest.approx(
        (3.0, 3.0, 30.0, 20.0)
    )
    assert leave_one_out([small, large]) == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_work_of_ranks_that_share_a_core_takes_each_of_them_less_alone() -> None:
    found = constants(replace(MEASURED, cores_per_host=1.0, ranks_per_host=2))
    assert (found.cores_per_host, found.ranks_per_host) == (1.0, 2)
    assert (found.step_seconds, found.mixing_seconds_per_byte, found.passing_seconds_per_byte) == (
        5.0,
        pytest.approx(0.2 / 4000),
        pytest.approx(0.2 / 2000),
    )
    # The slower of two hosts: the times of both ranks on it add up.
    assert found.cv == pytest.approx(0.1 * 2**0.5 / slowest(2))
    assert constants(replace(MEASURED, cores_per_host=2.0, ranks_per_host=2)).step_seconds == 10.0


def test_what_a_mean_gradient_takes_longer_is_latency() -> None:
    found = constants(replace(MEASURED, mean_steps=[38.0]))
    assert found.overlap == 0.0
    assert found.all_reduce_latency_seconds == pytest.approx(2.0 + (38 - 11 - 24) / 6)


def test_a_profile_is_a_choice_of_cluster_and_is_read_as_it_was_meant(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    text = profile(
        MEASURED,
        CalibratedSetting(
            *("ours", "mlp", 8, "rendezvous"),
            *("sgp-run calibrate name=ours", "a machine", "2026-01-01T00:00"),
        ),
    )
    (tmp_path / "cluster/ours.yaml").write_text(text)
    assert make_experiment(
        tmp_path, search_in(str(tmp_path)), "cluster=ours", "model=mlp"
    ).run.cluster == cluster_of(
        {"mlp": 10.0},
        LogNormalTime(0.09532),
        bandwidth=8000.0,
        latency_seconds=2.0,
        node_factors={},
        step_batch={"mlp": 8},
        overlap=0.35,
        bucket_bytes=1,
        name="ours",
        protocol="rendezvous",
        validated=Validated(nodes=4, bandwidth=8000.0),
        all_reduce_bandwidth=4000.0,
        all_reduce_latency_seconds=2.0,
        cores_per_host=1.0,
        ranks_per_host=1,
        passing_seconds_per_byte=0.0002,
        mixing_seconds_per_byte=0.0001,
        serving_seconds_per_byte=0.000225,
        codecs=CodingTimes(
            {"int8": 0.03, "low_rank": 0.004}, {"int8": 0.005, "low_rank": 0.001}, overlap=False
        ),
    )
    assert text.startswith(
        "# Measured by sgp-run calibrate name=ours\n# on a machine, 2026-01-01T00:00.\n# Valid "
        "for 4 nodes "
    )
    assert "#   2000: 4000 (4000 to 4000 of 1) | 4000 | 4000, +0.0%\n" in text
    assert "| without this size, mean error 41.7%\n#   100: 2000 (1000 to 4000 of 3) |" in text
    assert Measured.from_json(MEASURED.to_json()) == MEASURED


def test_the_simulators_own_constants_are_found_again(tmp_path: Path) -> None:
    cluster = cluster_of(
        {"default": 2.0},
        ConstantTime(),
        bandwidth=8000.0,
        latency_seconds=0.5,
        node_factors={},
        overlap=0.25,
        bucket_bytes=1,
        all_reduce_bandwidth=4000.0,
        cores_per_host=1.0,
        ranks_per_host=2,
        passing_seconds_per_byte=0.0001,
        codecs=CodingTimes({"int8": 0.25}, {"int8": 0.125, "top_k": 0.5}),
    )
    probe = Probe(tmp_path, (64, 256, 1024), (256, 512), seconds=4.0, location=lambda: (0, 2.0))
    run(probe, 4, 1, cluster=cluster)
    found = constants(Measured.from_json((tmp_path / FILE).read_text()))
    assert (found.step_seconds, found.cv, found.mixing_seconds_per_byte) == (
        pytest.approx(2.0),
        0.0,
        0.0,
    )
    assert (
        found.latency_seconds,
        found.bandwidth,
        found.all_reduce_latency_seconds,
        found.all_reduce_bandwidth,
    ) == pytest.approx((0.5, 8000.0, 0.5, 4000.0))
    assert (found.overlap, found.passing_seconds_per_byte) == pytest.approx((0.25, 0.0001))
    assert found.encode_seconds == {"int8": pytest.approx(0.25)}
    assert found.decode_seconds == {"int8": pytest.approx(0.125), "top_k": pytest.approx(0.5)}


def test_a_server_answers_one_gradient_after_the_other() -> None:
    """Two gradients of 24 bytes come in after 1 s. One takes 1 s to answer; on a server that is
    twice as slow, 2 s.
    """
    times = []
    for seconds, factors in ((0.0, {}), (1.0, {}), (1.0, {2: 2.0})):
        cluster = cluster_of(
            {"default": 1.0},
            ConstantTime(),
            1e18,
            0.0,
            factors,
            serving_seconds_per_byte=seconds / 24,
        )
        times.append(
            [time for time, rank, _ in run(GapAware(), 2, 3, cluster=cluster).trace if rank == 2]
        )
    assert times == [
        pytest.approx([1, 1, 2, 2, 3, 3]),
        pytest.approx([2, 3, 4, 5, 6, 7]),
        pytest.approx([3, 5, 7, 9, 11, 13]),
    ]


def test_an_all_reduce_has_a_bandwidth_and_a_latency_of_its_own() -> None:
    cluster = cluster_of({"default": 1.0}, ConstantTime(), 8.0, 1.0, {}, all_reduce_bandwidth=4.0)
    assert cluster.all_reduce_seconds(2, 8.0) == pytest.approx(2 * 1 * (1 + 8.0))
    assert changed(cluster, all_reduce_latency_seconds=0.0).all_reduce_seconds(
        2, 8.0
    ) == pytest.approx(2 * 1 * 8.0)


def test_real_processes_are_measured(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "network=gloo", "nodes=2", "model=mlp", "name=tiny")
    launch(experiment, (str(RANKS / "calibration_rank.py"),))
    found = Measured.from_json((experiment.directory / FILE).read_text())
    assert (found.nodes, found.num_bytes, list(found.exchanges), list(found.all_reduces)) == (
        2,
        19240,
        [1024, 19240, 65536],
        [1024, 19240, 65536],
    )
    times = [
        *found.steps,
        *found.barriers,
        *found.locked_steps,
        *found.mean_steps,
        *found.mixing,
        *found.serving,
        *found.streaming,
        *found.quiet_steps,
        *found.busy_steps,
    ]
    have = constants(found)
    assert have.encode_seconds.keys() == have.decode_seconds.keys() == CODECS.keys()
    times += [*have.encode_seconds.values(), *have.decode_seconds.values(), have.step_seconds]
    assert min(*times, *found.busy_bytes, have.bandwidth, have.all_reduce_bandwidth) > 0


def test_messages_on_one_machine_are_measured_over_tcp_unless_asked_otherwise() -> None:
    overrides = ["nodes=2", "name=here", "model=mlp"]
    for more, expected in (([], False), (["network.shared_memory=true"], True)):
        network = prepared([*overrides, *more]).run.network
        assert isinstance(network, Gloo) and network.shared_memory is expected
    assert prepared([*overrides, "network=sim"]).run.network.name == "sim"


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_the_command_writes_a_profile_that_the_simulator_takes(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "sgp_runner"]
    done = subprocess.run(
        [*program, "calibrate", "nodes=2", "model=mlp", "name=here"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith(
        "results/cluster/here.yaml: simulate with sgp-run --config-dir results cluster=here\n"
    )
    cluster = ("--config-dir", "results", "cluster=here")
    subprocess.run(
        [*program, *cluster, "nodes=2", "model=mlp", "epochs=0.1", "logger=jsonl"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["nodes=1"], "nodes: a single node sends no messages: use nodes=2 or more."),
        (
            ["name=my-machine"],
            (
                "name: 'my-machine' is not a valid name for a cluster: use a letter, then letters, "
                "digits and _."
            ),
        ),
        (
            ["algo=gap_aware"],
            (
                "algo: Gap-Aware has a server, which a calibration cannot use: leave the "
                "algorithm out."
            ),
        ),
        (
            ["network=sim", "model=timing_only"],
            ("model: timing_only has no computation to time: choose the model that you train."),
        ),
        (["nods=4"], "nods: there is no such setting"),
    ],
)
@pytest.mark.usefixtures("in_an_empty_folder")
def test_what_cannot_be_calibrated(
    overrides: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *overrides]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_calibrates_the_simulator_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = make_experiment(
        tmp_path, "network=sim", "nodes=2", "model=mlp", "cluster.compute_time=constant", "name=run"
    )
    execute(measuring(experiment, sizes=(1024, 4096, 16384), coded=(512,), seconds=0.1))
    assert capsys.readouterr().out == ""  # there are no steps, epochs or accuracy to show
    found = constants(Measured.from_json((experiment.directory / FILE).read_text()))
    assert (found.bandwidth, found.latency_seconds, found.step_seconds) == (
        pytest.approx(1e10),
        pytest.approx(50e-6),
        pytest.approx(0.05),
    )

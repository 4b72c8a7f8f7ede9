"""``sgp-run plan``: literal times, costs and memory of small plans, and refused requests."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sgp_runner.api.running import run
from sgp_runner.cli.main import main
from sgp_runner.cluster.regions import Region
from sgp_runner.config.composed import PREPARED, chosen_once, composed_once
from sgp_runner.config.overrides import experiment_of, prepare_algorithms
from sgp_runner.plan.comparison import MethodCost, PlannedMethods, compare
from sgp_runner.plan.known_quality import all_known, extrapolated, is_near, near_until
from sgp_runner.plan.methods import DATA_PARALLEL, SAVES, method, methods, simplest
from sgp_runner.plan.models import known_models
from sgp_runner.plan.request import machines, read_request
from sgp_runner.plan.table import assumptions, faults, quality, table
from sgp_runner.plan.timing import (
    LEAST_VARYING_STEPS,
    TimesByRate,
    break_even,
    highest_rate,
    latency_of,
    rate_of,
    steps_of,
    time_steps,
    with_latency,
)
from sgp_runner.plan.words import both_ends
from sgp_runner.report.read.published import published
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import RATE_INTERVAL

# A billion parameters of 4 bytes, all-reduced by two nodes at 8 Gbit/s: 4 s after a step of 1 s.
WORDS = "parameters=1e9 step=1s nodes=2 bandwidth=8Gbit/s latency=0 cluster.collectives.overlap=0"


def plan(arguments: str) -> PlannedMethods:
    return compare(read_request(arguments.split()))


def row(plan: PlannedMethods, title: str) -> MethodCost:
    return next(cost for cost in plan.rows if cost.title == title)


def test_bytes_between_sites_are_part_of_the_cost() -> None:
    made = plan(
        "parameters=1e9 step=1s nodes=4 sites=2 bandwidth=10Gbit/s site_bandwidth=1Gbit/s "
        "site_latency=30ms steps=1000 site_price_per_gb=0.02 methods=ar_sgd,diloco,sgp periods=100"
    )
    # GB per step and direction: 4 in a ring of two leaders; the codes of two nodes, or of a site;
    # of SGP's messages, one per site crosses in every other step, and two in the others.
    for title, gigabytes in {
        "Data parallel": 4,
        "Data parallel, int8": 2,
        "Data parallel, int8, per site": 1,
        "DiLoCo, H 100": 0.04,
        "SGP": 6,
        "SGP, per site": 4,
    }.items():
        assert row(made, title).cost == pytest.approx(1000 * 2 * gigabytes * 0.02, rel=2e-3), title


def test_times_costs_and_memory_are_those_of_the_simulated_machines() -> None:
    made = plan(
        f"{WORDS} methods=diloco periods=100 steps=3600 price_per_hour=2 watts=500 kwh_price=0.5"
    )
    base, diloco = row(made, "Data parallel"), row(made, "DiLoCo, H 100")
    assert base.timing.seconds == pytest.approx(5, rel=1e-9)
    assert base.timing.computing == pytest.approx(0.2)
    assert base.timing.num_bytes == 4e9  # 2 (n - 1) / n of the gradient
    assert (base.hours, base.kwh) == (pytest.approx(5), pytest.approx(5))
    assert base.cost == pytest.approx(2 * 2 * 5 + 0.5 * 5)
    assert base.memory == {"parameters": 4e9, "gradients": 4e9, "optimizer": 8e9}
    assert diloco.timing.seconds == pytest.approx(1.04)
    assert diloco.timing.num_bytes == 4e7
    assert diloco.memory == {
        **base.memory,
        "backup": 4e9,  # the outer parameters
        "outer momentum": 4e9,
        "averaged copy": 4e9,
    }
    # Data parallel takes 1 + 32e9 / r seconds and DiLoCo 1 + 0.32e9 / r.
    assert made.half_rate == pytest.approx(32e9, rel=0.03)
    exact = ((1 - SAVES) * 32e9 - 0.32e9) / SAVES
    assert diloco.pays_below == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "base", "diloco"),
    [
        # 2 + 2 bytes of model and gradient, 4 + 8 of AdamW and its copy; DiLoCo: three more of 4
        ("precision=mixed", 16e9, 28e9),
        ("precision=bf16", 8e9, 14e9),
        ("precision=fp32", 16e9, 28e9),
        ("precision=mixed shard=state devices=4", 4e9 + 12e9 / 4, 4e9 + 24e9 / 4),
        ("precision=mixed shard=all devices=4", 4e9, 7e9),
        # in float32 a device holds its own parameters beside those that it gathered
        ("shard=state devices=4", 8e9 + 12e9 / 4, 8e9 + 24e9 / 4),
    ],
)
def test_bytes_of_a_device(arguments: str, base: float, diloco: float) -> None:
    request = read_request([*WORDS.split(), *arguments.split(), "methods=diloco"])
    vectors = {"optimizer": 2.0, "backup": 1.0, "outer momentum": 1.0, "averaged copy": 1.0}
    held = [
        request.memory.parts(1e9, state, request.devices) for state in ({"optimizer": 2.0}, vectors)
    ]
    assert [sum(parts.values()) for parts in held] == [pytest.approx(base), pytest.approx(diloco)]


def test_what_does_not_fit_is_marked_and_not_recommended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DiLoCo needs 28 GB, data parallel 16 GB."""
    arguments = f"{WORDS} methods=diloco periods=30"
    assert plan(arguments).answer.startswith(
        "DiLoCo, H 30: 1.13 s per step instead of 5 s per step;"
    )
    made = plan(f"{arguments} device_memory=20GB")
    assert [cost.fits for cost in made.rows] == [False, False, True]
    assert made.answer.startswith("Data parallel: 5 s per step; below 32 Gbit/s")
    assert made.fastest is None
    lines = table(made.rows)
    assert "28 GB*" in "".join(lines[1:3]) and "*" not in lines[3]
    none = plan(f"{arguments} device_memory=10GB").answer
    assert none.startswith(
        "No method of known quality fits into 10 GB: data parallel needs 16 GB (precision=mixed, "
        "shard=state or shard=all need less); below 32 Gbit/s"
    )


def test_quality_of_other_sizes_is_called_extrapolated() -> None:
    known = method("DiLoCo, H 30", "diloco", "period=30")
    assert extrapolated(known, 1e9, 2) == extrapolated(known, 2e9, 4) == ""
    assert extrapolated(known, 7e9, 2) == "1B parameters, 2 replicas"
    assert extrapolated(known, 1e9, 16) == "1B parameters, 2 replicas"
    assert extrapolated(method("SGP", "sgp"), 25.6e6, 4) == "25.6M parameters, 32 replicas"
    assert extrapolated(DATA_PARALLEL, 7e9, 16) == ""
    # Fewer steps between exchanges are no worse, more are not known.
    streaming = ("Streaming DiLoCo", "streaming_diloco", "codec=fp4")
    assert is_near(method(*streaming, "period=50")) and not is_near(
        method(*streaming, "period=101")
    )
    assert near_until(method(*streaming)) == 100
    assert (near_until(method("DiLoCo", "diloco")), near_until(method("SGP", "sgp"))) == (30, 0)
    made = plan(f"{WORDS.replace('1e9', '7e9')} methods=diloco periods=30")
    assert made.answer.endswith(" Its quality is extrapolated from 1B parameters, 2 replicas.")
    lines = " ".join(" ".join(quality(made, made.rows)).split())
    assert "- DiLoCo, H 30: extrapolated: 2.49 nats" in lines


def test_a_site_may_be_a_replica() -> None:
    """Inside a site 1 s and 4 s for the gradient of 4 GB at 8 Gbit/s; between sites 4 GB / 30."""
    made = plan(
        "parameters=1e9 step=1s nodes=4 sites=2 site_bandwidth=8Gbit/s site_latency=0 "
        "bandwidth=8Gbit/s latency=0 cluster.collectives.overlap=0 methods=diloco periods=30 "
        "bytes_per_parameter=4"
    )
    by_site = row(made, "DiLoCo, H 30, per site")
    assert by_site.timing.seconds == pytest.approx(5 + 4 / 30, rel=1e-3)
    assert by_site.timing.compute == pytest.approx(1)
    assert (by_site.replicas, row(made, "DiLoCo, H 30").replicas) == (2, 4)
    # Two nodes send 4 GB each inside; a leader sends 4 GB in 30 steps, half of it for each node.
    assert by_site.timing.num_bytes == pytest.approx(4e9 + 4e9 / 30 / 2)
    assert "nodes=2" in by_site.overrides and by_site.extrapolated == ""
    alone = plan(f"{WORDS} methods=diloco periods=30 sites=2 site_bandwidth=1Gbit/s site_latency=0")
    assert [cost.title for cost in alone.rows if cost.per_site] == []


def test_the_simplest_of_the_fastest_is_the_answer() -> None:
    assert simplest([1.0, 0.96, 0.5]) == 2
    assert simplest([1.0, 0.96]) == 0 and simplest([1.0, 0.94]) == 1


def test_ten_rows_data_parallel_and_the_answer_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = plan(f"{WORDS} methods=ar_sgd")
    base = made.data_parallel
    faster = [
        replace(base, method=candidate, timing=replace(base.timing, seconds=1.0 + number / 100))
        for number, candidate in enumerate(methods()[1:15])
    ]
    request = replace(made.request, methods=methods())
    many = replace(made, request=request, rows=(*faster, base))
    assert many.shown() == [*faster[:10], base] and many.shown(every=True) == [*faster, base]
    assert main(["plan", *WORDS.split(), "methods=diloco", "periods=30", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(lines[0]) == 2  # the answer, and once more at the end


def test_costs_of_a_slow_node_and_of_an_absence() -> None:
    """All wait in every step: the gradient of 2 s instead of 1 s, and all of the absence."""
    made = plan(f"{WORDS} methods=ar_sgd,ad_psgd")
    costs = row(made, "Data parallel").faults
    assert costs is not None
    assert costs.slow_node == pytest.approx(6 / 5)
    assert costs.absence == pytest.approx(1, abs=0.01)
    other = row(made, "AD-PSGD").faults
    assert other is not None and other.absence < 0.9
    lines = list(faults(made.rows))
    assert "- 1.2: Data parallel" in lines
    slowed = plan(f"{WORDS} methods=ar_sgd faults=slow_node")
    assert slowed.data_parallel.faults is None and list(faults(slowed.rows)) == []


def test_coding_takes_the_time_of_the_cluster() -> None:
    """A billion numbers at 1 ns: 1 s to encode, and one more for each message of two nodes."""
    codecs = "cluster.codecs.encode_seconds={int8:1ns} cluster.codecs.decode_seconds={int8:1ns}"
    made = plan(f"{WORDS} methods=ar_sgd {codecs}")
    plain = row(plan(f"{WORDS} methods=ar_sgd"), "Data parallel, int8")
    coded = row(made, "Data parallel, int8")
    assert plain.timing.coding == row(made, "Data parallel").timing.coding == 0
    assert coded.timing.coding == pytest.approx(4)  # its own message for error feedback, and two
    # It decodes its own message during the transfer, which takes 1 s.
    assert coded.timing.seconds == pytest.approx(plain.timing.seconds + 3)
    assert "- Coding takes the time of cluster.codecs: int8; else none." in assumptions(made)


def test_times_are_those_of_a_timing_study(tmp_path: Path) -> None:
    made = plan(f"{WORDS} methods=diloco,sgp periods=30")
    for cost in made.rows:
        if cost.method.title == "DiLoCo, H 30, delayed":
            continue  # a study ends with an all-reduce that nothing hides
        overrides = [
            *made.request.overrides,
            *cost.method.overrides,
            "model.sample_steps=120",
            "logger=jsonl",
        ]
        study = run(*overrides, results=str(tmp_path))
        assert study.summary["ms_per_iteration"] == pytest.approx(
            1000 * cost.timing.seconds, rel=1e-3
        )


def test_algorithms_that_are_composed_at_once_are_those_that_are_composed_alone() -> None:
    run = ["model=timing_only", "nodes=4", "cluster=wan_1g", "cluster.bandwidth=2Gbit/s"]
    algorithms = [
        ["algo=sgp"],
        ["algo=ar_sgd", "algo.codec=int8"],
        ["algo=slowmo", "algo.base=local_sgd", "algo.tau=6"],
        ["algo=sparseloco", "algo.period=30"],
        ["algo=qg_dsgdm"],  # brings settings of SGD
    ]
    PREPARED.clear()
    alone = [experiment_of([*run, *overrides]) for overrides in algorithms]
    chosen_once.cache_clear()
    composed_once.cache_clear()
    prepare_algorithms(run, algorithms)
    assert [experiment_of([*run, *overrides]) for overrides in algorithms] == alone
    assert len(PREPARED) == 5 and composed_once.cache_info().misses == 1


def test_flops_give_the_time_of_a_step() -> None:
    made = plan(
        "parameters=1e9 nodes=2 devices=4 bandwidth=8Gbit/s batch_tokens=1e5 device_flops=150e12 "
        "tokens=2e9 methods=ar_sgd"
    )
    assert row(made, "Data parallel").timing.compute == pytest.approx(6e9 * 1e5 / (4 * 150e12))
    assert made.request.budget.steps == 10_000


def test_the_baseline_of_sites_is_the_hierarchical_all_reduce() -> None:
    """Two leaders exchange all of the gradient once; a flat ring of 4 sends 1.5 times as much."""
    arguments = "parameters=1e9 step=1s nodes=4 sites=2 site_bandwidth=8Gbit/s site_latency=0"
    rest = "bandwidth=8000Tbit/s latency=0 cluster.collectives.overlap=0 methods=ar_sgd"
    made = plan(f"{arguments} {rest}")
    assert row(made, "Data parallel").timing.seconds == pytest.approx(5, rel=1e-4)
    assert made.request.cluster.links.regions == (Region(2, 8e9, 8e9, 0, 10_500_000),) * 2
    assert "hierarchical" in " ".join(made.request.assumed)


def test_a_window_limits_what_a_connection_between_sites_carries() -> None:
    """10.5 MB in a round trip of 0.2 s are 0.42 Gbit/s, whatever the rate of the link."""
    arguments = "parameters=1e9 step=1s nodes=2 sites=2 site_bandwidth=10Gbit/s site_latency=100ms"
    arguments += " bandwidth=8000Tbit/s cluster.collectives.overlap=0 methods=ar_sgd"
    made = plan(arguments)
    assert row(made, "Data parallel").timing.seconds == pytest.approx(1 + 32 / 0.42 + 0.1)
    assert (
        "Connections from a node to another site have 10.5 MB in flight and carry 420 Mbit/s "
        "(site_window=)."
    ) in made.request.assumed
    free = plan(f"{arguments} site_window=0")
    assert row(free, "Data parallel").timing.seconds == pytest.approx(1 + 3.2 + 0.1)
    assert not any("site_window" in text for text in free.request.assumed)
    # The connections of a profile share the window.
    shared = read_request([*arguments.split(), "cluster.links.connections=16", "site_window=16MB"])
    assert [region.window_bytes for region in shared.cluster.links.regions] == [1_000_000] * 2


def test_codes_of_a_site_cross_to_another_once() -> None:
    """Int8 codes of 1 GB take 8 s; of eight nodes, four send across, where a flat ring sends seven
    times: 57 s.
    """
    made = plan(
        "parameters=1e9 step=1s nodes=8 sites=2 site_bandwidth=1Gbit/s site_latency=0 "
        "bandwidth=8000Tbit/s latency=0 methods=ar_sgd"
    )
    coded = row(made, "Data parallel, int8").timing
    assert coded.seconds == pytest.approx(1 + 4 * 8, rel=1e-3)
    assert coded.num_bytes == pytest.approx(7e9, rel=1e-3)  # as in a flat ring


def test_the_baseline_of_a_profile_with_regions_is_hierarchical_too() -> None:
    settings = ["cluster=regions_2x4", "model=llama_1b", "nodes=8", "methods=diloco", "periods=100"]
    request = read_request(settings)
    assert request.sites == 2
    assert request.overrides.count("cluster.collectives.algorithm=hierarchical") == 1
    flat = read_request([*settings, "cluster.collectives.algorithm=ring"])
    assert flat.cluster.collectives.algorithm == "ring"
    made = compare(request)
    assert made.fastest == (
        "Faster, but not known to be within 1 % of the quality of data parallel: DiLoCo, H 100, "
        f"{made.rows[0].timing.seconds:.3g} s per step."
    )


def test_published_hours_of_streaming_diloco() -> None:
    """Douillard et al. 2025, Table 1: 438 h and 3.5 h for 100 billion tokens at 1 Gbit/s."""
    made = plan(
        "cluster=streaming_diloco model=llama_1b parameters=1e9 bytes_per_parameter=2 "
        "batch_tokens=524288 tokens=100e9 methods=streaming_diloco periods=100"
    )
    assert row(made, "Data parallel").hours == pytest.approx(438, rel=0.05)
    assert row(made, "Streaming DiLoCo, H 100, FP4").hours == pytest.approx(3.5, rel=0.05)
    assert made.answer == (
        "Streaming DiLoCo, H 100, FP4: 3.36 h instead of 425 h; below 96 Gbit/s data parallel "
        "computes less than half of the time."
    )


def test_a_latency_is_set_between_sites_or_everywhere() -> None:
    cluster = read_request(["cluster=regions_2x4", "model=llama_1b", "nodes=8"]).cluster
    assert latency_of(with_latency(cluster, 0.25)) == 0.25
    flat = read_request(WORDS.split()).cluster
    laws = replace(flat.collectives, all_reduce_latency_seconds=3.0)
    for seconds, measured in ((1.0, 4.0), (0.0, 3.0)):
        changed = with_latency(replace(flat, collectives=laws), seconds)
        assert changed.links.latency_seconds == seconds
        assert changed.collectives.all_reduce_latency_seconds == measured


def test_steps_with_random_peers_have_no_cycle() -> None:
    overrides = ["model=timing_only", "algo=d_psgd", "algo.topology=random_matching", "nodes=4"]
    assert steps_of(experiment_of(overrides).run) == (1, LEAST_VARYING_STEPS)


def test_answers_at_the_ends_of_all_rates() -> None:
    made = plan(f"{WORDS} methods=ar_sgd steps=10 watts=500")
    less = "data parallel computes less than half of the time"
    assert replace(made, half_rate=0).answer == f"Data parallel: 0.0139 h; {less} at no rate."
    assert replace(made, half_rate=float("inf")).answer.endswith(f"{less} at any rate.")
    assert replace(made, rows=(made.data_parallel,)).fastest is None
    said = " ".join(" ".join(assumptions(made)).split())
    assert "(cluster.codecs). The power does not depend on the method." in said


def test_a_step_of_a_published_model_is_the_published_one() -> None:
    request = read_request(["model=llama_1b", "nodes=2", "devices=4", "cluster=ethernet_10g"])
    assert machines(request) == "2 nodes of 4 devices, 10 Gbit/s"
    assert "A step takes 100 ms (Douillard et al. 2025, Table 4; step=)." in request.assumed


def test_machines_are_described_in_a_few_words() -> None:
    flat = "parameters=1e9 step=1s nodes=4 devices=2 bandwidth=8Gbit/s"
    assert machines(read_request(flat.split())) == "4 nodes of 2 devices, 8 Gbit/s"
    sites = f"{flat} sites=2 site_bandwidth=1Gbit/s site_latency=30ms"
    assert machines(read_request(sites.split())) == (
        "4 nodes of 2 devices in 2 sites, 1 Gbit/s between sites"
    )


def test_a_plan_outside_the_validated_range_says_so() -> None:
    made = plan("cluster=aws_p3_10g model=gpt2 step=0.2s nodes=16 methods=ar_sgd")
    assert made.outside is not None and "16 nodes" in made.outside
    inside = plan("cluster=aws_p3_10g model=resnet50 step=0.2s nodes=8 methods=ar_sgd")
    assert inside.outside is None


@pytest.mark.parametrize("rate", [2e7, 3e9, 7e11])
def test_the_highest_rate_of_a_gain_is_found(rate: float) -> None:
    assert highest_rate(lambda guess: 1 / guess - 1 / rate, 10e9) == pytest.approx(rate, rel=0.02)


def test_rates_whose_times_are_bounded_are_not_simulated() -> None:
    diloco = method("DiLoCo, H 10", "diloco", "period=10")
    overrides = read_request(WORDS.split()).overrides
    runs = [
        experiment_of([*overrides, *candidate.overrides]).run
        for candidate in (DATA_PARALLEL, diloco)
    ]
    base, times = (TimesByRate(run, time_steps(run).seconds) for run in runs)
    present = rate_of(runs[1])
    assert times.bounds(present) == (times.seconds[present], times.seconds[present])
    assert times.bounds(8 * present) == (1, times.seconds[present])
    assert times.bounds(present / 8) == (times.seconds[present], float("inf"))
    # DiLoCo takes 1.4 s and data parallel 5 s; at the highest rate both take 1 s.
    found = break_even(times, base)
    every = TimesByRate(runs[1], times.seconds[present])
    assert found == highest_rate(lambda rate: (1 - SAVES) * base.at(rate) - every.at(rate), present)
    assert len(times.seconds) < len(every.seconds)


def test_a_gain_that_has_one_sign_has_no_highest_rate() -> None:
    assert highest_rate(lambda rate: 1.0, 10e9) == float("inf")
    assert highest_rate(lambda rate: -1.0, 10e9) == 0


def test_sizes_of_known_models() -> None:
    def gpt2(width: int, layers: int) -> int:
        return (50257 + 1024 + 2) * width + layers * (12 * width**2 + 13 * width)

    known = {name: size for name, (size, _) in known_models().items()}
    widths = {"gpt2": (768, 12), "gpt2_medium": (1024, 24), "gpt2_large": (1280, 36)}
    assert {name: known[name] for name in widths} == {
        name: gpt2(*shape) for name, shape in widths.items()
    }
    assert known["gpt2_xl"] == gpt2(1600, 48)
    assert known["llama_1b"] == 982_188_032


def test_published_quality_agrees_with_the_papers_figures() -> None:
    def value(name: str, metric: str) -> float:
        return published()[name][metric].value

    known = all_known()
    for overrides, name in (
        ("algo=sgp", "sgp"),
        ("algo=osgp algo.tau=1", "osgp"),
        ("algo=local_sgd algo.tau=12", "local_sgd"),
        ("algo=slowmo algo.base=local_sgd", "local_sgd_slowmo"),
        ("algo=slowmo algo.base=sgp", "sgp_slowmo"),
    ):
        first = known[overrides][0]
        assert first.value == value(f"slowmo_imagenet_{name}", "val_top1")
        assert first.baseline == value("slowmo_imagenet_ar_sgd", "val_top1")
    assert known["algo=diloco algo.period=30"][0].value == value(
        "streaming_diloco_diloco_h30", "val_loss"
    )
    streaming = "algo=streaming_diloco algo.period={} algo.codec=fp4"
    assert known[streaming.format(30)][0].value == value("streaming_diloco_h30", "val_loss")
    hundred = known[streaming.format(100)][0]
    assert hundred.value == value("streaming_diloco_overlapped_fp4", "val_loss")
    assert hundred.baseline == value("streaming_diloco_data_parallel", "val_loss")


def test_the_command_prints_80_columns_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    arguments = [*WORDS.split(), "methods=sgp,diloco", "steps=1e6", "--json", str(path)]
    assert main(["plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Data parallel: ") or lines[0].startswith("DiLoCo, H 30: ")
    assert max(map(len, lines)) <= 80
    stored = json.loads(path.read_text())
    assert stored["steps"] == 1_000_000
    assert {entry["method"] for entry in stored["methods"]} >= {"SGP", "DiLoCo, H 500"}
    command = stored["methods"][-1]["command"]
    assert command.startswith("sgp-run model=timing_only nodes=2 ")


def test_a_table_with_all_columns_has_80_columns_too() -> None:
    """Every method has the times of data parallel here."""
    codecs = "cluster.codecs.encode_seconds={int8:1ns} cluster.codecs.decode_seconds={int8:1ns}"
    made = plan(f"{WORDS} methods=ar_sgd steps=1e6 price_per_hour=2 watts=500 {codecs}")
    coded = row(made, "Data parallel, int8")
    rows = [replace(coded, method=candidate) for candidate in methods()]
    lines = table(rows)
    assert lines[0].split() == (
        ["s/step", "comp.", "hours", "coding", "sent", "memory", "cost", "kWh", "pays", "<"]
    )
    assert set(map(len, lines)) == {2, 7, 8, 80}
    place = next(at for at, line in enumerate(lines) if line.startswith("1-bit Adam"))
    assert lines[place].startswith("1-bit Adam, 15 %           5  20 % 1,389 ")
    assert lines[place + 1] == "warm-up"  # a title is broken, not cut off


def test_an_interval_has_one_notation_in_plans_and_in_clusters() -> None:
    for text in ("4..10Gbit/s", "[4Gbit/s,10Gbit/s]", "4Gbit/s..10Gbit/s"):
        assert RATE_INTERVAL.number(text) == [4_000_000_000, 10_000_000_000]
        assert both_ends(["nodes=2", f"bandwidth={text}"]) == [
            ["nodes=2", "bandwidth=4000000000bit/s"],
            ["nodes=2", "bandwidth=10000000000bit/s"],
        ]
        links = experiment_of(["model=timing_only", f"cluster.bandwidth={text}"]).run.cluster.links
        assert tuple(links.rates) == (4e9, 10e9)
    assert [RATE_INTERVAL.number(text) for text in ("4..10", "4Gbit/s", "1..x")] == [None] * 3


def test_an_interval_of_the_rate_gives_both_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plans.json"
    arguments = [*WORDS.replace("8Gbit/s", "8..16Gbit/s").split(), "methods=ar_sgd"]
    assert main(["plan", *arguments, "--json", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    half = "below 32 Gbit/s data parallel computes less than half of the time."
    assert text.startswith(f"Data parallel: 5 s per step; {half} With 2 nodes, 16 Gbit/s: Data")
    slow, fast = json.loads(path.read_text())
    rows = [plan["methods"][-1]["seconds_per_step"] for plan in (slow, fast)]
    assert rows == [pytest.approx(5), pytest.approx(3)]


def test_the_help_imports_neither_hydra_nor_torch() -> None:
    code = (
        "import sys; from sgp_runner.cli.main import main; main(['plan', '--help']); "
        "sys.exit(bool({'torch', 'hydra'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "nodes=4 bandwidth=10Gbit/s",
            "model: missing: write model=gpt2, or parameters=1e9.",
        ),
        ("", "model: missing: write model=gpt2, or parameters=1e9."),
        (
            "model=gpt2 nodes=4 bandwidth=10Gbit/s",
            "step: the time of a gradient of gpt2 on one node is not known: write step=0.4s, or "
            "device_flops=50e12 with step_flops= or batch_tokens=.",
        ),
        (f"{WORDS} price_per_hour=-3", "price_per_hour: -3 must be zero or positive."),
        (f"{WORDS} periods=0", "periods: H is a number of steps, at least 1, not '0'."),
        (f"{WORDS} H=0", "periods: H is a number of steps, at least 1, not '0'."),
        (
            f"{WORDS} price_per_hour=3",
            "price_per_hour: has no effect without tokens= or epochs= or steps=.",
        ),
        (f"{WORDS} steps=9 kwh_price=3", "kwh_price: has no effect without watts=."),
        (f"{WORDS} site_bandwidth=1Gbit/s", "site_bandwidth: has no effect without sites=."),
        (
            f"{WORDS} steps=9 site_price_per_gb=1",
            "site_price_per_gb: has no effect without sites=.",
        ),
        (f"{WORDS} site_window=1MB", "site_window: has no effect without sites=."),
        (
            f"{WORDS} bandwidth=1G",
            "bandwidth: '1G' is not a rate: write bandwidth=1Gbit/s, for example.",
        ),
        (
            f"{WORDS} bandwidth=4..10",
            "bandwidth: '4..10' is not a rate: write bandwidth=10Gbit/s, for example.",
        ),
        (f"{WORDS} sites=3", "sites: 2 nodes cannot be in 3 sites: use sites=2."),
        (
            f"{WORDS} sites=2",
            "site_bandwidth: missing for 2 sites; for example, write site_bandwidth=1Gbit/s.",
        ),
        (
            f"{WORDS} bandwidth=10",
            "bandwidth: 10 without a unit is 10 bit/s: did you mean 10Gbit/s? Otherwise write "
            "10bit/s.",
        ),
        (
            f"{WORDS} cluster.links.bandwidth_up=10",
            "cluster.links.bandwidth_up: 10 without a unit is 10 bit/s: did you mean 10Gbit/s? "
            "Otherwise write 10bit/s.",
        ),
        (
            f"{WORDS} latency=30",
            "latency: 30 without a unit is 30 s: did you mean 30ms? Otherwise write 30s.",
        ),
        (
            "model=gpt2 step=1s nodes=2",
            "bandwidth: the rate of a node's interface is missing: write bandwidth=10Gbit/s, or "
            "cluster= with a profile.",
        ),
        (f"{WORDS} devices=0", "devices: 0 must be positive."),
        (
            f"{WORDS} device_memory=80",
            "device_memory: 80 without a unit is 80 B: did you mean 80GB? Otherwise write 80B.",
        ),
        (f"{WORDS} shard=zero3", "shard: 'zero3' is not one of none, state, all."),
        (
            f"{WORDS} precision=fp8",
            "precision: 'fp8' is not one of fp32, mixed, bf16. Did you mean 'fp32'?",
        ),
        (f"{WORDS} nodes=1", "nodes: a single node sends no messages: use nodes=2 or more."),
        (f"{WORDS} nodes=2.5", "nodes: 2.5 must be a whole number."),
        (f"{WORDS} step=fast", "step: 'fast' is not a number; write for example 10s or 1ms."),
        (f"{WORDS} tokens=1e9", "batch_tokens: tokens= needs it: tokens per node and step."),
        (f"{WORDS} steps=1 tokens=1e9", "steps: the budget is given twice: leave out tokens=."),
        (
            f"{WORDS} stepz=3",
            "stepz: there is no such setting here. Did you mean 'step'? --help lists all.",
        ),
        (
            f"{WORDS} --out x",
            "--out: there is no such option; there are --json, --html, --config-dir.",
        ),
        (f"{WORDS} nodes", "nodes: this is not a setting; write key=value, for example nodes=4."),
        (f"{WORDS} --json", "--json: its value is missing, for example --json out."),
        (f"{WORDS} model=a-b", "model: 'a-b' is not a valid name: use letters, digits and _."),
        (
            "model=gpt9 nodes=2 bandwidth=1Gbit/s",
            "model: the size of 'gpt9' is not known. Did you mean 'gpt2'? Write parameters=, for "
            "example parameters=7e9.",
        ),
        (
            "parameters=1e9 device_flops=1e12 nodes=2 bandwidth=8Gbit/s",
            "device_flops: needs the FLOPs of a step: write batch_tokens= or step_flops=.",
        ),
    ],
)
def test_a_request_that_cannot_work_is_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"sgp-run: {sentence}\n"


def test_assumptions_have_numbers_and_titles() -> None:
    made = plan("model=resnet50 nodes=2 bandwidth=10Gbit/s batch=128 methods=gap_aware periods=30")
    lines = list(assumptions(made))
    assert "- A step takes 115 ms, as in cluster=ethernet_10g (step=)." in lines
    assert "Left out: Gap-Aware takes its momentum step on the server and needs optim=sgd," in lines
    assert list(quality(made, made.rows)) == ["Nothing is known here about the quality."]


def test_a_method_that_the_machines_cannot_run_is_left_out() -> None:
    made = plan(f"{WORDS} methods=qg_dsgdm")
    assert made.left_out == {
        "QG-DSGDm": "QG-DSGDm replaces the momentum of SGD: use optim=sgd, not adamw"
    }


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"methods: 'dilco' is not one of .* 'diloco'\?"):
        read_request([*WORDS.split(), "methods=dilco"])


def test_data_files_have_no_empty_source() -> None:
    folder = Path(__file__).parents[2] / "sgp_runner" / "plan"
    for name in ("models.csv", "quality.csv"):
        with (folder / name).open(newline="") as file:
            assert all(line["source"] for line in csv.DictReader(file))

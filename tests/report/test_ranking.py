"""The ranked table: its order, speed-ups and targets, on runs with known numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.report_runs import settings_of, write_run
from rich.console import Console

from sgp_runner.config.old_names import NAMES
from sgp_runner.recording.throughput import RATES
from sgp_runner.report.plots.sections import sections
from sgp_runner.report.rank.fastest import fastest_tables
from sgp_runner.report.rank.ranked_table import ranked_tables
from sgp_runner.report.rank.ranking import Ranking, easier, rankings, target_of
from sgp_runner.report.rank.tables import tables
from sgp_runner.report.render.terminal import grid
from sgp_runner.report.render.text_tables import csv as as_csv
from sgp_runner.report.render.text_tables import markdown
from sgp_runner.report.render.write import write_report

SLOW = [[0.5], [0.7], [0.9]]
FAST = [[0.7], [0.9], [0.92]]
EARLY = [[0.1]] * 5  # evaluations before a target, so that the time to it is ranked


def on(name: str, bandwidth: float, **more: object) -> dict[str, object]:
    cluster: dict[str, dict[str, object]] = {"links": {"bandwidth": bandwidth}}
    for flat, value in more.items():
        group, _, key = NAMES[flat].partition(".")
        cluster.setdefault(group, {})[key] = value
    return {"cluster": {"name": name, **cluster}}


def region(nodes: int, up: float = 1e10) -> dict[str, object]:
    return {
        "nodes": nodes,
        "bandwidth_up": up,
        "bandwidth_down": 1e10,
        "latency_seconds": 0.035,
    }


def facts(ranking: Ranking) -> list[tuple[object, ...]]:
    return [
        (row.rank, row.name, int(row.setting.nodes), row.times, row.speed_up, row.over)
        for row in ranking.rows
    ]


def printed(root: Path) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    for table in ranked_tables(rankings(settings_of(root))):
        console.print(grid(table))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_fastest_to_the_target_is_first_and_the_best_of_those_that_never_reach_it_follow(
    tmp_path: Path,
) -> None:
    for seed, seconds in ((1, 10.0), (2, 14.0)):
        slow = [*EARLY, *SLOW]
        write_run(tmp_path, f"ar{seed}", slow, algorithm="AR-SGD", seed=seed, seconds=seconds)
    write_run(tmp_path, "sgp", [*EARLY, *FAST])
    write_run(tmp_path, "one1", [*EARLY, *FAST], algorithm="one", seed=1)
    write_run(tmp_path, "one2", [*EARLY, [0.5], [0.6], [0.7]], algorithm="one", seed=2)
    write_run(tmp_path, "low", [[0.3]] * 8, algorithm="low")
    write_run(tmp_path, "lower", [[0.2]] * 8, algorithm="lower")
    (ranking,) = rankings(settings_of(tmp_path), 0.8)
    assert facts(ranking) == [
        (1, "SGP", 2, [pytest.approx(65)], pytest.approx(90 / 65), "AR-SGD"),
        (
            2,
            "AR-SGD",
            2,
            [pytest.approx(75), pytest.approx(105)],
            pytest.approx(1.0),
            "AR-SGD",
        ),
        (3, "one", 2, [pytest.approx(65)], pytest.approx(90 / 65), "AR-SGD"),
        (None, "low", 2, [], None, ""),
        (None, "lower", 2, [], None, ""),
    ]
    assert [row.missing for row in ranking.rows] == [0, 0, 1, 1, 1]


def test_fewer_than_five_evaluations_before_the_target_are_ranked_by_quality(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "quick", [[0.1]] * 3 + [[0.9]], algorithm="quick", seconds=1.0)
    write_run(tmp_path, "best", [[0.1]] * 3 + [[0.95]], algorithm="best", seconds=2.0)
    write_run(tmp_path, "never", [[0.1]] * 3 + [[0.7]], algorithm="never", seconds=0.5)
    write_run(tmp_path, "stopped", [[0.1]] * 3 + [[0.99]], algorithm="stopped")
    settings = settings_of(tmp_path)
    stopped = next(group for group in settings if group.algorithm == "stopped")
    settings.append(replace(stopped, runs=stopped.runs.assign(state="unfinished")))
    settings.remove(stopped)
    (ranking,) = rankings(settings, 0.8)
    assert [(row.rank, row.name) for row in ranking.rows] == [
        *((1, "best"), (2, "quick"), (3, "never"), (None, "stopped"))
    ]
    assert ranking.ranked_by == "accuracy"
    (table,) = ranked_tables([ranking])
    assert "Fewer than five evaluations before the target: ranked by accuracy." in table.note
    assert list(table.raw["ranked_by"]) == ["accuracy"] * 4
    first = sections(settings, [ranking], [])[0]
    assert (first.plots, first.absent) == (
        [],
        "Fewer than five evaluations before the target: ranked by accuracy.",
    )


def test_five_evaluations_before_the_target_are_ranked_by_time_and_equal_times_by_quality(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "good", [*EARLY, [0.8], [0.85]], algorithm="good")
    write_run(tmp_path, "best", [*EARLY, [0.8], [0.95]], algorithm="best")
    write_run(tmp_path, "quick", [*EARLY, [0.8], [0.8]], algorithm="quick", seconds=5.0)
    (ranking,) = rankings(settings_of(tmp_path), 0.8)
    assert [(row.rank, row.name, row.time) for row in ranking.rows] == [
        *((1, "quick", 30.0), (2, "best", 60.0), (3, "good", 60.0))
    ]
    assert (ranking.ranked_by, ranking.reason) == ("time", "")


def test_a_speed_up_is_over_the_most_similar_ar_sgd_on_as_many_nodes(tmp_path: Path) -> None:
    for lr, seconds in ((0.1, 10.0), (0.2, 45.0)):
        same = {"optim": {"lr": lr}}
        write_run(tmp_path, f"ar{lr}", SLOW, algorithm="AR-SGD", seconds=4 * seconds, settings=same)
        write_run(tmp_path, f"sgp{lr}", SLOW, seconds=seconds, settings=same)
    write_run(tmp_path, "alone", SLOW, nodes=4, seconds=30.0)
    write_run(tmp_path, "slower", SLOW, nodes=4, seconds=60.0, algorithm="D-PSGD")
    (ranking,) = rankings(settings_of(tmp_path), 0.9)
    assert [(name, nodes, speed, over) for _, name, nodes, _, speed, over in facts(ranking)] == [
        ("SGP optim.lr=0.1", 2, 4.0, "AR-SGD optim.lr=0.1"),
        ("SGP", 4, 2.0, "D-PSGD"),
        ("AR-SGD optim.lr=0.1", 2, 1.0, "AR-SGD optim.lr=0.1"),
        ("SGP optim.lr=0.2", 2, 4.0, "AR-SGD optim.lr=0.2"),
        ("D-PSGD", 4, 1.0, "D-PSGD"),
        ("AR-SGD optim.lr=0.2", 2, 1.0, "AR-SGD optim.lr=0.2"),
    ]


def test_a_speed_up_is_over_ar_sgd_without_a_codec(tmp_path: Path) -> None:
    for codec, seconds in (("none", 30.0), ("int8", 15.0)):
        algo = {"algo": {"name": "ar_sgd", "codec": {"name": codec}}}
        write_run(tmp_path, codec, SLOW, algorithm="AR-SGD", seconds=seconds, settings=algo)
    (ranking,) = rankings(settings_of(tmp_path), 0.9)
    assert [(row.name, row.speed_up, row.over) for row in ranking.rows] == [
        ("AR-SGD algo.codec=int8", 2.0, "AR-SGD algo.codec=none"),
        ("AR-SGD algo.codec=none", 1.0, "AR-SGD algo.codec=none"),
    ]


def test_clusters_are_ranked_apart_and_named_by_what_they_are(tmp_path: Path) -> None:
    for number, settings in enumerate(
        (
            on("a", 1e10),
            on("a", 1e7),
            on("a", 5e8, bandwidth_up=1.1e8),
            on("b", 1e9, overlap=0.0),
            on("b", 1e9, overlap=0.5),
            on("b", 1e9, overlap=0.5, fitted_on=["row"]),
            on("c", 1e18),
            on("d", 3.2e12, regions=[region(8), region(8, up=2e10)]),
            on("e", 1e9, regions=[region(4), region(2), region(0, up=1.0)]),
            on("f", 1e9, regions=[region(2)], node_bandwidth_up={3: 2e7}),
            on("g", 1e9, node_bandwidth_down={0: 2e10}, regions=["x", {"nodes": "two"}]),
        )
    ):
        write_run(tmp_path, f"run{number:02}", SLOW, settings=settings)
    write_run(tmp_path, "zreal", SLOW, clock="wall", settings=on("a", 1e10))
    ranked = rankings(settings_of(tmp_path))
    assert {row.setting.algorithm for ranking in ranked for row in ranking.rows} == {"SGP"}
    assert [(ranking.cluster, ranking.clock) for ranking in ranked] == [
        ("a (10 Gbit/s)", "simulated"),
        ("a (10 Mbit/s)", "simulated"),
        ("a (110 Mbit/s up, 500 Mbit/s down)", "simulated"),
        ("b (1 Gbit/s) cluster.collectives.overlap=0", "simulated"),
        ("b (1 Gbit/s) cluster.collectives.overlap=0.5", "simulated"),
        ("c (instant messages)", "simulated"),
        ("d (2 regions of 8, 10 Gbit/s between)", "simulated"),
        ("e (1 Gbit/s, 2 regions of 4 + 2, 10 Gbit/s between)", "simulated"),
        ("f (1 Gbit/s, slowest node 20 Mbit/s)", "simulated"),
        ("g (1 Gbit/s)", "simulated"),
        ("", "wall"),
    ]


def test_timing_studies_are_ranked_by_time_per_iteration_within_each_number_of_nodes(
    tmp_path: Path,
) -> None:
    for nodes, sgp, ar_sgd in ((2, 0.3, 0.2), (4, 0.3, 0.6)):
        write_run(tmp_path, f"sgp{nodes}", nodes=nodes, ms_per_iteration=1000 * sgp)
        write_run(
            tmp_path, f"ar{nodes}", nodes=nodes, ms_per_iteration=1000 * ar_sgd, algorithm="AR-SGD"
        )
    (ranking,) = rankings(settings_of(tmp_path))
    assert facts(ranking) == [
        (1, "AR-SGD", 2, [0.2], 1.0, "AR-SGD"),
        (2, "SGP", 2, [0.3], pytest.approx(2 / 3), "AR-SGD"),
        (1, "SGP", 4, [0.3], pytest.approx(2.0), "AR-SGD"),
        (2, "AR-SGD", 4, [0.6], 1.0, "AR-SGD"),
    ]
    assert printed(tmp_path) == [
        "Simulated time per iteration",
        "timing_only on digits, seed 1. Speed-up over",
        "AR-SGD.",
        "                                             sent",
        "#  algorithm  nodes   ms  speed-up  per iteration",
        "─────────────────────────────────────────────────",
        "1  AR-SGD         2  200     1.00×           1 kB",
        "2  SGP            2  300    0.667×           1 kB",
        "1  SGP            4  300     2.00×           1 kB",
        "2  AR-SGD         4  600     1.00×           1 kB",
    ]


def test_a_table_names_the_fastest_method_on_each_of_many_clusters_and_numbers_of_nodes(
    tmp_path: Path,
) -> None:
    for rate in (10, 1, 100):
        for nodes in (2, 4, 8):
            for algorithm, ms in (
                ("AR-SGD", 900 / rate * nodes),
                ("SGP", 1500 / rate),
                ("OSGP", 1510 / rate),
            ):
                write_run(
                    tmp_path,
                    f"{algorithm}-{nodes}-{rate}",
                    algorithm=algorithm,
                    nodes=nodes,
                    ms_per_iteration=ms,
                    settings=on("ethernet", rate * 1e9),
                )
    (table,) = fastest_tables(rankings(settings_of(tmp_path)))
    assert table.head == ["cluster", "2 nodes", "4 nodes", "8 nodes"]
    assert [
        [" ".join((cell.links[0].text, cell.note)) for cell in line] for line in table.cells
    ] == [
        [
            f"ethernet ({rate} Gbit/s) ",
            f"SGP {ms} ms, 1.20×, +1",
            f"SGP {ms} ms, 2.40×, +1",
            f"SGP {ms} ms, 4.80×, +1",
        ]
        for rate, ms in ((1, "1500"), (10, "150"), (100, "15.0"))
    ]
    assert "its speed-up over AR-SGD on as many nodes" in table.note
    assert len(table.raw) == 9 and set(table.raw["close_methods"]) == {1}
    assert "fastest.csv" in [
        path.name for path in write_report([tmp_path], tmp_path / "r").page.parent.iterdir()
    ]


def test_few_clusters_and_numbers_of_nodes_need_no_table_of_the_fastest(tmp_path: Path) -> None:
    for rate in (1, 10):
        for nodes in (2, 4, 8, 16):
            more = {"ms_per_iteration": 5.0, "settings": on("ethernet", rate * 1e9)}
            write_run(tmp_path, f"{nodes}-{rate}", nodes=nodes, **more)  # type: ignore[arg-type]
    assert [*fastest_tables(rankings(settings_of(tmp_path)))] == []


def test_runs_timed_as_a_language_model_say_how_much_of_the_time_is_computation(
    tmp_path: Path,
) -> None:
    timed_as: dict[str, object] = {"timed_as": {"model": "llama_1b"}}  # 0.1 s a step
    for name, ms in (("AR-SGD", 400), ("DiLoCo", 125)):
        settings = timed_as | on("wan", 1e9)
        write_run(
            tmp_path, name, algorithm=name, ms_per_iteration=ms, hours=ms / 100, settings=settings
        )
    assert printed(tmp_path)[-4:] == [
        "#  algorithm   ms  speed-up  computing  hours  per iteration",
        "────────────────────────────────────────────────────────────",
        "1  DiLoCo     125     3.20×       80 %   1.25           1 kB",
        "2  AR-SGD     400     1.00×       25 %   4.00           1 kB",
    ]
    (table,) = ranked_tables(rankings(settings_of(tmp_path)))
    assert list(table.raw["compute_utilisation"]) == [0.8, 0.25]
    assert list(table.raw["hours"]) == [1.25, 4.0]


def test_the_step_of_a_language_model_is_the_clusters_if_it_lists_one(tmp_path: Path) -> None:
    settings = {"timed_as": {"model": "llama_1b"}} | on("wan", 1e9, step_seconds={"llama_1b": 0.2})
    write_run(tmp_path, "a", FAST, seconds=1.0, settings=settings)
    write_run(tmp_path, "real", FAST, clock="wall", settings=settings)
    found = {group.clock: group.utilisation for group in settings_of(tmp_path)}
    assert found["simulated"] == 0.2 and found["wall"] != found["wall"]


def test_the_target_is_what_all_reach_unless_one_is_far_behind(tmp_path: Path) -> None:
    def targets(*bests: float) -> tuple[float, str]:
        folder = tmp_path / "-".join(map(str, bests))
        for number, best in enumerate(bests):
            write_run(folder, f"run{number}", [[best]], algorithm=f"A{number}")
        target = target_of(settings_of(folder), None)
        return target.value, target.rule

    assert targets(0.984, 0.979, 0.991) == (
        0.97,
        "the best that all 3 settings reach with every seed",
    )
    assert targets(0.984, 0.979, 0.1) == (
        0.97,
        "the best that at least half of 3 settings reach with every seed",
    )
    assert targets(0.984) == (0.98, "the best that the setting reaches with every seed")
    assert (easier(27.84, "bleu"), easier(0.0234, "loss")) == (27.8, 0.024)


def test_a_run_that_has_not_finished_is_ranked_but_does_not_set_the_target(tmp_path: Path) -> None:
    write_run(tmp_path, "a", FAST)
    write_run(tmp_path, "b", SLOW, algorithm="AR-SGD")
    done, other = settings_of(tmp_path)
    (ranking,) = rankings([done, replace(other, runs=other.runs.assign(state="unfinished"))])
    assert ranking.target is not None and ranking.target.value == 0.92
    assert [(row.rank, row.name, row.note) for row in ranking.rows] == [
        (1, "SGP", ""),
        (None, "AR-SGD", "(unfinished)"),
    ]


def test_the_table_is_the_same_on_the_terminal_and_as_csv_and_markdown(tmp_path: Path) -> None:
    for seed in (1, 2):
        same = on("ethernet_10g", 1e10)
        with_seed = {"seed": seed, "settings": same}
        slow, fast = [*EARLY, *SLOW], [*EARLY, *FAST]
        write_run(tmp_path, f"a{seed}", slow, algorithm="AR-SGD", seconds=9.0, **with_seed)
        write_run(tmp_path, f"b{seed}", fast, seconds=8.0 + seed / 10, **with_seed)
    write_run(tmp_path, "c", [[0.3]] * 8, algorithm="low", settings=same)
    (table,) = ranked_tables(rankings(settings_of(tmp_path), 0.9))
    assert printed(tmp_path) == [
        "Simulated time to 90 % accuracy",
        "mlp on digits, cluster ethernet_10g (10 Gbit/s), 2 nodes. The",
        "target is the best that at least half of 3 settings reach with",
        "every seed; linear between evaluations. Speed-up over AR-SGD.",
        "                                                            sent",
        "#  algorithm  seconds   over seeds  speed-up  accuracy  per node",
        "────────────────────────────────────────────────────────────────",
        "1  SGP           57.0  56.7 – 57.4     1.26×    92.0 %      8 kB",
        "2  AR-SGD        72.0         72.0     1.00×    90.0 %      8 kB",
        "   low          never                           30.0 %      8 kB",
    ]
    assert markdown(table).splitlines()[4:] == [
        "| # | algorithm | seconds | over seeds | speed-up | accuracy | sent per node |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
        "| 1 | SGP | 57.0 | 56.7 – 57.4 | 1.26× | 92.0 % | 8 kB |",
        "| 2 | AR-SGD | 72.0 | 72.0 | 1.00× | 90.0 % | 8 kB |",
        "|  | low | never |  |  | 30.0 % | 8 kB |",
    ]
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [row["rank"] for row in rows] == ["1", "2", ""]
    assert [
        rows[0][key]
        for key in ("cluster", "seeds", "to_target_seconds", "to_target_seconds_max", "over")
    ] == [*("ethernet_10g (10 Gbit/s)", "1 2", "57.05", "57.39999999999999", "AR-SGD")]


def test_the_throughput_of_real_runs_has_columns(tmp_path: Path) -> None:
    rates = {"samples_per_s": 1234.0, "tokens_per_s": None, "flops_per_s": 5e13, "mfu": 0.125}
    write_run(tmp_path, "a", SLOW, nodes=1, clock="wall", waiting_share=0.0, **rates)
    write_run(tmp_path, "b", FAST, nodes=1, clock="wall", algorithm="OSGP")  # of an old version
    (table,) = ranked_tables(rankings(settings_of(tmp_path)))
    assert table.head[-3:] == ["samples/s per node", "MFU", "waiting"]
    assert [[cell.links[0].text for cell in line[-3:]] for line in table.cells] == [
        ["", "", ""],
        ["1,234", "12.5 %", "0 %"],
    ]
    assert list(table.raw.columns[-4:]) == ["samples_per_s", "flops_per_s", "mfu", "waiting_share"]
    settings, runs = tables(settings_of(tmp_path), [], lambda folder, name: name)
    assert settings.head[-6:-2] == ["samples/s per node", "FLOP/s per node", "MFU", "waiting"]
    assert [cell.links[0].text for cell in settings.cells[0][-6:-2]] == [
        "1,234",
        "50 T",
        "12.5 %",
        "0 %",
    ]
    assert list(runs.raw["mfu"][:1]) == [0.125] and "tokens_per_s" not in runs.raw


def test_tokens_take_the_place_of_samples(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SLOW, nodes=1, clock="wall", samples_per_s=2.0, tokens_per_s=256.0)
    (table,) = ranked_tables(rankings(settings_of(tmp_path)))
    assert table.head[-1] == "tokens/s per node"
    assert table.raw["samples_per_s"][0] == 2.0


def test_simulated_runs_have_no_columns_of_throughput(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SLOW, nodes=1)
    for table in (
        *ranked_tables(rankings(settings_of(tmp_path))),
        *tables(settings_of(tmp_path), [], lambda folder, name: name),
    ):
        assert not {*RATES} & {*table.raw.columns} and "waiting" not in table.head

"""What a report says of its runs: the box at the top, columns of what differs, looks, and axes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from helpers.report_runs import plots_of, settings_of, write_run

from sgp_runner.report.plots.figure import Axis
from sgp_runner.report.plots.style import LOOKS, StyleMap, axis_over, shade, ticks_between
from sgp_runner.report.rank.run_summary import differing, run_summary
from sgp_runner.report.render.pictures import SHAPES
from sgp_runner.report.render.write import write_report

CURVE = [[0.5], [0.8], [0.95]]


def with_settings(
    lr: float = 0.1, tau: int | None = None, bandwidth: float = 1e10
) -> dict[str, object]:
    algo = {"name": "osgp", "tau": tau} if tau else {"name": "sgp"}
    cluster = {"name": "ethernet_10g", "links": {"bandwidth": bandwidth}}
    timed_as = {"model": "resnet50", "num_parameters": 25557032, "batch_size": None}
    return {"algo": algo, "cluster": cluster, "optim": {"lr": lr}, "timed_as": timed_as}


def test_the_box_says_what_all_runs_share_and_every_value_of_what_differs(tmp_path: Path) -> None:
    for seed, nodes, lr in ((2, 4, 0.2), (1, 4, 0.2), (1, 16, 0.1)):
        write_run(
            tmp_path, f"{seed}-{nodes}", CURVE, seed=seed, nodes=nodes, settings=with_settings(lr)
        )
    box = run_summary(settings_of(tmp_path))
    assert box.facts == [
        ("model and data", "mlp on digits"),
        ("cluster", "ethernet_10g (10 Gbit/s)"),
        ("timed as", "resnet50, 25,557,032 parameters"),
        ("nodes", "4, 16"),
        ("batch size", "32 per node"),
        ("learning rate", "0.1, 0.2"),
        ("epochs", "3"),
        ("seeds", "1, 2"),
    ]
    assert "batch_size=32" in box.shared and "cluster.links.bandwidth=1e+10" in box.shared
    assert not any(word.startswith(("nodes=", "optim.lr=")) for word in box.shared)


def test_every_setting_that_differs_is_a_column(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", CURVE, settings=with_settings(0.1))
    write_run(tmp_path / "runs", "b", CURVE, settings=with_settings(0.2))
    write_run(tmp_path / "runs", "c", CURVE, algorithm="OSGP", settings=with_settings(tau=1))
    # tau is a setting of OSGP alone
    assert differing(settings_of(tmp_path / "runs")) == ["optim.lr"]
    write_run(tmp_path / "runs", "d", CURVE, algorithm="OSGP", settings=with_settings(tau=2))
    assert differing(settings_of(tmp_path / "runs")) == ["optim.lr", "algo.tau"]
    out = write_report([tmp_path / "runs"], tmp_path / "report").page.parent
    for name in ("settings", "runs"):
        with (out / f"{name}.csv").open() as file:
            rows = {(row["optim.lr"], row["algo.tau"]): row for row in csv.DictReader(file)}
        assert set(rows) == {("0.1", ""), ("0.2", ""), ("0.1", "1.0"), ("0.1", "2.0")}
        assert {row["cluster.links.bandwidth"] for row in rows.values()} == {"10000000000.0"}
        assert {row["cluster.name"] for row in rows.values()} == {"ethernet_10g"}
    assert "| optim.lr | algo.tau |" in (out / "settings.md").read_text()


def test_the_page_holds_the_complete_settings_of_its_runs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "a", CURVE, settings=with_settings(0.1234))
    page = write_report([tmp_path / "runs"], tmp_path / "report").page.read_text()
    assert (folder / "config.yaml").read_text().rstrip() in page
    assert "<dt>cluster</dt><dd>ethernet_10g (10 Gbit/s)</dd>" in page


def test_an_algorithm_has_the_same_colour_in_every_report(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "a", CURVE, algorithm="SGP")
    for number, algorithm in enumerate(["mine", "yours", *LOOKS, "SlowMo(SGP)"]):
        write_run(tmp_path / "all", f"{number}", CURVE, algorithm=algorithm)
    (one,) = settings_of(tmp_path / "one")
    settings = settings_of(tmp_path / "all")
    look = StyleMap(settings)
    styles = {group.algorithm: look.of(group) for group in settings}
    assert styles["SGP"] == StyleMap([one]).of(one)
    assert (styles["SGP"].colour, styles["SGP"].shape) == ("#6ac6a9", "diamond")
    assert styles["SlowMo(SGP)"].shape == styles["SlowMo"].shape == "cross"
    assert len({style.colour for style in styles.values()}) == 13
    assert len(set(LOOKS.values())) == len({shape for _, shape in LOOKS.values()}) == 10
    assert {shape for _, shape in LOOKS.values()} <= set(SHAPES)
    assert (styles["mine"].colour, styles["mine"].shape) == ("#808080", "circle")


def test_variants_of_an_algorithm_are_shades_of_its_colour(tmp_path: Path) -> None:
    for lr in (0.1, 0.2, 0.3):
        write_run(tmp_path, f"{lr}", CURVE, settings=with_settings(lr))
    settings = settings_of(tmp_path)
    look = StyleMap(settings)
    assert [look.of(group).dash for group in settings] == ["solid", "dash", "dot"]
    assert [look.of(group).colour for group in settings] == [
        shade("#6ac6a9", number, 3) for number in range(3)
    ]
    assert (shade("#ffffff", 0, 2), shade("#000000", 1, 2), shade("#123456", 0, 1)) == (
        *("#999999", "#737373", "#123456"),
    )


def test_a_slow_setting_does_not_squeeze_the_axis_of_time(tmp_path: Path) -> None:
    for name, seconds in (("a", 10.0), ("b", 11.0), ("c", 120.0)):
        write_run(tmp_path, name, CURVE, algorithm=name, seconds=seconds, early=5)
    plots = plots_of(tmp_path, 0.8)
    time = plots["accuracy-against-time-simulated-mlp_on_digits"]
    assert [(axis.title, axis.scale, axis.ticks) for axis in (time.x, time.y)] == [
        ("simulated time in minutes", "log", [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]),
        ("error in %", "log", [5, 10, 20, 50, 100]),
    ]
    assert [series.name for series in time.series] == ["a", "b", "c", "80 % accuracy"]
    target = plots["time_to_target-mlp_on_digits-simulated"]
    iteration = plots["time_per_iteration-simulated-mlp-digits"]
    assert [(plot.x.scale, plot.bars) for plot in (target, iteration)] == [("linear", True)] * 2
    assert [(label.text, label.x) for label in target.labels] == [
        ("20.0 s, 12.0×", 20.0),
        ("22.0 s, 10.9×", 22.0),
        ("240 s, 1.00×", 240.0),
    ]
    assert [series.y for series in iteration.series] == [["a"], ["b"], ["c"]]


def test_bars_begin_at_zero_up_to_a_range_of_thirty() -> None:
    assert axis_over("", [1.0, 30.0]) == Axis("", from_zero=True)
    assert axis_over("", [1.0, 31.0]) == Axis("", "log", [1, 2, 5, 10, 20])


def test_ticks_of_a_logarithmic_axis() -> None:
    assert ticks_between(2.7, 43.0) == [2, 5, 10, 20, 50]
    assert ticks_between(8.1, 144.0) == [5, 10, 20, 50, 100]
    assert ticks_between(0.55, 2.4) == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 3])


def test_runs_that_take_no_time_have_a_report_too(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", CURVE, seconds=0.0)
    write_run(tmp_path / "runs", "b", CURVE, seconds=0.0, algorithm="AR-SGD")
    write_run(tmp_path / "runs", "c", CURVE, seconds=5.0, algorithm="D-PSGD")
    made = write_report([tmp_path / "runs"], tmp_path / "report", 0.8)
    with (made.page.parent / "ranking.csv").open() as file:
        assert [(row["algorithm"], row["speed_up"]) for row in csv.DictReader(file)] == [
            *(("SGP", ""), ("AR-SGD", ""), ("D-PSGD", "0.0"))
        ]

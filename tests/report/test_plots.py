"""What a plot shows: which lines, on which axes, with which labels. Runs have known numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from helpers.report_runs import plots_of, settings_of, write_run
from matplotlib.text import Text

from sgp_runner.report.plots.figure import (
    Axis,
    Plot,
    Series,
    Style,
    end_of,
    labelled,
    placed,
    spanned,
)
from sgp_runner.report.plots.quality import choose_axis
from sgp_runner.report.plots.style import select_lines
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.read.naming import names, short_key, wrap_label
from sgp_runner.report.render.pictures import drawn

CURVE = [[0.5], [0.7], [0.9]]


def test_eight_lines_are_the_best_of_each_algorithm_then_the_next_best() -> None:
    ranked = ["SGP 1", "SGP 2", "OSGP 1", "SGP 3", "SGP 4", "SGP 5", "SGP 6", "SGP 7", "AR-SGD 1"]
    assert select_lines(ranked, lambda name: name.split()[0]) == [
        name for name in ranked if name != "SGP 7"
    ]
    assert select_lines([*"abcdefghij", "AR-SGD"], lambda name: name) == [*"abcdefg", "AR-SGD"]


def test_a_line_more_than_eight_is_named_but_not_drawn(tmp_path: Path) -> None:
    for number in range(9):
        settings = {"optim": {"lr": 0.1 + number}}
        write_run(tmp_path, f"s{number}", CURVE, seconds=10.0 + number, settings=settings, early=5)
    write_run(tmp_path, "ar", CURVE, seconds=15.5, algorithm="AR-SGD", early=5)
    plots = plots_of(tmp_path, 0.8)
    expected = [*(f"SGP lr={0.1 + number:g}" for number in range(6)), "AR-SGD", "SGP lr=6.1"]
    time = plots["accuracy-against-time-simulated-mlp_on_digits"]
    assert [series.name for series in time.series] == [*expected, "80 % accuracy"]
    assert time.rest == ["SGP lr=7.1: 42.5 s", "SGP lr=8.1: 45 s"]
    bars = plots["time_to_target-mlp_on_digits-simulated"]
    assert len(bars.series) == len(bars.labels) == 8
    assert [label.text for label in bars.labels][:1] == ["25.0 s, 1.55×"]
    assert bars.rest == ["SGP optim.lr=7.1: 42.5 s", "SGP optim.lr=8.1: 45 s"]
    assert len(plots["accuracy-against-epochs-mlp_on_digits"].series) == 8


def test_a_range_of_rates_is_a_band(tmp_path: Path) -> None:
    """From half of the time to the time, with one seed."""
    ends = [[1.0, 5.0], [2.0, 10.0], [3.0, 15.0]]
    write_run(tmp_path, "sgp", CURVE, evaluated_fastest=ends)
    write_run(tmp_path, "ar", CURVE, seconds=20.0, algorithm="AR-SGD")
    plot = plots_of(tmp_path, 0.8)["accuracy-against-time-simulated-mlp_on_digits"]
    sgp, ar, _ = plot.series
    assert sgp.band() == ([5.0, 10.0, 15.0, 30.0, 20.0, 10.0], [50, 70, 90, 90, 70, 50])
    assert ar.band()[0] == [60.0, 40.0, 20.0]  # only the line itself
    assert "Band: from the highest rate to the lowest" in plot.note
    write_run(tmp_path / "early", "sgp", CURVE, evaluated_fastest=ends, early=5)
    write_run(tmp_path / "early", "ar", CURVE, seconds=20.0, algorithm="AR-SGD", early=5)
    bars = plots_of(tmp_path / "early", 0.8)["time_to_target-mlp_on_digits-simulated"]
    assert [(one.low, one.x, one.high) for one in bars.series] == [
        ([12.5], [25.0], [25.0]),
        (None, [50.0], None),
    ]
    assert "lines: from the highest rate of the links to the lowest" in bars.note


def test_times_per_iteration_at_a_range_of_rates_are_bands(tmp_path: Path) -> None:
    for nodes in (2, 4):
        rates = {"ms_per_iteration": 10_000.0, "ms_per_iteration_fastest": 4000.0}
        write_run(tmp_path, f"sgp{nodes}", nodes=nodes, **rates)
    (plot,) = (found for name, found in plots_of(tmp_path).items() if "per_iteration" in name)
    assert plot.spread == "band"
    assert plot.series[0].band() == ([2, 4, 4, 2], [10_000, 10_000, 4000, 4000])


def test_the_band_of_a_falling_line_begins_at_the_lowest_seed_and_the_fastest_time() -> None:
    line = Series("", Style(), [2.0, 4.0], [9.0, 5.0], [8.0, 4.0], [10.0, 6.0], (), [1.0, 3.0])
    assert line.band() == ([1.0, 3.0, 4.0, 2.0], [8.0, 4.0, 6.0, 10.0])


def test_a_time_says_how_many_seeds_have_it_unless_all_do(tmp_path: Path) -> None:
    for seed, last in ((1, [[0.9]]), (2, [[0.8]])):
        write_run(tmp_path, f"sgp{seed}", [*CURVE[:2], *last], seed=seed, early=5)
        write_run(
            tmp_path, f"ar{seed}", CURVE, seconds=20.0, algorithm="AR-SGD", seed=seed, early=5
        )
    bars = plots_of(tmp_path, 0.9)["time_to_target-mlp_on_digits-simulated"]
    assert [label.text for label in bars.labels] == ["60.0 s", "30.0 s, 2.00×\n1 of 2 seeds"]


def test_the_first_plot_says_which_algorithm_is_fastest_on_which_network(tmp_path: Path) -> None:
    for cluster, times in (("slow", (90.0, 30.0)), ("quick", (8.0, 9.0))):
        for algorithm, seconds in zip(("AR-SGD", "SGP"), times, strict=True):
            where = {"cluster": {"name": cluster, "links": {"bandwidth": 1e9}}}
            write_run(
                tmp_path / cluster,
                algorithm,
                CURVE,
                seconds=seconds,
                algorithm=algorithm,
                settings=where,
                early=5,
            )
    plot = next(iter(plots_of(tmp_path, 0.9).values()))
    assert plot.name == "fastest-mlp_on_digits-simulated"
    assert plot.title == "fastest to 90 % accuracy on each network · mlp on digits"
    assert [(label.y, label.text) for label in plot.labels] == [
        ("quick (1 Gbit/s)", "AR-SGD 24.0 s"),
        ("slow (1 Gbit/s)", "SGP 90.0 s\nAR-SGD 270 s"),
    ]
    assert {series.name: series.x for series in plot.series} == {
        "AR-SGD": [24.0, 270.0],
        "SGP": [90.0],
    }
    assert (plot.x.scale, plot.x.from_zero) == ("linear", True)


def test_times_of_two_models_are_ranked_and_drawn_apart(tmp_path: Path) -> None:
    for model, seconds in (("resnet18", 1.0), ("resnet50", 10.0)):
        timed = {"timed_as": {"model": model}}
        write_run(tmp_path, model, CURVE, seconds=seconds, settings=timed, early=5)
    assert [
        (ranking.timed, len(ranking.rows)) for ranking in rankings(settings_of(tmp_path), 0.9)
    ] == [
        ("ResNet-18", 1),
        ("ResNet-50", 1),
    ]
    plots = plots_of(tmp_path, 0.9)
    assert [label.y for label in plots["fastest-mlp_on_digits-simulated"].labels] == [
        "sim, ResNet-18",
        "sim, ResNet-50",
    ]
    assert "time_to_target-mlp_on_digits-resnet_18-simulated" in plots


@pytest.mark.parametrize(
    ("reach", "ends", "begins", "axis"),
    [
        ([10, 12, 14, 20], [30, 30, 30, 35], [1, 1, 1, 1], ("linear", None)),
        ([10, 12, 14, 200], [30, 30, 30, 300], [1, 1, 1, 10], ("linear", 39)),
        ([10, 12, 14, 50], [10, 12, 14, 50], [1, 1, 1, 1], ("linear", None)),  # little is cut off
        ([10, 12, 14, 200], [30, 30, 30, 300], [1, 1, 1, 100], ("log", None)),  # begins too late
        ([10, 12, 200, 200, 10], [30] * 5, [1] * 5, ("log", None)),  # two of five are late
        ([1, 12, 14, 15], [30] * 4, [1] * 4, ("log", None)),  # the first would be squeezed
    ],
)
def test_an_outlier_ends_the_axis_of_time_or_makes_it_logarithmic(
    reach: list[float], ends: list[float], begins: list[float], axis: tuple[str, float | None]
) -> None:
    assert choose_axis(reach, ends, begins) == axis


def test_one_bad_accuracy_does_not_squeeze_the_others(tmp_path: Path) -> None:
    for name, best in (("a", 0.98), ("b", 0.97), ("c", 0.12)):
        write_run(tmp_path, name, [[0.1], [best]], algorithm=name)
    plot = plots_of(tmp_path)["accuracy-against-epochs-mlp_on_digits"]
    assert (plot.y.title, plot.y.scale, plot.y.ticks) == (
        "error in %",
        "log",
        [2, 5, 10, 20, 50, 100],
    )


def test_labels_keep_their_order_and_touch_where_lines_end_together() -> None:
    assert placed([0.2, 0.8], [0.1, 0.1]) == [0.2, 0.8]
    assert placed([0.5, 0.5], [0.1, 0.1]) == pytest.approx([0.45, 0.55])
    assert placed([0.52, 0.5, 0.51], [0.1, 0.2, 0.1]) == pytest.approx(
        [94 / 150, 56.5 / 150, 79 / 150]
    )
    assert placed([0.99, 1.0], [0.1, 0.1]) == pytest.approx([0.85, 0.95])  # not over the edge
    assert placed([0.0, 0.0], [0.1, 0.3]) == pytest.approx([0.05, 0.25])


def test_a_label_is_where_its_line_leaves_the_plot() -> None:
    line = Series("a", Style(dash="solid"), [0.0, 10.0, 20.0], [0.0, 1.0, 3.0])
    axis = Axis("x", span=(0.0, 15.0))
    assert end_of(line, axis) == (15.0, 2.0)
    assert end_of(line, Axis("x", span=(0.0, 30.0))) == (20.0, 3.0)
    plot = labelled(Plot("p", "", "", axis, Axis("y"), [line]))
    assert [(label.text, label.x, label.y, label.height) for label in plot.labels] == [
        ("a", 15.0, 2.0, pytest.approx(0.6543, 1e-3))
    ]
    assert plot.unfinished() == []
    shorter = labelled(Plot("p", "", "", Axis("x", span=(0.0, 30.0)), Axis("y"), [line]))
    assert shorter.unfinished() == [shorter.labels[0]]


def test_a_span_holds_all_values_and_an_edge() -> None:
    assert spanned(Axis("", from_zero=True), [5.0, 10.0], 0.1).span == (0.0, 11.0)
    assert spanned(Axis(""), [5.0, 10.0], 0.1).span == (4.5, 10.5)
    assert spanned(Axis("", "log"), [0.0, 1.0, 100.0], 0.5).span == pytest.approx((0.1, 1000.0))
    assert spanned(Axis(""), [2.0], 0.1).span == (1.0, 3.0)


def test_names_say_what_differs_among_the_lines_alone(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        write_run(tmp_path, f"a{lr}", CURVE, settings={"optim": {"lr": lr}})
    write_run(tmp_path, "b", CURVE, algorithm="AR-SGD", nodes=2, row="goyal_8k")
    write_run(tmp_path, "c", CURVE, algorithm="AR-SGD", nodes=2, row="slowmo_imagenet_ar_sgd")
    settings = settings_of(tmp_path)
    assert names(settings[:2]) == ["SGP lr=0.1", "SGP lr=0.2"]
    assert names(settings[:1]) == ["SGP"]
    assert names(settings[2:]) == ["AR-SGD · goyal_8k", "AR-SGD · slowmo_imagenet_ar_sgd"]
    assert short_key("optim.schedule.warmup_epochs=5") == "warmup_epochs=5"
    assert wrap_label("AR-SGD warmup_epochs=5") == "AR-SGD warmup_\nepochs=5"
    assert len(wrap_label("word " * 50).split("\n")) == 4


def test_texts_beside_a_picture_do_not_overlap(tmp_path: Path) -> None:
    for number in range(8):
        write_run(
            tmp_path, f"{number}", [[0.5], [0.9 + number / 1e4]], algorithm=f"Algorithm {number}"
        )
    figure = drawn(plots_of(tmp_path)["accuracy-against-epochs-mlp_on_digits"])
    figure.canvas.draw()
    boxes = sorted(map(Text.get_window_extent, figure.axes[0].texts), key=lambda b: b.y0)
    assert len(boxes) == 8 and all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_the_consensus_distance_is_drawn_over_time_where_models_differ(tmp_path: Path) -> None:
    write_run(tmp_path, "a", CURVE, consensus=[0.4, 0.0, 0.2])
    write_run(tmp_path, "b", CURVE, consensus=[0.2, 0.0, 0.1], seed=2)
    write_run(tmp_path, "c", CURVE, consensus=[0.0, 0.0, 0.0], algorithm="AR-SGD")
    write_run(tmp_path, "d", CURVE, algorithm="OSGP")
    plot = plots_of(tmp_path)["consensus-simulated-mlp_on_digits"]
    assert [(line.name, line.x, line.y) for line in plot.series] == [
        ("SGP", [10.0, 30.0], pytest.approx([0.3, 0.15]))
    ]
    assert (plot.x.title, plot.y.title, plot.y.scale) == (
        "simulated time in seconds",
        "consensus distance",
        "log",
    )


def test_equal_models_have_no_plot_of_their_consensus(tmp_path: Path) -> None:
    write_run(tmp_path, "a", CURVE, consensus=[0.0, 0.0, 0.0])
    assert not [name for name in plots_of(tmp_path) if name.startswith("consensus")]

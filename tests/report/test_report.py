"""Reports on runs with known numbers; the page itself is opened in test_report_page.py."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from helpers.report_runs import COMMIT, settings_of, write_run
from rich.console import Console

from sgp_runner.cli.report import main, parser
from sgp_runner.report.plots.figure import Series, Style
from sgp_runner.report.plots.sections import Section, sections
from sgp_runner.report.rank.ranked_table import ranked_tables
from sgp_runner.report.rank.ranking import rankings, target_of
from sgp_runner.report.rank.translations import translation_tables
from sgp_runner.report.read.published import PATH, pairs_of, published
from sgp_runner.report.read.run_groups import RunGroup, labels
from sgp_runner.report.read.runs import read_runs
from sgp_runner.report.render.terminal import grid, published_grid
from sgp_runner.report.render.write import write_report
from sgp_runner.utils.messages import showing_messages

SGP_1 = [[0.50, 0.60], [0.80, 0.90], [0.90, 1.00]]
SGP_2 = [[0.30, 0.40], [0.60, 0.70], [0.90, 0.94]]


def section(settings: list[RunGroup], title: str, target: float | None = None) -> Section:
    (found,) = (
        candidate
        for candidate in sections(settings, rankings(settings, target), pairs_of(settings))
        if candidate.title.startswith(title)
    )
    return found


def test_bars_are_never_shorter_than_nothing() -> None:
    mean = sum([0.1] * 3) / 3
    assert mean > 0.1  # by one bit
    down, up = Series("SGP", Style(), x=["a"], y=[mean], low=[0.1], high=[0.1]).reach([mean])
    assert (down, up) == ([mean - 0.1], [0.0])


def test_seeds_of_a_setting_become_a_mean_and_a_range(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SGP_1, seed=1)
    write_run(tmp_path, "b", SGP_2, seed=2, seconds=20.0)
    (setting,) = settings_of(tmp_path)
    assert (
        setting.seeds == [1, 2]
        and setting.finished
        and setting.kind == "rehearsal"
        and labels([setting]) == ["SGP"]
    )
    curve = setting.curve.round(12)
    assert list(curve["epoch"]) == [1, 2, 3]
    assert list(curve["quality"]) == [0.45, 0.75, 0.935]
    assert list(curve["low"]) == [0.35, 0.65, 0.92] and list(curve["high"]) == [0.55, 0.85, 0.95]
    assert list(curve["time_s"]) == [15, 30, 45] and list(curve["bytes"]) == [1000, 2000, 3000]
    assert (
        setting.mean("averaged") == pytest.approx(0.97, abs=1e-12)
        and setting.mean("ms_per_iteration") == 15000
    )

    (plot,) = section([setting], "Accuracy against time").plots
    series, target = plot.series
    assert (
        plot.x.title == "simulated time in seconds"
        and plot.title == "error against simulated time · rehearsal, mlp on digits"
    )
    assert [round(float(y), 9) for y in series.y] == [55, 25, 6.5] and series.x == [15, 30, 45]
    assert (target.name, target.x) == ("92 % accuracy", [0, 45])
    (plot,) = section([setting], "Accuracy against bytes").plots
    assert plot.x.title == "kB sent per node" and plot.series[0].x == [1, 2, 3]


def test_bytes_between_two_records_lie_on_the_line_between_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", SGP_1)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["kind"] != "train" or line["epoch"] != 2]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert list(read_runs([tmp_path]).curves["bytes"]) == [1000, 2000, 3000]


def test_an_epoch_counts_when_every_worker_and_every_seed_has_it(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SGP_1, seed=1)
    folder = write_run(tmp_path, "b", SGP_2, seed=2)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(
        "".join(
            line for line in lines if not ('"eval"' in line and '"epoch": 3, "rank": 1' in line)
        )
    )
    (setting,) = settings_of(tmp_path)
    assert list(setting.curve["epoch"]) == [1, 2]


@pytest.mark.parametrize("facts", [{"server": True}, {"settings": {"eval_workers": False}}])
def test_the_model_of_a_server_or_the_averaged_one_counts(
    facts: dict[str, Any], tmp_path: Path
) -> None:
    write_run(tmp_path, "a", SGP_1, **facts)
    assert list(read_runs([tmp_path]).curves["quality"]) == [0.6, 0.9, 1.0]


def test_runs_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SGP_1, settings={"optim": {"lr": 0.1, "decay": 0.01}})
    write_run(tmp_path, "b", SGP_1, settings={"optim": {"lr": 0.2, "decay": 0.02}})
    write_run(tmp_path, "c", SGP_1, settings={"optim": {"lr": 0.1, "decay": 0.01}}, nodes=4)
    write_run(tmp_path, "d", SGP_1, algorithm="AR-SGD")
    settings = settings_of(tmp_path)
    assert [group.method for group in settings] == [
        "SGP optim.lr=0.1",
        "SGP optim.lr=0.1",
        "SGP optim.lr=0.2",
        "AR-SGD",
    ]
    assert labels(settings)[:2] == ["SGP optim.lr=0.1 · 2 nodes", "SGP optim.lr=0.1 · 4 nodes"]
    styles = [
        series.style for series in section(settings, "Accuracy against epochs").plots[0].series
    ]
    assert (
        len(set(styles)) == 4
        and styles[0].colour == styles[1].colour
        and styles[0].dash != styles[1].dash
    )


def test_simulated_and_measured_time_are_never_in_one_plot(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SGP_1)
    write_run(tmp_path, "b", SGP_1, clock="wall")
    settings = settings_of(tmp_path)
    time = section(settings, "Accuracy against time").plots
    assert [(plot.x.title, len(plot.series)) for plot in time] == [
        ("simulated time in seconds", 2),
        ("measured time in seconds", 2),
    ]
    (epochs,) = section(settings, "Accuracy against epochs").plots
    assert [(series.name, series.style.fill) for series in epochs.series] == [
        ("SGP · rehearsal", "hollow"),
        ("SGP · real", "full"),
    ]


def test_speed_up_is_relative_to_the_fewest_nodes_of_the_method(tmp_path: Path) -> None:
    for nodes, seconds in ((4, 0.100), (8, 0.125), (16, 0.2)):
        write_run(tmp_path, f"sgp{nodes}", nodes=nodes, seconds=seconds)
    write_run(tmp_path, "ar16", algorithm="AR-SGD", nodes=16, seconds=0.1)
    settings = settings_of(tmp_path)
    (iteration,) = section(settings, "Time per iteration").plots
    assert {
        series.name: (series.x, [round(float(y), 9) for y in series.y])
        for series in iteration.series
    } == {
        "SGP": ([4, 8, 16], [100, 125, 200]),
        "AR-SGD": ([16], [100]),
    }
    speed, efficiency = section(settings, "Speed-up").plots
    assert [(series.name, [round(float(y), 9) for y in series.y]) for series in speed.series] == [
        ("SGP", [1, 1.6, 2]),
        ("ideal", [1, 4]),
    ]
    assert [round(float(y), 9) for y in efficiency.series[0].y] == [100, 80, 50]
    assert "timing only, simulated" in speed.title


def test_time_to_a_target(tmp_path: Path) -> None:
    write_run(tmp_path, "a", SGP_1, seed=1, early=5)
    write_run(tmp_path, "b", SGP_2, seed=2, early=5)
    write_run(tmp_path, "c", [[0.2, 0.2], [0.3, 0.3]], algorithm="AR-SGD", early=5)
    settings = settings_of(tmp_path)
    assert [group.best for group in settings] == [pytest.approx(0.92), 0.3]
    assert settings[0].times_to(0.85) == pytest.approx([20, 20 + 10 * 0.2 / 0.27])
    assert settings[1].times_to(0.85) == []
    (plot,) = section(settings, "Time to a target", target=0.85).plots
    (series,) = plot.series
    assert series.y == ["SGP"]
    assert [series.x, series.low, series.high] == [
        pytest.approx([seconds]) for seconds in (23.7037037, 20, 27.4074074)
    ]
    assert plot.note.startswith("The target is as asked.")
    assert plot.note.endswith("Not reached by AR-SGD.")
    (plot,) = section(settings, "Time to a target", target=0.93).plots
    assert plot.series[0].texts == ["1 of 2 seeds"] and plot.series[0].x == pytest.approx([28])


def test_a_low_loss_is_a_good_one(tmp_path: Path) -> None:
    for name, losses in (("a", (4.0, 0.0234)), ("b", (3.0, 0.5))):
        folder = write_run(tmp_path, name, [[0.0, 0.0]] * 2, algorithm=name)
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            if record.pop("accuracy", None) is not None:
                record["loss"] = losses[record["epoch"] - 1]
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
    settings = settings_of(tmp_path)
    assert [group.best for group in settings] == [0.0234, 0.5]
    assert target_of(settings, None).value == 0.024
    assert [group.times_to(0.0234) for group in settings] == [[20], []]
    (plot,) = section(settings, "Loss against epochs").plots
    assert plot.y.scale == "log"


def test_published_rows_are_known_by_their_ids_and_derived_figures_are_marked() -> None:
    rows = published()
    assert set(rows["sgp_sgp_90"]) == {"val_top1", "train_top1", "hours", "ms_per_iteration"}
    ms = rows["sgp_sgp_90"]["ms_per_iteration"]
    assert (
        ms.derived
        and ms.value == pytest.approx(383.65, abs=0.01)
        and ms.origin == "Assran et al. 2019, authors' slides (derived)"
    )
    assert not rows["slowmo_imagenet_sgp"]["ms_per_iteration"].derived
    assert rows["slowmo_wmt16_sgp_slowmo"]["bleu"].value == 27.84
    assert rows["goyal_8k_no_warmup"]["top1_error"].spread == 0.37
    assert rows["pipesgd_pipe_sgd"]["speedup"].value == 5.4
    assert len(rows) == 5 + 7 + 7 + 5 + 3 + 1 + 5 + 1
    assert "derived" not in PATH.read_text()


def test_only_like_is_compared_with_like(tmp_path: Path) -> None:
    write_run(tmp_path, "time", row="sgp_sgp_90", nodes=32, ms_per_iteration=400.0, hours=1.65)
    write_run(tmp_path, "fit", row="sgp_sgp_270", nodes=32, ms_per_iteration=400.0, fitted=True)
    write_run(tmp_path, "small", SGP_1, row="sgp_sgp_90")
    write_run(tmp_path, "full", [[0.75, 0.76]], row="goyal_256", clock="wall", data="imagenet")
    pairs = {(pair.row, pair.metric, pair.kind): pair for pair in pairs_of(settings_of(tmp_path))}
    hours = pairs["sgp_sgp_90", "hours", "timing only"]
    assert hours.error == pytest.approx(10.0) and hours.ours_is == "simulated, predicted"
    assert pairs["sgp_sgp_90", "ms_per_iteration", "timing only"].error == pytest.approx(
        4.26164, abs=1e-5
    )
    assert (
        pairs["sgp_sgp_270", "ms_per_iteration", "timing only"].ours_is == "simulated, fitted to it"
    )
    assert ("sgp_sgp_90", "ms_per_iteration", "rehearsal") not in pairs
    starred = [
        plot.title
        for plot in section(settings_of(tmp_path), "Time per iteration").plots
        if plot.series[-1].name == "published"
    ]
    assert starred == ["time per iteration on 32 nodes · timing only, simulated, of digits"]
    small = pairs["sgp_sgp_90", "val_top1", "rehearsal"]
    assert (small.ours, small.averaged, small.error) == (pytest.approx(95.0), 100.0, None)
    assert small.ours_is == "rehearsal on digits: not comparable"
    error = pairs["goyal_256", "top1_error", "real"]
    assert (
        error.ours == pytest.approx(24.5)
        and error.error == pytest.approx(100 * 0.9 / 23.6)
        and error.ours_is == "real"
    )
    assert [plot.name for plot in section(settings_of(tmp_path), "Published").plots] == [
        "published-hours-sgp",
        "published-ms_per_iteration-sgp",
        "published-top1_error-goyal",
    ]


def test_a_run_is_compared_when_it_is_as_long_as_the_published_one(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        "full",
        [[0.76, 0.77]] * 90,
        row="sgp_sgp_90",
        data="imagenet",
        label="trained on imagenet; time simulated",
    )
    write_run(tmp_path, "short", [[0.76, 0.77]], row="sgp_sgp_90", data="imagenet", clock="wall")
    full, short = (pair for pair in pairs_of(settings_of(tmp_path)) if pair.metric == "val_top1")
    assert (
        full.ours == pytest.approx(76.5)
        and full.error == pytest.approx(100 * 1.6 / 74.9)
        and full.ours_is == "trained"
    )
    assert short.error is None and short.ours_is == "real on imagenet: not comparable"


def test_tables_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    for seed in range(1, 4):
        write_run(
            tmp_path,
            f"a{seed}",
            SGP_1,
            seed=seed,
            algorithm="SlowMo(Local SGD)",
            settings={"optim": {"lr": 0.123456}},
        )
        write_run(tmp_path, f"b{seed}", SGP_1, seed=seed, algorithm="SlowMo(Local SGD)")
    write_run(tmp_path, "c", row="slowmo_imagenet_local_sgd_slowmo", ms_per_iteration=300.0)
    settings = settings_of(tmp_path)
    tables = [grid(table) for table in ranked_tables(rankings(settings))]
    tables.append(published_grid(pairs_of(settings)))
    for table in tables:
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(table)
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert "+6.4 %" in text and "predicted" in text


def test_a_report_is_complete_and_its_links_lead_somewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "results" / "runs"
    write_run(runs, "a", SGP_1, seed=1, early=5)
    write_run(runs, "b", SGP_2, seed=2, early=5)
    write_run(runs, "c", nodes=32, row="sgp_sgp_90", ms_per_iteration=400.0, hours=1.65)
    out = tmp_path / "somewhere" / "report"
    assert main([str(runs), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and f"report in {out / 'index.html'}\n" in said.out

    assert {path.name for path in out.iterdir()} == {"index.html", "plots"} | {
        f"{table}.{kind}"
        for table in (
            *("ranking-mlp_on_digits-simulated", "ranking-timing_only_on_digits-simulated"),
            *("settings", "runs", "published"),
        )
        for kind in ("csv", "md")
    }
    page = (out / "index.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert len(figures) == 8
    assert {path.name for path in (out / "plots").iterdir()} == {
        f"{figure['name']}.{kind}" for figure in figures for kind in ("png", "svg")
    }
    assert all(
        ElementTree.parse(path).getroot().tag.endswith("svg")
        for path in (out / "plots").glob("*.svg")
    )
    assert all(path.read_bytes()[1:4] == b"PNG" for path in (out / "plots").glob("*.png"))

    markdown = "".join(
        (out / f"{table}.md").read_text() for table in ("settings", "runs", "published")
    )
    links = set(re.findall(r'href="([^"#][^"]*)"', page.split("<script")[0])) | set(
        re.findall(r"\]\(([^)]*)\)", markdown)
    )
    links.discard("data:,")
    assert "../../results/runs/a/metrics.jsonl" in links
    assert [link for link in links if not (out / link).exists()] == []
    for name in ("published", "runs", "settings"):
        with (out / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert all(COMMIT[:9] in (row.get("commits") or row["commit"]) for row in rows)
    first = rows[0]  # of the settings
    assert (first["seeds"], first["logs"]) == (
        "1 2",
        "../../results/runs/a/metrics.jsonl ../../results/runs/b/metrics.jsonl",
    )
    assert float(first["quality"]) == pytest.approx(0.935) and first["kind"] == "rehearsal"


def test_without_matplotlib_a_report_has_no_pictures_and_no_links_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", "a", SGP_1, seed=1)
    page = write_report([tmp_path / "runs"], tmp_path / "report").page
    assert 'href="plots/' in page.read_text() and list(page.parent.glob("plots/*.png"))
    monkeypatch.setattr("sgp_runner.report.render.write.installed", lambda name: False)
    with showing_messages(verbose=True):
        write_report([tmp_path / "runs"], tmp_path / "report")
    assert 'href="plots/' not in page.read_text() and not list(page.parent.glob("plots/*"))
    assert capsys.readouterr().out == (
        "Plots are only in the page; to get image files: pip install 'sgp-runner[report]'.\n"
    )


def test_the_same_runs_make_the_same_report(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", SGP_1)
    out = tmp_path / "report"
    files = []
    for _ in range(2):
        write_report([tmp_path / "runs"], out)
        files.append({path: path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert files[0] == files[1]


def test_links_lead_to_where_runs_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", SGP_1)
    write_report([tmp_path / "runs"], tmp_path / "report")
    runs = (tmp_path / "report" / "runs.md").read_text()
    assert "[a](../runs/a)" in runs
    assert "[log](../runs/a/metrics.jsonl) [settings](../runs/a/config.yaml)" in runs
    assert "[1](../runs/a/metrics.jsonl)" in (tmp_path / "report" / "settings.md").read_text()


def test_text_of_a_run_cannot_become_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", SGP_1, algorithm="</script><script>alert(1)</script>|x")
    page = write_report([tmp_path / "runs"], tmp_path / "report").page
    assert "<script>alert" not in page.read_text()
    assert "\\|x" in (tmp_path / "report" / "runs.md").read_text()


def test_unfinished_runs_are_shown_and_damaged_ones_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers.experiments import make_experiment

    unfinished = make_experiment(tmp_path, "model=mlp", "epochs=2", "nodes=2").directory
    record = {
        "kind": "train",
        "time_s": 7.0,
        "clock": "simulated",
        "rank": 0,
        "step": 0,
        "epoch": 0.0,
        "bytes_sent": 5,
        "loss": 1.0,
    }
    (unfinished / "metrics.jsonl").write_text(json.dumps(record) + "\n" + '{"kind": "ev')
    runs = tmp_path / "runs"
    write_run(runs, "fine", SGP_1)
    (write_run(runs, "no_config", SGP_1) / "config.yaml").unlink()
    (write_run(runs, "bad_config", SGP_1) / "config.yaml").write_text("{")
    (write_run(runs, "bad_summary", SGP_1) / "summary.json").write_text("[1]")
    (write_run(runs, "old_summary", SGP_1) / "summary.json").write_text('{"algorithm": "SGP"}')
    (write_run(runs, "bad_line", SGP_1) / "metrics.jsonl").write_text("nonsense\n{}\n")
    (write_run(runs, "unknown", SGP_1, finished=False) / "config.yaml").write_text("nodes: 2\n")
    out = tmp_path / "report"
    assert main([str(runs), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "unfinished" in said.out
    sentences = said.err.splitlines()
    assert len(sentences) == 6 and all(
        line.startswith(f"sgp-report: {runs}/") and " is left out: " in line for line in sentences
    )
    assert f"sgp-report: {runs / 'no_config'} is left out: it has no config.yaml." in sentences
    assert any(
        "old_summary is left out: its summary.json lacks model, data" in line for line in sentences
    )
    assert any("bad_line" in line and "line 1" in line for line in sentences)
    with (out / "runs.csv").open() as file:
        assert {row["run"]: (row["state"], row["time_s"]) for row in csv.DictReader(file)} == {
            "fine": ("finished", "30.0"),
            unfinished.name: ("unfinished", "7.0"),
        }


def test_what_lies_in_a_run_is_no_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "below" / "deeper", "a", SGP_1)
    write_run(folder / "wandb", "files", SGP_1)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "config.yaml").touch()
    runs = read_runs([tmp_path, folder])
    assert list(runs.table["run"]) == ["a"] and runs.skipped == ()


def test_a_sweep_is_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path / "results" / "runs", name, SGP_1)
    sweep = tmp_path / "results" / "sweeps" / "s"
    sweep.mkdir(parents=True)
    (sweep / "comparison.csv").write_text(
        "job,run_dir\nx,results/runs/a\ny,results/runs/c\nz,results/runs/gone\n"
    )
    for here in (tmp_path, tmp_path / "results"):
        monkeypatch.chdir(here)
        assert list(read_runs([sweep]).table["run"]) == ["a", "c"]


def test_translations_of_a_sentence_stand_below_each_other(tmp_path: Path) -> None:
    def sentence(translation: str) -> dict[str, str]:
        return {"source": "two <b>", "reference": "zwei", "translation": translation}

    write_run(tmp_path, "a", SGP_1, translations=[sentence("drei")])
    write_run(tmp_path, "b", SGP_1, algorithm="OSGP", translations=[sentence("zwei"), "odd"])
    write_run(tmp_path, "c", SGP_1, algorithm="AR-SGD", translations="odd")
    [table] = translation_tables(settings_of(tmp_path))
    assert table.raw.values.tolist() == [
        [1, "source", "two <b>"],
        [1, "reference", "zwei"],
        [1, "SGP", "drei"],
        [1, "OSGP", "zwei"],
    ]
    page = write_report([tmp_path], tmp_path / "report").page.read_text(encoding="utf-8")
    assert "two &lt;b&gt;" in page and "two <b>" not in page
    assert translation_tables([]) == []


def test_a_target_may_be_a_percentage() -> None:
    assert [
        parser().parse_args(["runs", "--target", word]).target
        for word in ("0.95", "95%", "95.1%", "27.3")
    ] == [0.95, 0.95, 0.951, 27.3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "sgp-report: nowhere: there is no such folder.\n"),
        (
            ["empty"],
            "sgp-report: empty: this folder holds no runs; name folders such as results/runs.\n",
        ),
        (["runs", "--nonsense"], "sgp-report: unrecognized arguments: --nonsense\n"),
        ([], "sgp-report: the following arguments are required: FOLDER\n"),
        *(
            (
                ["runs", "--target", word],
                f"sgp-report: argument --target: '{word}' is not a quality: "
                "write 0.95, 95% or 27.3.\n",
            )
            for word in ("x", "-1", "%", "x%", "0%", "nan%")
        ),
        *(
            (
                ["runs", "--target", word],
                "sgp-report: --target: an accuracy is between 0 and 1, not 90: write 90 % as "
                "--target 0.9.\n",
            )
            for word in ("9000%", "90")
        ),
        (
            ["runs", "--out", "file/below"],
            "sgp-report: --out: cannot write to file/below: Not a directory.\n",
        ),
    ],
)
@pytest.mark.usefixtures("in_an_empty_folder")
def test_what_cannot_work_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    write_run(Path("runs"), "a", SGP_1)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    assert (code, capsys.readouterr().err) == (2, sentence)


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from sgp_runner.cli.report import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "pandas", "numpy", "matplotlib", "jinja2", "rich", "yaml"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: sgp-report") and done.stdout.endswith("\n[]\n")


def test_nothing_is_known_of_a_run_that_was_never_evaluated(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    (setting,) = settings_of(tmp_path)
    assert math.isnan(setting.best) and setting.kind == "timing only"
    assert next(
        part.absent for part in sections([setting], rankings([setting]), []) if not part.plots
    ).startswith("No run was evaluated")


def test_older_runs_have_the_settings_that_came_later_if_newer_ones_agree(tmp_path: Path) -> None:
    def seeds_with(*later: dict[str, object]) -> list[list[int]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        old = {"data": {"name": "digits", "alpha": 0.1}, "cluster": {"step_seconds": {"mlp": 1.0}}}
        write_run(folder, "run1", [(0.5, 0.5)], seed=1, settings=old)
        for seed, more in enumerate(later, 2):
            new = {group: {**values, **more.pop(group, {})} for group, values in old.items()}  # type: ignore[call-overload]
            write_run(folder, f"run{seed}", [(0.5, 0.5)], seed=seed, settings={**new, **more})
        return sorted(group.seeds for group in settings_of(folder))

    agreed = {"data": {"holdout": 0.0}, "clip": False, "new": {"name": "new", "a": 1}}
    assert seeds_with(agreed) == [[1, 2]]
    assert seeds_with({"clip": False}, {"clip": False, "data": {"holdout": 0.0}}) == [[1, 2, 3]]
    assert seeds_with({"clip": False}, {"clip": True}) == [[1], [2], [3]]  # which was it?
    assert seeds_with({"data": {"alpha": 0.2, "holdout": 0.0}}) == [[1], [2]]
    other_step = {"cluster": {"step_seconds": {"mlp": 1.0, "resnet50": 2.0}}}
    assert seeds_with(other_step) == [[1], [2]]

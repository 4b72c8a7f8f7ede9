"""Loggers but that of W&B: each holds every point once, also when a run was resumed."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import make_experiment
from helpers.refusals import refusal

from sgp_runner.assembly.execution import run_experiment
from sgp_runner.cli.main import main
from sgp_runner.cli.sync import main as sync_main
from sgp_runner.config.experiment import settings_of
from sgp_runner.config.logger import Logger
from sgp_runner.recording.loggers.csv import Csv
from sgp_runner.recording.loggers.mirror import check_installed, grouped_settings
from sgp_runner.recording.loggers.mlflow import Mlflow
from sgp_runner.recording.loggers.tensorboard import TensorBoard
from sgp_runner.recording.recorder import Recorder, metrics_path, trim

CONFIG = {"algo": {"name": "sgp"}, "nodes": 4, "optim": {"name": "sgd", "lr": 0.1}}
SUMMARY = {"time_s": 2.0, "average": 0.75, "label": "trained"}


def train(step: int, rank: int = 0) -> dict[str, object]:
    record = {"kind": "train", "rank": rank, "step": step, "epoch": step / 2}
    return record | {"time_s": 0.5 * step, "clock": "simulated", "loss": 1.0 / (step + 1)}


def average(epoch: int) -> dict[str, object]:
    record = {"kind": "average", "epoch": epoch, "time_s": 1.0 * epoch, "clock": "simulated"}
    return record | {"loss": 0.25, "accuracy": 0.5}


def resumed_run(logger: Logger, run_dir: Path) -> None:
    """Simulate a run that is killed after step 3, and resumed from its checkpoint after step 1."""

    def opened() -> Any:
        return logger.open(run_dir, "run", CONFIG, ["SGP"], None)

    with Recorder(run_dir, 0, (opened(),)) as recorder:
        for step in (0, 1):
            recorder.write(train(step))
            recorder.write(train(step, rank=1))
        saved = recorder.position()
        for record in (train(2), average(1), train(3)):
            recorder.write(record)
    trim(metrics_path(run_dir, 0), saved)
    with Recorder(run_dir, 0, (opened(),), saved) as recorder:
        for record in (train(2), average(1), train(3), train(4), average(2)):
            recorder.write(record)
        recorder.finish(SUMMARY)


def test_csv_has_a_row_per_record(tmp_path: Path) -> None:
    resumed_run(Csv(), tmp_path)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["rank"], row["step"]) for row in rows] == [
        *(("train", rank, step) for step in "01" for rank in "01"),
        *(("train", "0", "2"), ("average", "", ""), ("train", "0", "3")),
        *(("train", "0", "4"), ("average", "", "")),
    ]
    assert rows[4] == {
        **{"kind": "train", "rank": "0", "step": "2", "epoch": "1.0", "time_s": "1.0"},
        **{"clock": "simulated", "loss": str(1 / 3), "accuracy": ""},
    }


def test_csv_has_what_no_json_number_is(tmp_path: Path) -> None:
    listener = Csv().open(tmp_path, "run", CONFIG, [], None)
    with Recorder(tmp_path, 0, (listener,)) as recorder:
        recorder.write({**train(0), "loss": math.inf})
        recorder.write({**train(1), "new": 1})
        recorder.write({**train(2), "loss": math.nan})
    with (tmp_path / "metrics.csv").open() as file:
        assert [(row["loss"], row["new"]) for row in csv.DictReader(file)] == [
            *(("inf", ""), ("0.5", "1"), ("nan", "")),
        ]


def test_a_table_that_cannot_be_written_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with Recorder(tmp_path, 0, (Csv().open(tmp_path, "run", CONFIG, [], None),)) as recorder:
        recorder.write(train(0))
        recorder.write(train(1))
    err = capsys.readouterr().err
    assert err.startswith("warning: CSV failed, so metrics.csv is incomplete (")
    assert err.count("\n") == 1


def points(run_dir: Path, name: str) -> list[tuple[int, float, float]]:
    """Step, value and seconds after the first one of a scalar, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard")).Reload().Scalars(name)
    return [(point.step, point.value, point.wall_time - events[0].wall_time) for point in events]


def test_tensorboard_has_points_over_steps_and_the_clock_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "runs" / "one"
    resumed_run(TensorBoard(), run_dir)
    assert points(run_dir, "train/loss") == [
        (step, pytest.approx(1 / (step + 1)), pytest.approx(step / 2, abs=1e-3))
        for step in range(5)
    ]
    assert [point[:2] for point in points(run_dir, "average/accuracy")] == [(2, 0.5), (4, 0.5)]
    assert [point[1] for point in points(run_dir, "final/average")] == [0.75]
    assert capsys.readouterr() == (
        2 * f"TensorBoard: tensorboard --logdir {run_dir.parent} shows it\n",
        "",
    )


def history(results: Path, run_dir: Path, name: str) -> list[tuple[int, float, int]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{results}/mlflow.db")
    run_id = (run_dir / "mlflow_id").read_text().strip()
    start = client.get_run(run_id).info.start_time
    return [
        (metric.step, metric.value, metric.timestamp - start)
        for metric in client.get_metric_history(run_id, name)
    ]


def test_mlflow_has_points_over_steps_and_the_clock_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tmp_path / "runs" / "one"
    resumed_run(Mlflow(), run_dir)
    assert history(tmp_path, run_dir, "train/loss") == [
        (step, 1 / (step + 1), 500 * step) for step in range(5)
    ]
    assert history(tmp_path, run_dir, "average/accuracy") == [(2, 0.5, 1000), (4, 0.5, 2000)]
    assert history(tmp_path, run_dir, "final/average") == [(4, 0.75, 2000)]

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_id = (run_dir / "mlflow_id").read_text().strip()
    run = MlflowClient(tracking_uri=uri).get_run(run_id)
    assert run.data.params == {
        **{"algorithm": "sgp", "nodes": "4", "algo.name": "sgp"},
        **{"optim.name": "sgd", "optim.lr": "0.1"},
    }
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert capsys.readouterr() == (2 * f"MLflow: run {run_id} in {uri}\n", "")


def test_mlflow_without_a_server_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    listener = Mlflow(uri="http://127.0.0.1:9").open(tmp_path / "runs/one", "run", CONFIG, [], None)
    with Recorder(tmp_path / "runs/one", 0, (listener,)) as recorder:
        recorder.write(train(0))
        recorder.finish(SUMMARY)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("warning: MLflow failed to start, so this run is in metrics.jsonl only (")


def test_a_recorded_run_is_copied_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("model=quadratic", "data.samples=64", "nodes=2", "epochs=2", "batch_size=16")
    experiment = make_experiment(tmp_path, *overrides, "log_every=1", "logger=tensorboard")
    assert run_experiment(experiment) is not None
    before = points(experiment.directory, "train/loss")
    assert len(before) > 1
    for path in (experiment.directory / "tensorboard").iterdir():
        path.unlink()
    capsys.readouterr()
    assert sync_main([str(experiment.directory)]) == 0
    after = points(experiment.directory, "train/loss")
    assert [point[:2] for point in after] == [point[:2] for point in before]


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_logger_that_is_chosen_later_copies_a_finished_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = ["model=quadratic", "data.samples=64", "nodes=2", "epochs=1", "name=run"]
    assert main([*tiny, "logger=csv"]) == 0
    table = Path("results/runs/run/metrics.csv")
    during = table.read_bytes()
    table.unlink()
    said = "This run has finished already (resume=never repeats it).\n"
    for now in (f"Its records have been copied: {table} did not exist.\n", ""):
        capsys.readouterr()
        assert main([*tiny, "logger=csv"]) == 0
        assert capsys.readouterr().out.startswith(f"{said}{now}\n")
        assert table.read_bytes() == during
    assert main([*tiny, "logger=tensorboard"]) == 0
    assert len(points(Path("results/runs/run"), "train/loss")) == during.count(b"\ntrain,0,") > 0
    capsys.readouterr()
    assert main([*tiny, "logger=jsonl", "resume=never"]) == 0
    assert f"{table} is not continued: remove it, and logger=csv rewrites it.\n" in (
        capsys.readouterr().out
    )


def test_a_missing_package_is_one_sentence() -> None:
    assert str(
        refusal(check_installed, "tensorboard", "sgp_runner", "there_is_no_such_module")
    ) == (
        "logger: there_is_no_such_module is not installed: "
        "pip install 'sgp-runner[tensorboard]', or logger=csv."
    )


def test_a_logger_is_no_part_of_a_name(tmp_path: Path) -> None:
    digests = {
        make_experiment(tmp_path / name, "model=quadratic", f"logger={name}").digest
        for name in ("none", "csv", "tensorboard", "mlflow", "wandb")
    }
    assert len(digests) == 1
    assert settings_of({"logger": {"name": "csv"}, "nodes": 2}) == {"nodes": 2}


@pytest.mark.usefixtures("in_an_empty_folder")
def test_no_logger_leaves_no_copy() -> None:
    overrides = ["model=quadratic", "data.samples=64", "nodes=2", "epochs=1", "name=run"]
    assert main([*overrides, "logger=none"]) == 0
    assert {path.name for path in Path("results/runs/run").iterdir()} == {
        *("config.yaml", "environment.json", "metrics.jsonl", "summary.json")
    }


def test_what_runs_are_grouped_by_has_flat_names() -> None:
    parts: Mapping[str, object] = {"algo": {"name": "slowmo"}, "cluster": {"name": "lab"}}
    assert grouped_settings({"nodes": 8, "seed": 1, **parts}) == {
        **{"algorithm": "slowmo", "cluster": "lab", "nodes": 8, "seed": 1, "settings": parts},
    }

"""``logger=mlflow``: a run of MLflow, in a SQLite file by default or on a server.

A resumed run continues its MLflow run. A tag of the MLflow run counts the received records, so that
no point is duplicated or missing.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.recording.loggers.mirror import (
    Mirror,
    Row,
    check_installed,
    count_lines,
    final,
    flat_settings,
    training_step,
)
from sgp_runner.utils.reading import read_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

RECORDS = "sgp_run.records"  # tag: how many lines of metrics.jsonl the run has received
STEP = "sgp_run.step"  # tag: the last step of training in them
ROWS = 25  # of a request, which takes 1000 numbers; a row has far fewer than 40
PARAMS, LONGEST = 100, 6000  # settings of a request, and characters of one


@dataclass(frozen=True)
class Mlflow:
    """Logs to MLflow; needs ``pip install 'sgp-runner[mlflow]'``.

    uri: the tracking server or database; null: MLFLOW_TRACKING_URI, or else results/mlflow.db
    experiment: the MLflow experiment
    """

    uri: str | None = None
    experiment: str = "sgp-run"
    copied: ClassVar[str] = "mlflow_id"

    def check_installed(self) -> None:
        check_installed("mlflow", "mlflow", "sqlalchemy", "alembic")

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Mirror:
        return self.mirror(run_dir, name, config, tags, group, count_lines(run_dir))

    def mirror(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
        first_step: int,
    ) -> Mirror:
        results = run_dir.parent.parent.absolute()
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results}/mlflow.db"

        def start() -> MlflowRun:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            from mlflow import MlflowClient
            from mlflow.entities import Param

            logging.getLogger("mlflow").setLevel(logging.ERROR)
            results.mkdir(parents=True, exist_ok=True)
            with (results / ".mlflow.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time makes the tables
                client = MlflowClient(tracking_uri=uri)
                stored = client.get_experiment_by_name(self.experiment)
                experiment = (
                    client.create_experiment(self.experiment)
                    if stored is None
                    else stored.experiment_id
                )
            path = run_dir / "mlflow_id"
            if first_step == 0 or not path.exists():
                own_tags = {"sgp_run.tags": ", ".join(tags), "sgp_run.sweep": group or ""}
                run_id = client.create_run(experiment, run_name=name, tags=own_tags).info.run_id
                settings = flat_settings(config).items()
                params = [Param(key, str(value)[:LONGEST]) for key, value in settings]
                for at in range(0, len(params), PARAMS):
                    client.log_batch(run_id, params=params[at : at + PARAMS])
                path.write_text(run_id + "\n", encoding="utf-8")
            # A resumed copy continues after its last record.
            run = client.get_run(read_text(path).strip())
            client.update_run(run.info.run_id, status="RUNNING")
            first, step = (int(run.data.tags.get(tag, 0)) for tag in (RECORDS, STEP))
            return MlflowRun(client, run.info.run_id, run.info.start_time, first, step)

        return Mirror("MLflow", run_dir, start, first_step)


@dataclass
class MlflowRun:
    """An MLflow run with points by training step; their timestamps follow the clock of the run.

    started: start of the run in ms
    """

    client: MlflowClient
    run_id: str
    started: int
    first: int
    step: int

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        for at in range(0, len(rows), ROWS):
            metrics = []
            for line, row in rows[at : at + ROWS]:
                self.step = training_step(row, self.step)
                now = self.started + round(1000 * row["time_s"])
                metrics += [Metric(name, value, now, self.step) for name, value in row.items()]
                done = line + 1
            tags = [RunTag(RECORDS, str(done)), RunTag(STEP, str(self.step))]
            self.client.log_batch(self.run_id, metrics=metrics, tags=tags)

    def finish(self, summary: Mapping[str, object] | None) -> str:
        from mlflow.entities import Metric

        if summary is not None:
            values = final(summary)
            now = self.started + round(1000 * values.get("final/time_s", 0.0))
            metrics = [Metric(name, value, now, self.step) for name, value in values.items()]
            self.client.log_batch(self.run_id, metrics=metrics)
        self.client.set_terminated(self.run_id, "KILLED" if summary is None else "FINISHED")
        return f"run {self.run_id} in {self.client.tracking_uri}"

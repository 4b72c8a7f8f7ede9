from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from helpers.commands import run_command
from helpers.experiments import make_experiment
from helpers.wandb_file import find_file, history, read_records, x_axes
from helpers.wandb_server import wandb_server

from sgp_runner.assembly.start import execute
from sgp_runner.cli.sync import main as sync_main
from sgp_runner.recording.loggers import wandb as mirror
from sgp_runner.recording.loggers.jsonl import Jsonl
from sgp_runner.recording.loggers.mirror import Row, row_of
from sgp_runner.recording.loggers.wandb import Wandb, has_login
from sgp_runner.recording.recorder import Recorder, read_metrics
from sgp_runner.utils.errors import ConfigError

TAGS = ["sgp", "mlp", "4 nodes", "sim"]


@pytest.fixture(autouse=True)
def logged_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    import wandb

    for name in (
        "WANDB_API_KEY",
        "WANDB_MODE",
        "WANDB_BASE_URL",
        "WANDB_DIR",
        "WANDB_RUN_ID",
        "WANDB_RUN_GROUP",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    yield
    wandb.teardown()  # it reads the environment once and remembers


def average(epoch: int) -> dict[str, object]:
    return {
        "kind": "average",
        "epoch": epoch,
        "time_s": 0.5 * epoch,
        "clock": "simulated",
        "loss": 1 / epoch,
        "accuracy": 1 - 0.5**epoch,
        "accuracy_mean": 0.5,
        "accuracy_min": 0.25,
        "accuracy_max": 0.75,
        "consensus_distance": None,
    }


def test_the_offline_file_holds_the_curve_of_accuracy_over_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    parts = {"algo": {"name": "sgp"}, "model": {"name": "mlp"}, "optim": {"lr": 0.1}}
    listener = Wandb().open(run_dir, "sgp-mlp", {"nodes": 4, **parts}, TAGS, "sweep-1")
    with Recorder(run_dir, 0, (listener,)) as recorder:
        for step in range(400):  # the file grows over more than one block
            stamp = {"step": step, "time_s": 0.005 * step}
            recorder.write({"kind": "train", "rank": step % 2, **stamp, "loss": 1.0})
        for epoch in (1, 2, 3):
            recorder.write(average(epoch))
        recorder.write(
            {"kind": "eval", "rank": 0, "step": 400, "time_s": 2.0, "loss": 0.5, "accuracy": 0.625}
        )
        recorder.finish({"time_s": 2.0, "average": 0.875, "name": "sgp-mlp", "server": False})

    path = find_file(run_dir)
    assert path.stat().st_size > 32 * 1024
    records = list(read_records(path))
    rows = history(records)
    assert len(rows) == 200 + 3 + 1
    assert [
        (row["time_s"], row["average/accuracy"]) for row in rows if "average/accuracy" in row
    ] == [(0.5, 0.5), (1.0, 0.75), (1.5, 0.875)]
    assert [row["eval/accuracy"] for row in rows if "eval/accuracy" in row] == [0.625]
    assert [
        tuple(row[f"eval/accuracy_{name}"] for name in ("mean", "min", "max"))
        for row in rows[-4:-1]
    ] == [(0.5, 0.25, 0.75)] * 3
    assert [row["train/step"] for row in rows if "train/loss" in row] == list(range(0, 400, 2))
    assert x_axes(records) == {
        "train/*": "time_s",
        "eval/*": "time_s",
        "average/*": "time_s",
        "server/*": "time_s",
    }

    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name, run.run_group, list(run.tags)) == (
        "sgp-run",
        "sgp-mlp",
        "sweep-1",
        TAGS,
    )
    assert run.run_id == (run_dir / "wandb_id").read_text().strip()
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: config[name] for name in ("algorithm", "model", "nodes", "settings")} == {
        "algorithm": "sgp",
        "model": "mlp",
        "nodes": 4,
        "settings": parts,
    }
    final = {
        "/".join([item.key, *item.nested_key]): item.value_json
        for record in records
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    assert any("final/average" in key and value == "0.875" for key, value in final.items())
    assert capfd.readouterr() == ("", "")  # nobody asked for W&B


def test_a_resumed_run_keeps_its_id_and_continues_its_steps(tmp_path: Path) -> None:
    seen = []
    for epochs in ((1, 2), (3,)):
        before = set(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
        listener = Wandb(group="mine").open(tmp_path, "n", {}, [], "sweep-1")
        with Recorder(
            tmp_path, 0, (listener,)
        ) as recorder:  # left without finish, as a run that is interrupted
            for epoch in epochs:
                recorder.write(average(epoch))
        (path,) = set(tmp_path.glob("wandb/offline-run-*/run-*.wandb")) - before
        records = list(read_records(path))
        (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
        assert run.run_group == "mine"
        seen += [(run.run_id, row["_step"]) for row in history(records)]
        time.sleep(1.1)  # W&B names the folder after the second
    assert seen == [(seen[0][0], step) for step in (0, 1, 2)]


def test_rows_hold_the_numbers_of_rank_0_and_of_the_average() -> None:
    train = {
        "kind": "train",
        "rank": 0,
        "step": 3,
        "time_s": 1.5,
        "clock": "wall",
        "loss": 0.5,
        "staleness": None,
    }
    assert row_of(train) == {"time_s": 1.5, "train/step": 3, "train/loss": 0.5}
    assert row_of({**train, "rank": 1}) == {}
    assert row_of({"kind": "average", "time_s": 1.0, "accuracy": None}) == {}
    assert row_of({"kind": "average", "time_s": 1.0, "accuracy_min": 0.5}) == {
        "time_s": 1.0,
        "eval/accuracy_min": 0.5,
    }


def test_a_start_that_fails_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    listener = Wandb().open(tmp_path / "file" / "run", "n", {}, [], None)
    listener.write(average(1))
    listener.finish({"time_s": 1.0})
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("warning: W&B failed to start, so this run is in metrics.jsonl only (")


RUN = (
    *("model=quadratic", "data.samples=64", "nodes=2", "epochs=2", "log_every=1"),
    *("checkpoint.every_minutes=null", "name=run"),
)


def test_a_server_that_never_answers_holds_up_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = """
import sys
from sgp_runner.cli.main import main
from sgp_runner.recording.loggers import mirror, wandb
wandb.START_SECONDS = 1000.0  # longer than this test may take
mirror.FINISH_SECONDS = 1.0
sys.exit(main(sys.argv[1:]))
"""
        server = {
            "WANDB_API_KEY": "0" * 40,
            "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "WANDB_MODE": "online",
        }
        done = subprocess.run(
            [sys.executable, "-c", code, *RUN],
            cwd=tmp_path,
            env={**os.environ, **server},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr == (
        "warning: W&B did not finish in time, so the rest of this run is in metrics.jsonl only; "
        "sgp-sync sends it later\n"
    )
    assert "results in results/runs/run" in done.stdout
    assert read_metrics(tmp_path / "results/runs/run")[-1]["kind"] == "summary"


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as W&B keeps one beside each."""
    module, *rest = arguments
    return run_command(*rest, folder=folder, variables=environment, module=module)


def expected_rows(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    """Return steps and numbers of the records that W&B is to receive."""
    return [
        (step, row)
        for step, record in enumerate(read_metrics(run_dir))
        if record["kind"] != "summary" and (row := row_of(record))
    ]


def received_rows(rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, float]]]:
    return [
        (row["_step"], {key: value for key, value in row.items() if not key.startswith("_")})
        for row in rows
    ]


def test_with_a_login_a_run_is_sent_to_the_server(tmp_path: Path) -> None:
    run_dir = tmp_path / "results/runs/run"
    with wandb_server() as server:
        done = command(tmp_path, "sgp_runner", *RUN, **server.environment)
        assert (done.returncode, done.stderr) == (0, "")
        url = server.environment["WANDB_BASE_URL"]
        (run,) = server.runs
        assert f"W&B: a copy goes to sgp-run at {url} (logger=none keeps it here).\n" in done.stdout
        assert f"W&B: {url}/me/sgp-run/runs/{run}\n" in done.stdout
        assert run == (run_dir / "wandb_id").read_text().strip()
        assert received_rows(server.history(run)) == expected_rows(run_dir) != []
        config = server.config(run)
        names = ("algorithm", "cluster", "model", "data", "network", "nodes", "seed")
        assert [config[name] for name in names] == [
            *("sgp", "ethernet_10g", "quadratic", "quadratic", "sim", 2, 1),
        ]
        assert config["settings"]["optim"]["lr"] == 0.1
        (summary,) = server.files[run, "wandb-summary.json"][-1:]
        assert json.loads(summary)["final/steps"] == 8

        sent = command(tmp_path, "sgp_runner.cli.sync", str(run_dir), **server.environment)
        assert (sent.returncode, sent.stderr) == (0, "")
        (again,) = server.runs.keys() - {run}
        assert sent.stdout.startswith(f"W&B: {url}/me/sgp-run/runs/{again}\n")
        assert received_rows(server.history(again)) == expected_rows(run_dir)


@pytest.mark.slow
def test_a_server_with_an_error_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "impatient.py").write_text(
        "import sys\n"
        "from sgp_runner.cli.main import main\n"
        "from sgp_runner.recording.loggers import mirror\n"
        "mirror.FINISH_SECONDS = 3.0\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with wandb_server(broken=True) as server:
        path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
        done = command(tmp_path, "impatient", *RUN, PYTHONPATH=path, **server.environment)
    assert (done.returncode, done.stderr) == (
        0,
        "warning: W&B did not finish in time, so the rest of this run is in metrics.jsonl only; "
        "sgp-sync sends it later\n",
    )
    assert read_metrics(tmp_path / "results/runs/run")[-1]["kind"] == "summary"


def test_without_a_login_nothing_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_experiment(tmp_path, "model=quadratic", "data.samples=64", "nodes=2").directory
    (run_dir / "metrics.jsonl").write_text('{"kind": "train", "time_s": 1, "loss": 2}\n')
    assert sync_main([str(run_dir)]) == 2
    assert capsys.readouterr() == (
        "",
        "sgp-sync: W&B: there is no login, so nothing was sent: run wandb login or set "
        "WANDB_API_KEY; WANDB_MODE=offline sgp-sync makes an offline copy.\n",
    )
    assert not (run_dir / "wandb").exists()


def test_the_mirror_can_be_made_from_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    experiment = make_experiment(
        tmp_path,
        "model=quadratic",
        "data.samples=64",
        "nodes=2",
        "epochs=2",
        "log_every=1",
        "batch_size=16",
    )
    assert execute(experiment) is not None
    run_dir = experiment.directory
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')  # as a killed process leaves it
    capsys.readouterr()
    assert sync_main([str(run_dir)]) == 0
    records = read_metrics(run_dir)
    assert capsys.readouterr().out.endswith(f"{run_dir}: {len(records)} records\n")
    assert received_rows(history(list(read_records(find_file(run_dir))))) == expected_rows(run_dir)


def test_what_is_no_run_is_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync_main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"sgp-sync: config.yaml: {tmp_path}/config.yaml is not a run configuration."
    )
    run = make_experiment(tmp_path, "model=quadratic", "nodes=2", "epochs=1")
    execute(run)
    metrics, name = run.directory / "metrics.jsonl", f"sgp-sync: {run.directory}: "
    metrics.write_text("")
    assert sync_main([str(run.directory)]) == 2
    assert capsys.readouterr().err == f"{name}the run has no metrics yet.\n"
    metrics.unlink()
    metrics.mkdir()
    assert sync_main([str(run.directory)]) == 2
    assert capsys.readouterr().err.startswith(f"{name}its metrics cannot be read (")
    with pytest.raises(SystemExit, match="2"):
        sync_main([])
    assert capsys.readouterr().err == ("sgp-sync: the following arguments are required: RUN_DIR\n")


def test_a_failure_while_running_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    logged, log = Event(), mirror.WandbRun.log

    def log_and_say(copy: mirror.WandbRun, rows: Sequence[Row]) -> None:
        log(copy, rows)
        logged.set()

    monkeypatch.setattr(mirror.WandbRun, "log", log_and_say)
    listener = Wandb().open(tmp_path, "n", {}, [], None)
    listener.write(average(1))
    assert logged.wait(600)  # a start under way would wait for the service, and teardown for it
    wandb.teardown()
    with Recorder(tmp_path, 0, (listener,)) as recorder:
        recorder.write(average(2))
        recorder.write(average(3))
        recorder.finish({"time_s": 1.5})
    out, err = capfd.readouterr()
    assert out == "" and err.count("warning: W&B") == 1 and err.count("\n") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_an_unreachable_server_makes_the_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://user:pAssw0rd@127.0.0.1:9")
    monkeypatch.setattr(mirror, "START_SECONDS", 1.0)
    listener = Wandb(entity="me").open(tmp_path, "n", {}, [], None)
    listener.write(average(1))
    listener.finish({"time_s": 0.5})
    assert history(list(read_records(find_file(tmp_path))))[0]["average/accuracy"] == 0.5
    out, err = capfd.readouterr()
    assert out == (
        "W&B: a copy goes to me/sgp-run at http://***@127.0.0.1:9 (logger=none keeps it here).\n"
        f"W&B: offline; to send: sgp-sync {tmp_path}\n"
    )
    assert err.startswith("warning: W&B did not start online, so this run is recorded offline (")
    assert "pAssw0rd" not in err and err.count("\n") == 1


def test_a_login_is_a_key_or_a_netrc_entry_for_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_login()
    for text, found in (
        ("this is no netrc file", False),
        ("default login user password secret\n", False),
        ("machine api.wandb.ai login user password secret\n", True),
    ):
        (tmp_path / "netrc").write_text(text)
        assert has_login() is found
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_login()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert has_login()


def test_wandb_mode_from_the_environment_wins_over_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    listener = Wandb().open(tmp_path, "n", {}, [], None)
    listener.write(average(1))
    listener.finish(None)
    assert not list(tmp_path.rglob("*.wandb"))


def test_an_unknown_mode_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"logger.mode: 'ofline' is not a mode; .* Did you mean 'offline'\?"
    ):
        Wandb(mode="ofline")


def test_jsonl_follows_without_a_trace(tmp_path: Path) -> None:
    listener = Jsonl().open(tmp_path, "n", {}, [], None)
    listener.write(average(1))
    listener.finish(None)
    assert list(tmp_path.iterdir()) == []

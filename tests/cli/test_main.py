"""Runs and sweeps of ``sgp-run``: their files, repetition, failures and Ctrl-C."""

from __future__ import annotations

import csv
import json
import re
import signal
import time
from pathlib import Path

import pytest
import yaml
from helpers.commands import Command

from sgp_runner.cli import modes
from sgp_runner.cli.main import FIRST, main
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment, stored
from sgp_runner.config.overrides import compose, configs
from sgp_runner.utils.signals import STOPPING

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=1",
    "logger=jsonl",
]


TOO_BIG = 10**15  # elements, more than any address space holds


def run_directories(results: Path = Path("results")) -> list[Path]:
    return sorted((results / "runs").iterdir())


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_real_time_counts_from_the_start_of_the_command(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "STARTED", time.monotonic() - 1000)
    assert main([*TINY, f"network={network}"]) == 0
    (run,) = run_directories()
    assert 1000 < json.loads((run / "summary.json").read_text())["real_s"] < 1100


def test_a_warm_up_without_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    without = (
        "No warm-up: warmup_from=reference starts at the peak with a global batch of {}, not "
        "above optim.schedule.reference_batch={}.\n"
    )
    schedule = ["optim.schedule=steps", "optim.schedule.warmup_epochs=1", "batch_size=4"]
    for overrides, said in (
        ([], without.format(8, 256)),
        (["optim.schedule.warmup_epochs=5"], ""),  # the default
        (["optim.schedule.reference_batch=8"], without.format(8, 8)),
        (["optim.schedule.reference_batch=7"], ""),
        (["optim.schedule.warmup_from=zero"], ""),
        (["optim.schedule.warmup_from=one_over_n"], ""),
        (["optim.schedule.warmup_epochs=0"], ""),
        (["optim.schedule=constant"], ""),
        (
            ["nodes=1", "optim.schedule.warmup_from=one_over_n"],
            "No warm-up: warmup_from=one_over_n starts at the peak with one node.\n",
        ),
    ):
        settings = (
            [*schedule, *overrides] if "optim.schedule=constant" not in overrides else overrides
        )
        assert main([*TINY, *settings]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said) and ("No warm-up" in out) == bool(said), overrides


def test_algorithms_whose_settings_do_nothing_in_so_short_a_run_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = "SlowMo makes 0 slow steps in 16: algo.tau={} is longer than the run.\n"
    base = ["algo=slowmo", "algo.base=local_sgd"]
    hybrid = "algo.then never runs: algo.switch_epoch=5 is not before the end, epochs=1.\n"
    for overrides, said in (
        (["algo=slowmo"], slow.format(48)),
        (["algo=slowmo", "algo.tau=17"], slow.format(17)),
        (["algo=slowmo", "algo.tau=16"], ""),
        (base, ""),
        (["algo=hybrid", "algo.first=ar_sgd", "algo.then=sgp"], hybrid),
        (["algo=hybrid", "algo.first=ar_sgd", "algo.then=sgp", "algo.switch_epoch=0.5"], ""),
    ):
        assert main([*TINY, "batch_size=2", "optim.schedule=constant", *overrides]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said) and ("algo." in out.splitlines()[0]) == bool(said), overrides


def test_a_timing_study_says_that_its_sample_is_too_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = ["model=timing_only", "model.sample_steps=4", "logger=jsonl", "nodes=2", "epochs=1"]
    said = "DiLoCo makes one outer step in 4: algo.period={} is longer than the run."
    more = " Simulate more of the schedule with model.sample_steps."
    hybrid = "algo.then never runs: algo.switch_epoch=5 is not before the end, epochs=1."
    for overrides, first in (
        (["algo=diloco", "algo.period=5"], said.format(5) + more),
        (["algo=diloco", "algo.period=5000"], said.format(5000)),
        (["algo=hybrid", "algo.switch_epoch=5"], hybrid),
    ):
        assert main([*study, *overrides]) == 0
        assert capsys.readouterr().out.splitlines()[0] == first, overrides
    assert main([*study, "algo=diloco", "algo.period=4"]) == 0
    assert "algo." not in capsys.readouterr().out.splitlines()[0]


def test_a_simulated_node_has_the_devices_of_its_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*TINY, "gpus_per_node=8"]) == 0
    assert main([*TINY, "gpus_per_node=${cluster.devices_per_node}", "cluster=ideal"]) == 0
    capsys.readouterr()
    assert main([*TINY, "gpus_per_node=2"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: gpus_per_node: network=sim times whole nodes, which have "
        "cluster.devices_per_node=8 devices here: leave gpus_per_node out, or use network=gloo.\n"
    )


def test_a_run_writes_its_files_and_is_not_repeated(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path
) -> None:
    assert main(TINY) == 0
    first = capsys.readouterr().out
    (run,) = run_directories()
    assert sorted(path.name for path in run.iterdir()) == [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
    ]
    assert [path.name for path in in_an_empty_folder.iterdir()] == ["results"]
    assert re.fullmatch(r"sgp-quadratic-quadratic-n2-sim-s1-[0-9a-f]{8}", run.name)
    assert (
        f"results in results/runs/{run.name}\n" in first and "loss of the averaged model" in first
    )
    metrics = (run / "metrics.jsonl").read_text()
    assert json.loads(metrics.splitlines()[-1])["kind"] == "summary"

    assert main([*TINY, "epochs=1.0"]) == 0
    again = capsys.readouterr().out
    assert again.startswith("This run has finished already (resume=never repeats it).\n")
    assert again.splitlines()[2:] == first.splitlines()[first.splitlines().index("") + 1 :]
    assert (run / "metrics.jsonl").read_text() == metrics

    (run / "metrics.rank1.jsonl").write_text("from another attempt\n")
    assert main([*TINY, "resume=never"]) == 0
    assert run_directories() == [run] and not (run / "metrics.rank1.jsonl").exists()
    repeated = (run / "metrics.jsonl").read_text().splitlines()
    assert (
        repeated[:-1] == metrics.splitlines()[:-1]
    )  # the same bytes; the summary also has the real time
    assert len(repeated) == len(metrics.splitlines())


def test_an_unfinished_run_starts_over(tmp_path: Path) -> None:
    results = tmp_path / "some 'where' else"
    overrides = [*TINY, f'results="{results}"']
    assert main(overrides) == 0
    (run,) = run_directories(results)
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text("\n".join(metrics[:3]) + "\n")
    assert main(overrides) == 0
    assert (run / "metrics.jsonl").read_text().splitlines()[:-1] == metrics[:-1]
    assert not Path("results").exists()


def test_a_run_that_fails_is_one_sentence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*TINY, "nodes=4", "faults.events=[{what: crash, ranks: [1], start: 0}]"]
    assert main(overrides) == 1
    error = capfd.readouterr().err
    assert re.match("sgp-run: deadlock: every worker is blocked", error)
    assert "Traceback" not in error
    monkeypatch.setenv("SGP_RUN_TRACEBACK", "1")
    assert main(overrides) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_presets_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("my presets") / "experiment"
    folder.mkdir(parents=True)
    lines = [
        "# @package _global_",
        "defaults:",
        "  - override /model: quadratic",
        "  - override /topology@algo.topology: ring",
    ]
    (folder / "tiny.yaml").write_text(
        "\n".join([*lines, "nodes: 3", "data: {samples: 48}", "epochs: 1", ""])
    )
    assert (
        main(["--config-dir", "my presets", "experiment=tiny", "logger=jsonl", "data.dimension=4"])
        == 0
    )
    assert "quadratic · 3 nodes" in capsys.readouterr().out
    (folder / "flat.yaml").write_text("algo: osgp\n")
    (folder / "nested.yaml").write_text("optim:\n  schedule: cosine\n")
    for name, key, line in (
        ("flat", "algo", "- override /algo: osgp"),
        ("nested", "optim.schedule", "- override /schedule@optim.schedule: cosine"),
    ):
        assert main(["--config-dir", "my presets", f"experiment={name}"]) == 2
        assert capsys.readouterr().err == (
            f"sgp-run: {key}: '{line.split()[-1]}' is a choice; a file selects it in its "
            f"defaults list, with a line '{line}' under 'defaults:'.\n"
        )
    assert main(["--config-dir", "my presets", "--help"]) == 0
    assert (
        "nested"
        in capsys.readouterr().out.partition("experiment=")[2].partition("chosen")[0].split()
    )
    assert main(["--config-dir=my presets", "experiment=tine"]) == 2
    assert (
        "experiment: 'tine' is not one of" in (error := capsys.readouterr().err)
        and "Did you mean 'tiny'?" in error
    )


def test_a_folder_holds_one_run(
    in_an_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "name=mine"]) == 0
    config = in_an_empty_folder / "results/runs/mine/config.yaml"
    before = config.read_text()
    assert (
        main([*TINY, "name=mine", "checkpoint.keep=5", "logger=jsonl"]) == 0
    )  # these do not change the result
    capsys.readouterr()
    sentence = (
        "results/runs/mine holds a run with other settings: optim.lr is 0.1 there and 0.3 here; "
        "choose another name, or replace"
    )
    assert main([*TINY, "name=mine", "optim.lr=0.3"]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: name: {sentence}")
    assert config.read_text() == before
    assert main([*TINY, "name=mine", "optim.lr=0.3", "resume=never"]) == 0
    assert "lr: 0.3" in config.read_text()
    config.write_text("not: [a config")
    assert main([*TINY, "name=mine", "optim.lr=0.3"]) == 2
    assert "config.yaml cannot be read; choose another name" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_survives_a_failure_and_repeats_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    overrides = [*TINY, "algo=slowmo", "algo.base=local_sgd"]
    assert main([*overrides, "data.dimension=4", "optim.schedule=cosine"]) == 0
    (done,) = run_directories()
    before = {path.name: path.stat().st_mtime_ns for path in done.iterdir()}
    capfd.readouterr()

    assert (
        main(
            [
                *("-m", "jobs=1", *overrides),
                *(f"data.dimension=2,4,{TOO_BIG}", "optim.schedule=constant,cosine"),
            ]
        )
        == 1
    )
    out, error = capfd.readouterr()
    headings = [line for line in out.splitlines() if re.match(r"\[\d/6\] ", line)]
    assert headings[0] == "[1/6] data.dimension=2 optim.schedule=constant"
    assert (
        headings[-1] == f"[6/6] data.dimension={TOO_BIG} optim.schedule=cosine"
        and len(headings) == 6
    )
    assert out.count("This run has finished already") == 1
    assert {path.name: path.stat().st_mtime_ns for path in done.iterdir()} == before
    assert (
        len(
            re.findall(
                "^sgp-run: data.dimension: the data set needs at least ", error, re.MULTILINE
            )
        )
        == 2
        and "Traceback" not in error
    )
    assert "Launching" not in out + error
    table = out[out.index("Simulated time to") :]
    assert len(re.findall(r"^[\d ]  SlowMo\(Local SGD\)", table, re.MULTILINE)) == 4
    assert f"\ndata.dimension={TOO_BIG} optim.schedule=cosine failed: data.dimension: the" in table

    (directory,) = Path("results/sweeps").iterdir()
    with (directory / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == [heading.partition(" ")[2] for heading in headings]
    assert [bool(row["failed"]) for row in rows] == [False] * 4 + [True] * 2
    assert [row["algorithm"] for row in rows] == ["SlowMo(Local SGD)"] * 6
    assert all(float(row["average"]) > 0 for row in rows[:4])
    assert [
        path
        for path in Path().rglob("*")
        if path.is_file() and not {"runs", "report"} & set(path.parts)
    ] == [directory / "comparison.csv"]
    assert f"report in {directory / 'report' / 'index.html'}\n" in out
    with (directory / "report" / "runs.csv").open() as file:
        assert sorted(row["state"] for row in csv.DictReader(file)) == ["finished"] * 4


def name_of(overrides: list[str]) -> str:
    with configs():
        return make_experiment(compose(parse(overrides))).name


def stored_config(overrides: list[str]) -> str:
    with configs():
        experiment = make_experiment(compose(parse(overrides)))
    return yaml.safe_dump(stored(experiment))


SAVED = (
    rf"\n{re.escape(STOPPING)}\nsgp-run: interrupted; saved in \S+/checkpoints/step-\d+\. "
    r"Run the same command again to resume\.\n"
)


def interrupt(*arguments: str) -> tuple[int | None, str, str]:
    """Start the command, press Ctrl-C when its run on four nodes has begun; exit code, stdout,
    stderr.
    """
    with Command(*arguments) as process:
        while process.poll() is None and not any(
            path.stat().st_size for path in Path("results").glob("runs/*-n4-*/metrics.jsonl")
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    return process.returncode, out, error


def test_ctrl_c_ends_a_sweep_with_what_is_done() -> None:
    long = [*TINY, "epochs=100000", "logger=jsonl"]
    done = Path("results/runs") / name_of([*long, "nodes=2"])
    done.mkdir(parents=True)
    # The first job is done; the second takes hours.
    (done / "config.yaml").write_text(stored_config([*long, "nodes=2"]))
    summary = {
        **{"algorithm": "SGP", "model": "quadratic", "data": "quadratic", "network": "sim"},
        **{"nodes": 2, "seed": 1, "epochs": 1.0, "clock": "simulated", "label": "x"},
        **{"server": False, "time_s": 1.0},
    }
    (done / "summary.json").write_text(json.dumps(summary))
    (done / "metrics.jsonl").write_text(json.dumps({"kind": "summary", **summary}) + "\n")
    code, out, error = interrupt("-m", "jobs=1", *long, "nodes=2,4,8")
    assert code == 130 and re.fullmatch(SAVED, error)
    assert "[1/3] nodes=2\n" in out and "[2/3] nodes=4\n" in out and "[3/3]" not in out
    (table,) = Path("results/sweeps").glob("*/comparison.csv")
    assert (
        [row["job"] for row in csv.DictReader(table.open())] == ["nodes=2"]
        and f"\ncomparison in {table}" in out
        and "report in" not in out
    )


def test_ctrl_c_saves_a_run_and_ends_it_with_one_sentence() -> None:
    code, _, error = interrupt(*TINY, "nodes=4", "epochs=100000")
    (run,) = run_directories()
    assert code == 130 and re.fullmatch(SAVED, error)
    assert f"saved in {run}/checkpoints/step-" in error and not (run / "summary.json").exists()


@pytest.mark.parametrize("arguments", FIRST)
def test_a_first_command_ends_with_the_same_on_fashion_mnist(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FIRST[arguments].split()[1:], "--cfg", "job"]) == 0
    assert "\n  name: fashion_mnist" in capsys.readouterr().out
    codes = iter([0, 1, 0])
    monkeypatch.setattr("sgp_runner.cli.modes.run_mode", lambda command: next(codes))
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        f"\nOn Fashion-MNIST:\n  sgp-run download fashion_mnist && {FIRST[arguments]}\n"
    )
    assert (main(arguments), main([*arguments, "nodes=2"])) == (1, 0)
    assert capsys.readouterr().out == ""

"""Sweeps on this machine: several runs at a time, and settings of one choice alone."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.commands import Command
from helpers.shooting import run as run_and_shoot
from helpers.shooting import shot

from sgp_runner.cli.main import main
from sgp_runner.cli.sweep import plan, printed_errors
from sgp_runner.config.choices import CLASSES, class_of, groups, has_names
from sgp_runner.config.command_line import parse
from sgp_runner.config.overrides import configs, experiment_of
from sgp_runner.core.optim import Constant, Cosine
from sgp_runner.jobs.machine import Machine
from sgp_runner.utils.signals import STOPPING

TINY = (
    *("model=quadratic", "data.samples=64", "data.dimension=4"),
    *("nodes=2", "epochs=1", "logger=jsonl"),
)
LONG = (*TINY, "epochs=100000")
PLENTY = 10**12


pytestmark = pytest.mark.usefixtures("no_pictures")


def test_a_machine_without_slurm_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*TINY, "-m", "seed=1,2", "hydra/launcher=slurm"]) == 1
    assert capfd.readouterr().err == (
        "sgp-run: Slurm rejected the jobs "
        '(Could not detect "srun", are you indeed on a slurm cluster?).\n'
    )
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    (tmp_path / "srun").symlink_to(sbatch)
    assert main([*TINY, "-m", "seed=1,2", "hydra/launcher=slurm"]) == 1
    assert capfd.readouterr().err.endswith(
        "sgp-run: Slurm rejected the jobs (invalid partition: gpu).\n"
    )


def records(results: str) -> Mapping[str, list[dict[str, object]]]:
    """The records of each run, without real time and place in its summary."""
    found = {}
    for path in Path(results).glob("runs/*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[-1].pop("real_s") > 0 and lines[-1].pop("run_dir")
        found[path.parent.name] = lines
    return found


def lines_of(out: str) -> list[str]:
    """The line of each job, without real times, in the order of their settings."""
    found = re.findall(r"^\[\d/\d\] (.*)$", out, re.MULTILINE)
    return sorted(re.sub(r" · (?!finished).*", "", line) for line in found)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("nodes=range(1,1000000)", "nodes: a sweep of 999,999 runs is too large: use at most "),
        ("nodes=2,4 seed=range(0,10**9)", "seed: cannot read"),
        ("nodes=2,4 seed=range(0,1000000000)", "seed: a sweep of 2,000,000,000 runs is too "),
        ("optim.lr=range(0,1,0.00001) nodes=2,4", "optim.lr: a sweep of 200,000 runs is too "),
        (
            "algo=range(0,1000000000)",
            "algo: 'range(0,1000000000)' is not one of a2cid2, acco, accum_adam, ",
        ),
    ],
)
def test_a_sweep_that_is_too_large_is_counted_and_refused(
    overrides: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", *TINY, *overrides.split()]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")
    assert os.listdir() == []


def test_runs_beside_each_other_give_the_bytes_of_commands_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([*TINY, "algo=osgp", "nodes=4", "results=alone"]) == 0
    assert main([*TINY, "nodes=2", "algo=sgp", "results=alone"]) == 0
    assert main([*TINY, "nodes=2", "algo=osgp"]) == 0
    capfd.readouterr()
    assert main(["-m", "jobs=2", *TINY, "nodes=2,4", "algo=sgp,osgp", "data.dimension=4"]) == 0
    out, error = capfd.readouterr()
    assert error == ""
    folder = Path(*Path("results/sweeps").iterdir())
    assert out.startswith(f"4 runs, 2 at a time; the sweep is in {folder}\n[1/4] nodes=")
    assert [line.partition("  ")[0] for line in lines_of(out)] == [
        *("nodes=2 algo=osgp", "nodes=2 algo=sgp", "nodes=4 algo=osgp", "nodes=4 algo=sgp")
    ]
    assert lines_of(out)[0].endswith(" simulated · finished before")
    assert re.fullmatch(r"nodes=2 algo=sgp  loss \S+ in \S+ ms simulated", lines_of(out)[1])
    together, alone = records("results"), records("alone")
    assert len(together) == 4
    assert alone == {name: together[name] for name in alone}
    with (folder / "comparison.csv").open() as file:
        assert [row["job"] for row in csv.DictReader(file)] == [
            f"nodes={nodes} algo={algo}" for nodes in (2, 4) for algo in ("sgp", "osgp")
        ]
    assert "\n[2/4] nodes=2 algo=osgp\nThis run has" in (folder / "logs/2.log").read_text()


def test_a_job_that_fails_says_so_on_its_line_and_the_others_go_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", "jobs=2", *TINY, f"data.dimension=4,{10**15}", "optim.lr=0.1,30"]) == 1
    out, error = capfd.readouterr()
    assert error == ""
    lines = lines_of(out)
    assert lines[0].startswith("data.dimension=1000000000000000 optim.lr=0.1  failed: data.dim")
    assert lines[2].startswith("data.dimension=4 optim.lr=0.1  loss ")
    assert lines[3].startswith("data.dimension=4 optim.lr=30  diverged: rank ")


def test_a_process_that_is_killed_is_one_row(tmp_path: Path) -> None:
    shots = [shot("sgp_runner.jobs.sweep_job:run_experiment", "SIGKILL")]
    code, error = run_and_shoot(tmp_path, "-m", "jobs=2", *TINY, "seed=1,2", shots=shots)
    assert (code, error) == (1, "")
    (path,) = Path("results/sweeps").iterdir()
    with (path / "comparison.csv").open() as file:
        failed = {row["job"]: row["failed"] for row in csv.DictReader(file)}
    said = "its process was killed by SIGKILL; is there too little memory? (its output is in {})"
    assert failed == {f"seed={n}": said.format(path / f"logs/{n}.log") for n in (1, 2)}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        pytest.param(
            "SIGINT",
            130,
            f"\n{STOPPING}\nsgp-run: interrupted. Run the same command again to resume.\n",
            marks=pytest.mark.slow,
        ),
        (
            "SIGTERM",
            75,
            "sgp-run: stopped by SIGTERM. Run the same command again to resume.\n",
        ),
    ],
)
def test_a_signal_saves_all_runs_and_the_same_command_resumes_them(
    name: str, code: int, said: str
) -> None:
    for round in (1, 2):
        with Command("-m", "jobs=2", *LONG, "nodes=2,4,8") as process:
            while process.poll() is None and said_in_logs("  gradient ") < 2 * round:
                time.sleep(0.05)
            process.send_signal(signal.Signals[name])
            _, error = process.communicate()
        assert (process.returncode, error) == (code, said)
        assert said_in_logs("stopped by SIGTERM; saved in results/runs/") == 2 * round
        saved = [path.parents[1].name for path in Path("results").glob("runs/*/checkpoints/*")]
        assert {name.split("-")[3] for name in saved} == {"n2", "n4"}
    assert said_in_logs("This run resumes from step ") == 2
    assert len(list(Path("results/runs").iterdir())) == 2


def said_in_logs(text: str) -> int:
    """The number of logs with this text, of all sweeps."""
    return sum(text in path.read_text() for path in Path("results/sweeps").glob("*/logs/*.log"))


def test_settings_of_one_choice_apply_to_its_runs_alone() -> None:
    overrides = [
        *("algo=sgp,osgp", "algo.osgp.tau=1,2", "algo.sgp.topology=ring"),
        *(
            "model=quadratic",
            "optim.schedule=constant,cosine",
            "optim.schedule.cosine.warmup_epochs=2",
        ),
    ]
    with configs():
        jobs = plan(parse(overrides)).jobs
    assert [
        (
            job.title,
            type(run.algo.topology).__name__,
            getattr(run.algo, "tau", None),
            run.optim.schedule,
        )
        for job in jobs
        for run in [job.experiment.run]
    ] == [
        ("algo=sgp optim.schedule=constant", "Ring", None, Constant()),
        ("algo=sgp optim.schedule=cosine", "Ring", None, Cosine(warmup_epochs=2)),
        ("algo=osgp optim.schedule=constant algo.tau=1", "DirectedExponential", 1, Constant()),
        (
            "algo=osgp optim.schedule=cosine algo.tau=1",
            "DirectedExponential",
            1,
            Cosine(warmup_epochs=2),
        ),
        ("algo=osgp optim.schedule=constant algo.tau=2", "DirectedExponential", 2, Constant()),
        (
            "algo=osgp optim.schedule=cosine algo.tau=2",
            "DirectedExponential",
            2,
            Cosine(warmup_epochs=2),
        ),
    ]
    assert experiment_of(["algo=osgp", "algo.tau=3", "algo.osgp.tau=1"]).run.algo.tau == 1


def test_the_defaults_of_an_algorithm_apply_to_its_runs_alone() -> None:
    overrides = ["algo=sgp,demo,d_squared,gradient_tracking", "model=mlp"]
    with configs():
        every = plan(parse(overrides)).jobs
        rates = plan(parse(["algo=demo,sgp", "optim.lr=0.2,0.3", "model=mlp"])).jobs
    found = [job.experiment.run.optim for job in every]
    assert [(optim.lr, optim.momentum, optim.weight_decay) for optim in found] == [
        (0.1, 0.9, 1e-4),
        (1e-3, 0.0, 0.0),
        (0.1, 0.0, 1e-4),
        (0.1, 0.0, 1e-4),
    ]
    found = [job.experiment.run.optim for job in rates]
    assert [(optim.lr, optim.momentum) for optim in found] == [
        (0.2, 0.0),
        (0.3, 0.0),
        (0.2, 0.9),
        (0.3, 0.9),
    ]


def test_no_setting_has_the_name_of_a_choice_of_its_part() -> None:
    for group, choices in groups().items():
        for cls in [class_of(group, choice) for choice in choices] if group in CLASSES else []:
            if cls is not None and has_names(group):
                assert not {field.name for field in dataclasses.fields(cls)} & set(choices)


def test_how_many_runs_fit_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small = experiment_of(TINY).run
    large = experiment_of(["model=mlp", "model.hidden=[1500,1500]"]).run
    real = experiment_of([*TINY, "network=gloo"]).run
    free = Machine(None, cores=4, memory=PLENTY)
    assert [free.at_once([run] * 9) for run in (small, real)] == [4, 1]
    assert Machine(None, cores=os.cpu_count() or 1, memory=PLENTY).at_once([large] * 9) == 1
    assert free.at_once([small, small]) == 2
    asked = Machine(3, cores=4, memory=PLENTY)
    assert [asked.at_once([run] * 9) for run in (small, real)] == [3, 3]
    assert Machine(9, cores=4, memory=PLENTY).at_once([small] * 9) == 4
    assert Machine(None, cores=4, memory=10**9).at_once([small] * 9) == 2
    assert Machine(None, cores=4, memory=1).at_once([small] * 9) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert free.at_once([small] * 9) == 2


def test_an_error_after_the_runs_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with printed_errors("the report could not be written"):
        raise ValueError("no runs")
    assert capsys.readouterr().err == "the report could not be written: ValueError: no runs\n"

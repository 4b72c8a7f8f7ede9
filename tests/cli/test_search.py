from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from helpers.shooting import run as run_and_shoot
from helpers.shooting import shot

from sgp_runner.cli.main import main

TINY = (
    *("model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "epochs=1"),
    *("logger=jsonl", "hydra.sweep.dir=results/sweeps/mine"),
)
SEARCH = ("-m", "hydra/sweeper=optuna", "optim.lr=tag(log,interval(0.01,1))", "algo=sgp,osgp")
LINE = re.compile(r"^\[\d/\d\] (\S+ \S+)  (loss \S+) .* · (.*)$", re.MULTILINE)


pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows() -> list[dict[str, str]]:
    with Path("results/sweeps/mine/comparison.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_search_is_continued_and_names_the_best_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*SEARCH, *TINY, "algo.osgp.tau=int(interval(1,3))", "jobs=1"]
    assert main([*command, "hydra.sweeper.trials=3"]) == 0
    three = rows()
    assert len(three) == 3 and len({row["name"] for row in three}) == 3
    assert all(
        re.match(r"optim\.lr=0\.\d+ algo=(sgp|osgp algo\.tau=[123])$", row["job"]) for row in three
    )
    before = {path: path.stat().st_mtime_ns for path in Path("results/runs").glob("*/*")}
    capsys.readouterr()
    assert main([*command, "hydra.sweeper.trials=5"]) == 0
    out = capsys.readouterr().out
    five = rows()
    assert [row["job"] for row in five[:3]] == [row["job"] for row in three]
    assert len({row["name"] for row in five}) == 5
    assert {path: path.stat().st_mtime_ns for path in before} == before
    best = min(five, key=lambda row: float(row["average_loss"]))
    assert f"\nbest: {best['job']}  loss {float(best['average_loss']):.6g}\n" in out
    assert main([*command, "hydra.sweeper.objective=accuracy"]) == 2
    assert "hydra.sweep.dir: results/sweeps/mine holds another search" in capsys.readouterr().err


def test_a_trial_that_was_interrupted_is_repeated_and_one_that_diverges_is_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SEARCH[:2], *TINY, "jobs=1", "optim.lr=0.1,30", "hydra.sweeper.trials=8"]
    shots = [shot("sgp_runner.recording.observer:Observer.end_of_step", "SIGTERM", count=3)]
    code, error = run_and_shoot(tmp_path, *words, shots=shots)
    assert code == 75 and "saved in results/runs/" in error
    (interrupted,) = Path("results/runs").iterdir()
    assert main(words) == 1
    assert "resumes from step " in capsys.readouterr().out
    assert Path(rows()[0]["run_dir"]) == interrupted
    assert {(row["job"], row["diverged"]) for row in rows()} == {
        ("optim.lr=0.1", ""),
        ("optim.lr=30", "True"),
    }


def test_the_time_to_an_accuracy_is_an_objective(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.objective=time", "model=mlp", "epochs=2"]
    words += ["nodes=2", "logger=jsonl", "optim.lr=0.001,0.1", "jobs=1", "hydra.sweeper.trials=4"]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "sgp-run: hydra.sweeper.target: objective=time, and no other, needs an accuracy such as "
        "0.95.\n"
    )
    words += ["hydra.sweeper.target=0.9"]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "sgp-run: hydra.sweeper.objective: a time to a target needs 5 evaluations before it, and "
        "these runs have 2 in all: write eval_every=0.1, or objective=accuracy.\n"
    )
    assert main([*words, "eval_every=0.1"]) == 0
    out = capsys.readouterr().out
    assert "Simulated time to 90 % accuracy" in out and "The target is as asked;" in out
    assert "\nbest: optim.lr=0.1  time 2.57018" in out


def test_the_best_run_is_the_first_of_the_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.objective=time", "model=mlp", "epochs=1"]
    words += ["nodes=2", "logger=jsonl", "optim.lr=0.03,0.1", "jobs=1", "hydra.sweeper.trials=4"]
    assert main([*words, "hydra.sweeper.target=0.3", "eval_every=0.1"]) == 0
    out = capsys.readouterr().out
    assert "\nbest: optim.lr=0.1  accuracy 9" in out
    assert "ranked by accuracy." in out


@pytest.mark.parametrize(
    ("words", "key", "part"),
    [
        ("seed=1", "hydra/sweeper", "give a setting a range to search"),
        (
            "optim.lr=0.1,1 hydra.sweeper.trials=0",
            "hydra.sweeper.trials",
            "must be at least 1, not 0.",
        ),
        (
            "optim.lr=0.1,1 hydra.sweeper.objective=lost",
            "hydra.sweeper.objective",
            "'lost' is none",
        ),
        (
            "optim.momentum=tag(log,interval(0,1))",
            "optim.momentum",
            "this range cannot be searched: ",
        ),
        ("optim.lr=interval(-1,1)", "optim.lr", "must be"),
        ("optim.lr=0.1,1 hydra/launcher=slurm", "hydra/launcher", "leave it out"),
    ],
)
def test_searches_that_cannot_work_are_one_sentence_and_nothing_is_written(
    words: str, key: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SEARCH[:2], *TINY, *words.split()]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"sgp-run: {key}: ") and part in error
    assert not list(Path().iterdir())

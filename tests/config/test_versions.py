"""Results of version 0.2 are shown, and never taken for results of this version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sgp_runner import __version__
from sgp_runner.cli.main import main
from sgp_runner.config.experiment import FORMAT, VERSIONS, load_experiment
from sgp_runner.jobs.job_pool import RunJob, run_all
from sgp_runner.report.read.runs import read_runs
from sgp_runner.utils.errors import ConfigError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TINY = ("model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "epochs=1")
FOLDER = Path("results/runs/mine")
OLD = "of version 0.2, neither comparable with this version nor resumable"


def change(**settings: object) -> None:
    """Change the configuration of a run of this version."""
    config = yaml.safe_load((FOLDER / "config.yaml").read_text())
    assert "results_version" not in config
    (FOLDER / "config.yaml").write_text(yaml.safe_dump(config | settings))


def test_the_results_version_is_that_of_the_package() -> None:
    assert VERSIONS[FORMAT] == __version__.rpartition(".")[0] == "0.3"


def test_an_old_run_is_shown_and_not_taken_for_a_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [*TINY, "algo=slowmo", "name=mine", "logger=jsonl"]
    assert main(command) == 0
    assert main([*TINY, "algo=slowmo", "name=new", "seed=2", "logger=jsonl"]) == 0
    change(format=3, results_version=2)
    runs = read_runs([FOLDER.parent])
    settings = runs.table.set_index("run")["settings"]
    assert [settings[run]["results_version"] for run in ("mine", "new")] == ["0.2", "0.3"]
    assert runs.skipped == (
        "Runs of version 0.2: 1. They are neither comparable with those of version 0.3 nor "
        "resumable.",
    )
    with pytest.raises(ConfigError, match=rf"mine/config.yaml is {OLD}: run it again\.$"):
        load_experiment(FOLDER / "config.yaml", None)
    capsys.readouterr()
    assert main(command) == 2
    assert f"mine holds a run {OLD}; choose another name, or replace" in capsys.readouterr().err
    assert main([*command, "resume=never"]) == 0
    assert main(command) == 0
    assert "This run has finished already" in capsys.readouterr().out


def test_jobs_with_old_results_are_run_again() -> None:
    jobs = [RunJob("mine", (*TINY, "algo=sgp"), Path("results"))]
    assert dict(run_all(jobs, processes=1)) == {jobs[0]: None} and not jobs[0].due
    for other in (3, None, [4]):
        change(format=other)
        assert jobs[0].finished and jobs[0].due
    assert dict(run_all(jobs, processes=1)) == {jobs[0]: None} and not jobs[0].due


def test_a_version_cannot_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "results_version=2"]) == 2
    assert "results_version: there is no such setting" in capsys.readouterr().err

"""Timing studies of this package's algorithms run without a dry run, unless they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.experiments import make_experiment

from sgp_runner.assembly import dry_run, execution
from sgp_runner.config.run import Run
from sgp_runner.utils.errors import ConfigError

STUDY = ("model=timing_only", "model.sample_steps=3", "nodes=4", "algo=sgp")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs of which the calls were verified."""
    verified: list[Run] = []
    monkeypatch.setattr(dry_run, "verify_calls", verified.append)
    return verified


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (STUDY, 0),
        ((*STUDY, "cluster.links.bandwidth=[1e9,1e10]"), 1),
        (("model=quadratic", "nodes=4", "epochs=1"), 1),
    ],
)
def test_a_timing_study_makes_its_calls_once(
    overrides: tuple[str, ...], count: int, runs: list[Run], tmp_path: Path
) -> None:
    execution.run_experiment(make_experiment(tmp_path, *overrides))
    assert len(runs) == count


def test_a_failed_timing_study_names_the_calls_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("all wait")

    def refuse(run: Run) -> None:
        raise ConfigError("algo", f"{run.algo.title} cannot run on {run.nodes} nodes")

    monkeypatch.setattr(execution, "execute", fail)
    experiment, check = make_experiment(tmp_path, *STUDY), monkeypatch.setattr
    check(dry_run, "verify_calls", lambda run: None)
    with pytest.raises(RuntimeError, match="^all wait$"):
        execution.run_experiment(experiment)
    check(dry_run, "verify_calls", refuse)
    with pytest.raises(ConfigError, match="^algo: SGP cannot run on 4 nodes"):
        execution.run_experiment(experiment)

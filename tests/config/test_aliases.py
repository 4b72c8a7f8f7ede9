"""Settings with two names: runs by either are the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.plugins import in_a_folder_of_the_user

from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cli.sweep import plan
from sgp_runner.config.command_line import parse, search_in
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.overrides import configs, experiment_of
from sgp_runner.utils.errors import ConfigError

__all__ = ["in_a_folder_of_the_user"]


def of(*overrides: str) -> Experiment:
    return experiment_of(["model=mlp", "logger=jsonl", *overrides])


@pytest.mark.parametrize(
    ("overrides", "paper"),
    [
        ("algo=local_sgd algo.period=7", "algo=local_sgd algo.tau=7"),
        ("algo=local_sgd algo.local_sgd.period=7", "algo=local_sgd algo.tau=7"),
        ("algo=slowmo algo.period=7", "algo=slowmo algo.tau=7"),
        (
            "algo=slowmo algo.base=local_sgd algo.base.period=7",
            "algo=slowmo algo.base=local_sgd algo.base.tau=7",
        ),
        (
            "algo=hybrid algo.then=slowmo algo.then.period=7 algo.switch_epoch=1",
            "algo=hybrid algo.then=slowmo algo.then.tau=7 algo.switch_epoch=1",
        ),
    ],
)
def test_a_period_is_the_tau_of_the_paper(overrides: str, paper: str) -> None:
    mine, theirs = of(*overrides.split()), of(*paper.split())
    assert mine.config == theirs.config
    assert (mine.digest, mine.name) == (theirs.digest, theirs.name)


def test_the_last_of_two_names_holds() -> None:
    assert [
        of("algo=local_sgd", *words).run.algo
        for words in (("algo.tau=5", "algo.period=7"), ("algo.period=7", "algo.tau=5"))
    ] == [LocalSGD(7), LocalSGD(5)]


def test_a_file_may_have_the_second_name(in_a_folder_of_the_user: Path) -> None:
    Path("experiment").mkdir()
    Path("experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [{override /algo: local_sgd}]\nalgo: {period: 9}\n"
    )
    overrides = [search_in("."), "experiment=mine", "model=mlp"]
    assert experiment_of(overrides).run.algo == LocalSGD(9)
    assert experiment_of([*overrides, "algo.tau=5"]).run.algo == LocalSGD(5)


def test_the_period_of_a_preset_goes_with_an_algorithm_that_has_one() -> None:
    overrides = ["experiment=diloco_measured", "algo.period=16"]
    for preset in (overrides[:1], overrides):
        period = 16 if len(preset) == 2 else 8
        assert experiment_of([*preset, "algo=local_sgd"]).run.algo == LocalSGD(period)
        slowmo = experiment_of([*preset, "algo=slowmo"]).run.algo
        assert isinstance(slowmo, SlowMo) and slowmo.tau == period


def test_one_sweep_of_periods_for_algorithms_of_both_names() -> None:
    with configs():
        overrides = ("model=mlp", "algo=local_sgd,diloco", "algo.period=4,8", "logger=jsonl")
        jobs = plan(parse(overrides)).jobs
    assert [job.title for job in jobs] == [
        f"algo={algo} algo.period={period}" for algo in ("local_sgd", "diloco") for period in (4, 8)
    ]
    assert [job.experiment.run.algo.phases(4) for job in jobs] == [[(0.0, n)] for n in (4, 8, 4, 8)]


def test_an_algorithm_without_a_period_refuses_one() -> None:
    with pytest.raises(ConfigError, match="there is no such setting"):
        of("algo=ar_sgd", "algo.period=3")

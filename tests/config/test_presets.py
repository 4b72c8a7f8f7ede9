"""Every preset: its first lines, and two steps of it as a rehearsal and as a timing study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.experiments import composed, make_experiment

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.start import execute
from sgp_runner.config.choices import CONFIGS, groups
from sgp_runner.config.command_line import search_in
from sgp_runner.config.composed import chosen_once, warn_of_replaced
from sgp_runner.config.experiment import make_experiment as from_configuration
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.utils.errors import ConfigError

PRESETS = groups()["experiment"]
TABLES = ("sgp_", "slowmo_", "goyal_", "gapaware_", "pipesgd_")
FEW = ("data.train_size=640", "data.valid_size=100")
ROWS = [
    name
    for name in PRESETS
    if "row" in yaml.safe_load((CONFIGS / "experiment" / f"{name}.yaml").read_text())
]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_to_type_and_what_to_expect(name: str) -> None:
    command, expectation, *_ = (CONFIGS / "experiment" / f"{name}.yaml").read_text().splitlines()
    tokens = command.split()
    assert tokens[:2] == ["#", "sgp-run"] and f"experiment={name}" in tokens
    assert expectation.startswith(("# Published", "# Expect: "))


@pytest.mark.parametrize("name", ROWS)
def test_a_preset_is_the_published_run_its_rehearsal_or_its_timing_study(name: str) -> None:
    whole, timed, rehearsal = (
        from_configuration(composed("logger=jsonl", f"experiment={name}", *overrides))
        for overrides in ([], ["model=timing_only"], ["rehearsal=true"])
    )
    assert whole.run.row == timed.run.row == rehearsal.run.row == name
    for part in ("algo", "cluster", "timed_as"):
        of_whole = getattr(whole.run, part)
        assert of_whole == getattr(timed.run, part) == getattr(rehearsal.run, part), part
    assert timed.run.label == "timing only; time simulated"
    assert rehearsal.run.label == f"rehearsal on {rehearsal.run.data.name}; time simulated"
    if name.startswith(TABLES):
        check_rehearsal(name, rehearsal.run)
    assert rehearsal.run.data.name != whole.run.data.name and rehearsal.run.nodes == whole.run.nodes


def check_rehearsal(name: str, run: Run) -> None:
    """No sample is read twice, 10,000 or more validate, and lengths keep their proportion."""
    longer = 3 if name.endswith("_270") else 1
    sizes = {"shapes": (64_000 * longer, 10_000), "grammar": (65_536, 10_240)}
    found: Any = run.data
    assert (run.epochs, found.train_size, found.valid_size) == (1, *sizes[found.name])
    schedule: Any = run.optim.schedule
    if name.startswith(("sgp_", "goyal_")):
        special = {"goyal_8k_no_warmup": 0, name if longer == 3 else "": 0.0185}
        assert schedule.warmup_epochs == special.get(name, 0.056)


@pytest.mark.parametrize("name", ROWS)
def test_two_steps_of_a_preset(name: str, tmp_path: Path) -> None:
    timed = execute(
        make_experiment(
            tmp_path / "timed", f"experiment={name}", "model=timing_only", "model.sample_steps=2"
        )
    )
    assert timed is not None and timed["steps"] == 2 and timed["row"] == name
    nodes = 1 if name == "goyal_256" else 2
    rehearsal = make_experiment(
        tmp_path / "two", f"experiment={name}", "rehearsal=true", f"nodes={nodes}", *FEW
    )
    per_epoch = build_problem(rehearsal.run).sampler.steps_per_epoch
    summary = execute(replace(rehearsal, run=replace(rehearsal.run, epochs=2 / per_epoch)))
    assert summary is not None and summary["steps"] == 2 and summary["row"] == name


def test_settings_of_a_preset_go_with_the_choice_that_is_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen_once.cache_clear()
    warn_of_replaced.cache_clear()
    overrides = ["experiment=diloco_measured", "algo=pipe_sgd"]
    experiment = experiment_of(overrides)
    assert (experiment.run.algo.title, experiment.run.nodes) == ("Pipe-SGD", 4)
    assert capsys.readouterr().err == (
        "warning: algo.period of experiment=diloco_measured is ignored: algo=pipe_sgd has no "
        "such setting.\n"
    )
    with pytest.raises(
        ConfigError, match=r"^algo\.period: there is no such setting; algo has depth"
    ):
        experiment_of([*overrides, "algo.period=4"])
    assert capsys.readouterr().err == ""


def test_settings_of_a_file_of_the_user_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo/mine.yaml").write_text("name: pipe_sgd\nperiod: 4\n")
    arguments = [search_in(str(tmp_path)), "experiment=diloco_measured", "algo=mine"]
    with pytest.raises(ConfigError, match=r"^algo\.period: there is no such setting"):
        experiment_of(arguments)

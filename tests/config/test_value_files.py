"""Clusters, faults and presets in YAML files of the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.plugins import RUN, TINY, another_command, in_a_folder_of_the_user, write

from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of

__all__ = ["in_a_folder_of_the_user"]


def test_values_of_a_cluster_or_faults_are_a_file() -> None:
    Path("slow.yaml").write_text("defaults: [ideal]\nname: slow\nlinks: {latency_seconds: 0.5}\n")
    Path("mine.yaml").write_text("defaults: [none]\nslow_nodes: {0: 4.0}\n")
    experiment = experiment_of(["cluster=./slow.yaml", "faults=./mine.yaml", *RUN])
    assert experiment.run.cluster.links.latency_seconds == 0.5
    assert experiment.run.faults.slow_nodes == {0: 4.0}
    assert [plugin.name for plugin in experiment.plugins] == ["mine"]


def test_a_preset_is_a_file_that_imports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("preset.yaml").write_text("defaults: [override /algo: ar_sgd]\nseed: 7\n")
    run = experiment_of(["experiment=./preset.yaml", *TINY]).run
    assert (run.algo.title, run.seed) == ("AR-SGD", 7)
    Path("theirs.yaml").write_text("defaults: [override /algo: ./mine.py]\n")
    assert main(["experiment=./theirs.yaml", *TINY]) == 2
    assert "mine" not in sys.modules
    assert "experiment: 'theirs' chooses algo=./mine.py, which does not exist; there are " in (
        capsys.readouterr().err
    )
    assert main(["model=./preset.yaml", *TINY[1:]]) == 2
    assert (
        "model: './preset.yaml' contains only values: write model=CHOICE" in capsys.readouterr().err
    )


def test_a_misspelt_key_of_a_cluster_is_named_before_values_that_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for text, key in (("links: {bandwith: 1e9}", "links."), ("bandwith: 1e9", "")):
        Path("mine.yaml").write_text(text)
        assert main(["cluster=./mine.yaml", *TINY, "algo=sgp"]) == 2
        assert capsys.readouterr().err == (
            f"sgp-run: cluster.{key}bandwith: there is no such setting. "
            f"Did you mean 'cluster.links.bandwidth'?\n"
        )
        another_command()


@pytest.mark.parametrize("written", ["1e9", "1E+9", "1_0e8", "10.e8", "1Gbit/s", "1000000000"])
def test_numbers_in_files_are_read_as_on_the_command_line(written: str) -> None:
    Path("slow.yaml").write_text(
        f"defaults: [ideal]\nname: 2020-01-01\nlinks: {{bandwidth: {written}}}\n"
    )
    cluster = experiment_of(["cluster=./slow.yaml", *RUN]).run.cluster
    assert (cluster.name, cluster.links.bandwidth) == ("2020-01-01", 1e9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: !!set {a, b}", "cluster.name: a set in odd.yaml is not a setting: write text, "),
        ("regions: [{a: !!binary aGk=}]", "cluster.regions[0].a: a bytes in odd.yaml is not "),
        ("name: !!timestamp 2020-01-01", "cluster.name: a date in odd.yaml is not a setting: "),
        ("[1, 2]", "cluster: odd.yaml has no settings."),
        ("{1: [", "cluster: odd.yaml cannot be read: line 2, column 1: while parsing a flow "),
        ("name: {null: 1}", "cluster.name: 'None' in odd.yaml is not a valid name for a setting."),
    ],
)
def test_values_that_no_setting_has_are_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_text(text)
    of_preset = sentence.removeprefix("cluster.").replace("cluster:", "experiment:")
    for group, said in (("cluster", sentence), ("experiment", of_preset)):
        assert main([f"{group}=./odd.yaml", *TINY, "algo=sgp"]) == 2
        assert capsys.readouterr().err.startswith(f"sgp-run: {said}")
        another_command()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hydra: {launcher: {x: 1}}", "Key 'x' not in 'BasicLauncherConf' (hydra.launcher.x)."),
        ("hydra: {sweeper: {x: 1}}", "Key 'x' not in 'BasicSweeperConf' (hydra.sweeper.x)."),
        (
            "hydra: {searchpath: [file:///tmp]}",
            "Overriding hydra.searchpath is only supported from the primary config.",
        ),
        ("defaults: 3", "Invalid defaults list in 'experiment/odd', defaults must be a list (got"),
    ],
)
def test_a_preset_that_hydra_refuses_is_named_with_the_reason(
    text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_text(text)
    write(Path("folder"), {"experiment/odd.yaml": f"# @package _global_\n{text}\n"})
    for chosen in (["experiment=./odd.yaml"], ["--config-dir", "folder", "experiment=odd"]):
        assert main([*chosen, *TINY, "algo=sgp"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("sgp-run: experiment: 'odd' cannot be composed: ") and why in said
        another_command()

"""Settings of clusters by the flat names of earlier versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from helpers.paths import ROOT
from helpers.plugins import TINY, in_a_folder_of_the_user
from hydra._internal.core_plugins.file_config_source import FileConfigSource as HydraSource
from hydra._internal.sources_registry import SourcesRegistry

from sgp_runner.cli.main import main
from sgp_runner.config.old_names import (
    FLAT,
    NAMES,
    flattened,
    grouped,
    warn_of_groups,
    warn_of_new_name,
)
from sgp_runner.config.overrides import configs, experiment_of
from sgp_runner.config.sources import FileConfigSource

__all__ = ["in_a_folder_of_the_user"]

DIGEST = "7dc19241de48ac12ea74f55c396216fd0e16edb66c71a41e5947cc84f1bf4358"
WORDS = ("model=mlp", "algo=sgp", "nodes=4")
FLAT_FILE = """\
defaults: [ideal]
step_seconds: {mlp: 0.5}
bandwidth: 1Gbit/s
collective: tree
fitted_on: []
validated: {nodes: 8}
"""


@pytest.fixture(autouse=True)
def nothing_reported() -> None:
    warn_of_new_name.cache_clear()
    warn_of_groups.cache_clear()


def test_every_flat_name_has_one_setting() -> None:
    assert len(FLAT) == len(NAMES)
    assert NAMES["collective"] == "collectives.algorithm"
    assert NAMES["bandwidth"] == "links.bandwidth"
    assert NAMES["fitted_on"] == "validated.fitted_on"
    assert "nodes" not in NAMES and "name" not in NAMES


def test_the_notes_for_an_upgrade_list_every_flat_name() -> None:
    notes = (ROOT / "docs/install.md").read_text(encoding="utf-8").partition("### Former names")[2]
    for flat, present in NAMES.items():
        group, _, name = present.partition(".")
        rows = re.findall(rf"`cluster\.{group}\.(?:KEY|{name})` \|(.*)", notes)
        assert any(f"`{flat}`" in row or f"`cluster.{flat}`" in row for row in rows)


def test_groups_and_flat_names_are_inverse() -> None:
    flat = {"name": "lab", "bandwidth": 1.0, "collective": "tree", "step_seconds": {"mlp": 1.0}}
    groups = {
        "name": "lab",
        "links": {"bandwidth": 1.0},
        "collectives": {"algorithm": "tree"},
        "compute": {"step_seconds": {"mlp": 1.0}},
    }
    assert grouped(flat) == grouped(groups) == groups
    assert flattened(groups) == flattened(flat) == flat
    mixed = {"links": {"bandwidth": 1.0, "duplex": "half"}, "bandwidth": 2.0}
    assert grouped(mixed) == {"links": {"bandwidth": 2.0, "duplex": "half"}}
    assert grouped({"links": 5, "bandwidth": 2.0}) == {"links": 5, "bandwidth": 2.0}


@pytest.mark.parametrize(
    ("flat", "present", "reported"),
    [
        ("cluster.bandwidth=1Gbit/s", "cluster.links.bandwidth=1Gbit/s", False),
        ("cluster.latency_seconds=1ms", "cluster.links.latency_seconds=1ms", False),
        ("+cluster.step_seconds.mlp=1", "cluster.compute.step_seconds.mlp=1", False),
        ("cluster.step_seconds={mlp: 1}", "cluster.compute.step_seconds={mlp: 1}", False),
        ("cluster.collective=tree", "cluster.collectives.algorithm=tree", True),
        ("cluster.node_factors.3=2", "cluster.compute.node_factors.3=2", True),
        ("~cluster.overlap", "~cluster.collectives.overlap", True),
    ],
)
def test_an_override_by_a_flat_name_is_the_same_run(
    flat: str, present: str, reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = experiment_of([present, *WORDS])
    assert not caplog.messages
    old = experiment_of([flat, *WORDS])
    assert (old.run.cluster, old.name) == (run.run.cluster, run.name)
    key = flat.lstrip("+~").partition("=")[0].removesuffix(".3")
    new = present.lstrip("~").partition("=")[0].removesuffix(".3")
    assert caplog.messages == ([f"{key} is now called {new}."] if reported else [])


def test_a_flat_file_is_read_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    Path("lab.yaml").write_text(FLAT_FILE)
    flat = experiment_of(["cluster=./lab.yaml", *WORDS]).run.cluster
    assert caplog.messages == [
        "lab.yaml has settings of an earlier version: write compute: {step_seconds}, "
        "links: {bandwidth}, collectives: {algorithm}, validated: {fitted_on}."
    ]
    assert (flat.name, flat.links.bandwidth, flat.collectives.algorithm) == ("lab", 1e9, "tree")
    assert (flat.compute.step_seconds["mlp"], flat.validated.nodes) == (0.5, 8)


def test_a_file_in_groups_replaces_values_of_the_flat_file_it_is_based_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Path("mine/cluster").mkdir(parents=True)
    Path("mine/experiment").mkdir()
    Path("mine/cluster/lab.yaml").write_text(FLAT_FILE)
    Path("mine/cluster/faster.yaml").write_text("defaults: [lab]\nlinks: {bandwidth: 2e9}\n")
    Path("mine/experiment/far.yaml").write_text(
        "# @package _global_\ndefaults: [override /cluster: faster]\n"
        "cluster: {latency_seconds: 0.5}\n"
    )
    found = experiment_of(["hydra.searchpath=[file://mine]", "experiment=far", *WORDS]).run.cluster
    assert (found.links.bandwidth, found.links.latency_seconds) == (2e9, 0.5)
    assert found.collectives.algorithm == "tree"
    assert [message.partition(" ")[0] for message in caplog.messages] == ["mine/cluster/lab.yaml"]


def test_the_identity_of_a_run_has_flat_names() -> None:
    words = ["cluster=wan_1g", "cluster.collectives.library=null", "cluster.collective=tree"]
    assert experiment_of([*words, *WORDS]).digest == DIGEST


def test_a_run_stored_under_flat_names_is_found_and_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [*TINY, "algo=sgp", "results=here", "cluster=sgp_ethernet"]
    command += ["cluster.bandwidth=1Gbit/s", "cluster.step_seconds.default=1"]
    command += ["checkpoint.keep_last=true", "optim.schedule=constant"]
    assert main(command) == 0
    (folder,) = Path("here/runs").iterdir()
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    assert config["format"] == 3 and config["cluster"]["links"]["bandwidth"] == 1e9
    flat = flattened(config["cluster"])
    flat["validated"] = {key: flat.pop(f"validated.{key}") for key in ("nodes", "bandwidth")}
    path.write_text(yaml.safe_dump({**config, "format": 2, "cluster": flat}))
    capsys.readouterr()
    assert main(command) == 0
    assert "This run has finished already (resume=never repeats it)." in capsys.readouterr().out
    assert main([*command, f"name={folder.name}", "epochs=2"]) == 0
    assert "Extending the run from" in capsys.readouterr().out
    assert yaml.safe_load(path.read_text())["format"] == 3


def test_hydra_takes_the_source_of_flat_names_for_its_own() -> None:
    """A job of a sweep has the sources of its launcher, and then registers those of Hydra."""
    with configs():
        sources = SourcesRegistry.instance()
        sources.register(HydraSource)
        assert sources.resolve("file") is FileConfigSource
    assert sources.resolve("file") is not FileConfigSource

"""Flat names of a cluster's settings: in overrides, and in the identity of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.plugins import in_a_folder_of_the_user
from helpers.refusals import refusal

from sgp_runner.config.old_names import FLAT, NAMES, flattened
from sgp_runner.config.overrides import experiment_of

__all__ = ["in_a_folder_of_the_user"]

DIGEST = "7dc19241de48ac12ea74f55c396216fd0e16edb66c71a41e5947cc84f1bf4358"
WORDS = ("model=mlp", "algo=sgp", "nodes=4")


def test_every_flat_name_has_one_setting() -> None:
    assert len(FLAT) == len(NAMES)
    names = ("collective", "bandwidth", "fitted_on", "nodes", "name")
    assert [NAMES.get(name) for name in names] == [
        *("collectives.algorithm", "links.bandwidth", "validated.fitted_on", None, None)
    ]


def test_the_identity_of_a_run_has_flat_names() -> None:
    overrides = ["cluster=wan_1g", "cluster.collectives.library=null"]
    assert (
        experiment_of([*overrides, "cluster.collectives.algorithm=tree", *WORDS]).digest == DIGEST
    )
    groups = {"links": {"bandwidth": 1.0}, "collectives": {"algorithm": "tree"}, "name": "lab"}
    assert flattened(groups) == {"bandwidth": 1.0, "collective": "tree", "name": "lab"}


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("cluster.bandwidth=1Gbit/s", "cluster.links.bandwidth=1Gbit/s"),
        ("cluster.latency_seconds=1ms", "cluster.links.latency_seconds=1ms"),
        ("+cluster.step_seconds.mlp=1", "cluster.compute.step_seconds.mlp=1"),
        ("cluster.step_seconds={mlp: 1}", "cluster.compute.step_seconds={mlp: 1}"),
    ],
)
def test_an_override_by_a_short_name_is_the_same_run(short: str, full: str) -> None:
    run, same = experiment_of([full, *WORDS]), experiment_of([short, *WORDS])
    assert (same.run.cluster, same.name) == (run.run.cluster, run.name)


@pytest.mark.parametrize(
    ("flat", "full"),
    [
        ("collective: tree", "collectives.algorithm"),
        ("bandwidth: 1Gbit/s", "links.bandwidth"),
        ("fitted_on: []", "validated.fitted_on"),
    ],
)
def test_a_flat_name_is_refused_with_the_present_one(flat: str, full: str) -> None:
    Path("lab.yaml").write_text(f"defaults: [ideal]\n{flat}\n")
    name = flat.partition(":")[0]
    sentence = f"cluster.{name}: there is no such setting. Did you mean 'cluster.{full}'?"
    assert str(refusal(experiment_of, ["cluster=./lab.yaml", *WORDS])) == sentence
    if name == "collective":
        assert (
            str(refusal(experiment_of, [f"cluster.{flat.replace(': ', '=')}", *WORDS])) == sentence
        )

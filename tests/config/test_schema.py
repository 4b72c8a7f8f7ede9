from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union

import pytest
import yaml
from helpers.refusals import refusal

from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cli.help import descriptions
from sgp_runner.cluster.faults import Event
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.timed_as import TimedAs
from sgp_runner.config.check import annotation, check, kind_of
from sgp_runner.config.checkpoints import Checkpoints
from sgp_runner.config.choices import CLASSES, class_of, groups, has_names
from sgp_runner.config.experiment import load_experiment, make_experiment, stored
from sgp_runner.config.old_names import GROUPS
from sgp_runner.config.run import Run
from sgp_runner.config.schema import fields_of
from sgp_runner.core.optim import SGD, Steps
from sgp_runner.topology.graphs import DirectedExponential
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import parse_yaml
from sgp_runner.utils.units import Unit

CONFIGURED = {
    cls
    for group in CLASSES
    for choice in (CLASSES[group] if has_names(group) else [""])
    if (cls := class_of(group, choice))
} | {
    Run,
    Checkpoints,
    TimedAs,
    Event,
    *GROUPS.values(),
}


def tree() -> dict[str, Any]:
    """A whole run, as Hydra resolves it."""
    return {
        "nodes": 4,
        "epochs": 2,
        "algo": {
            "name": "slowmo",
            "tau": 12,
            "base": {
                "name": "osgp",
                "tau": 2,
                "topology": {"name": "exponential", "peers": {0: 2, 30: 1}},
            },
        },
        "model": {"name": "mlp", "hidden": [32, 16], "dropout": 0},
        "data": {"name": "digits"},
        "network": {"name": "sim"},
        "cluster": {
            "compute_time": {"name": "constant"},
            "compute": {"step_seconds": {"default": 0.5}, "node_factors": {"3": 2}},
            "links": {"bandwidth": 1e10, "latency_seconds": 5e-5},
        },
        "faults": {"slow_nodes": {}, "slow_links": {}},
        "optim": {
            "name": "sgd",
            "lr": 1,
            "lr_reference_batch": None,
            "schedule": {"name": "steps", "milestones": [1, 2.5]},
        },
        "logger": {"name": "jsonl"},
    }


def changed(key: str, value: object) -> dict[str, Any]:
    out = tree()
    node = out
    *path, last = key.split(".")
    for name in path:
        node = node[name]
    node[last] = value
    return out


def test_every_part_is_built() -> None:
    run = make_experiment(tree()).run
    assert run.algo == SlowMo(base=OSGP(topology=DirectedExponential({0: 2, 30: 1}), tau=2), tau=12)
    assert run.optim == SGD(lr=1.0, schedule=Steps(milestones=(1.0, 2.5)))
    assert run.cluster.compute.node_factors == {3: 2.0}


def test_a_whole_number_is_a_number_and_names_the_same_run() -> None:
    one, other = make_experiment(tree()), make_experiment(changed("epochs", 2.0))
    assert (one.run.epochs, type(one.run.epochs)) == (2.0, float)
    assert one.name == other.name
    assert make_experiment(changed("epochs", 2.5)).name != one.name


def with_number(hint: Any, number: int) -> object | None:
    """Return a value of the type ``hint`` with a whole number in it; None if it has none."""
    kind, arms = kind_of(hint)
    if kind is int:
        return number
    if kind is Mapping and arms[0] is int:
        return {number: 1}
    if kind in (Union, Annotated, Sequence, Mapping) and float not in arms:
        inner = [with_number(arm, number) for arm in arms if not isinstance(arm, Unit)]
        value = next((candidate for candidate in inner if candidate is not None), None)
        if value is not None and kind in (Sequence, Mapping):
            return [value] if kind is Sequence else {"x": value}
        return value
    return None


WHOLE = {
    f"{cls.__name__}.{name}": hint
    for cls in CONFIGURED
    for name, field in fields_of(cls, "").items()
    if with_number(hint := annotation(cls, field), 1) is not None
}


@pytest.mark.parametrize("setting", sorted(WHOLE))
def test_a_whole_number_has_at_most_as_many_digits_as_are_read_again(setting: str) -> None:
    """A file with a longer number could not be read when the run is resumed or reported."""
    most = with_number(WHOLE[setting], 10**20 - 1)
    assert check(most, WHOLE[setting], setting, {}) == most
    assert parse_yaml(yaml.safe_dump(most)) == most
    for number in (10**20, -(10**20)):
        with pytest.raises(ConfigError, match=r": a whole number has at most 20 digits: use a"):
            check(with_number(WHOLE[setting], number), WHOLE[setting], setting, {})


def test_an_experiment_survives_its_file(tmp_path: Path) -> None:
    experiment = make_experiment(tree(), group="a sweep")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored(experiment)))
    again = load_experiment(tmp_path / "config.yaml", "a sweep")
    assert again == experiment and again.name == experiment.name


def test_what_is_stored_names_choices_and_no_classes() -> None:
    """So that the digest, which names runs and is in checkpoints and recordings, does not depend on
    where classes are.
    """
    experiment = make_experiment(tree())
    config: Any = experiment.config
    assert "sgp_runner" not in json.dumps(config)
    assert (
        config["algo"]["name"],
        config["algo"]["base"]["name"],
        config["algo"]["base"]["topology"]["name"],
    ) == (
        "slowmo",
        "osgp",
        "exponential",
    )
    assert (config["network"], config["optim"]["schedule"]["name"]) == ({"name": "sim"}, "steps")
    assert set(config["faults"]) == {"slow_nodes", "slow_links"}  # it can only be of one class


HEAVY = ("torch", "torchvision", "numpy", "wandb", "sklearn", "sacrebleu")
IMPORTED = f"""
import sys
from sgp_runner.config.choices import CLASSES, class_of, has_names
for group in CLASSES:
    for choice in CLASSES[group] if has_names(group) else [""]:
        class_of(group, choice)
        found = set({HEAVY}) & set(sys.modules)
        assert not found, f"{{group}}={{choice}} imports {{found}}"
"""


def test_every_choice_has_a_frozen_dataclass_that_is_imported_without_heavy_packages() -> None:
    for group in CLASSES:
        for choice in CLASSES[group] if has_names(group) else [""]:
            cls: Any = class_of(group, choice)
            frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen
            assert frozen, f"{group}={choice}"
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)


def test_groups_have_classes_and_their_choices_files() -> None:
    assert {*groups()} == {*CLASSES, "base", "experiment"}
    for group, known in CLASSES.items():
        assert isinstance(known, str) or {*known} <= {*groups()[group]}


@pytest.mark.parametrize(
    "cls", sorted(CONFIGURED, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__
)
def test_every_field_is_described_in_its_docstring(cls: type[Any]) -> None:
    assert {*descriptions(cls)} == {*fields_of(cls, "cluster" if cls in (Run, Cluster) else "algo")}
    assert not [text for text in descriptions(cls).values() if text.endswith(".")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"format": 2},
            "is of another version of sgp-run, which this version cannot read: run it again.",
        ),
        (
            {"format": None},
            "is of another version of sgp-run, which this version cannot read: run it again.",
        ),
        (
            {"data": {"_target_": "os.system"}},
            "data: no choice is selected; use one of cifar10, cifar100, ",
        ),
        (
            {"network": {"name": "sims"}},
            "network: 'sims' is not one of gloo, mpi, nccl, sim. Did you mean 'sim'?",
        ),
        (
            {"network": {"engine": "loop"}},
            "network: no choice is selected; use one of gloo, mpi, nccl, sim.",
        ),
        ({"algo": {"name": "resnet8"}}, "algo: 'resnet8' is not one of a2cid2, acco, accum_adam, "),
    ],
)
def test_a_stored_configuration_that_cannot_be_read_is_one_sentence(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored(make_experiment(tree())) | change))
    assert sentence in str(refusal(load_experiment, tmp_path / "config.yaml", None))


BAD: list[tuple[str, object, str, str]] = [
    ("nodes", "abc", "nodes", "'abc' is not a whole number."),
    ("nodes", 2.5, "nodes", "2.5 is not a whole number."),
    ("nodes", True, "nodes", "true is not a whole number."),
    ("nodes", None, "nodes", "the value is missing; write nodes=..."),
    ("nodez", 4, "nodez", "there is no such setting. Did you mean 'nodes'?"),
    ("lr", 0.1, "lr", "there is no such setting. Did you mean 'optim.lr'?"),
    ("_partial_", True, "_partial_", "there is no such setting; a run has nodes, gpus_per_node,"),
    ("epochs", float("nan"), "epochs", "nan must be finite."),
    ("epochs", 10**400, "epochs", "must be finite."),
    ("optim.lr", "fast", "optim.lr", "'fast' is not a number."),
    ("optim.lr", False, "optim.lr", "false is not a number."),
    ("optim.nesterov", 1, "optim.nesterov", "1 is not true or false."),
    (
        "optim.momentun",
        0.5,
        "optim.momentun",
        "there is no such setting. Did you mean 'optim.momentum'?",
    ),
    (
        "optim.lr_reference_batch",
        0.5,
        "optim.lr_reference_batch",
        "0.5 is not a whole number or null.",
    ),
    (
        "optim.schedule",
        "steps",
        "optim.schedule",
        "'steps' is a choice; a file selects it in its defaults list, ",
    ),
    ("optim.schedule.milestones", 3, "optim.schedule.milestones", "3 is not a list such as [1,2]."),
    ("optim.schedule.milestones", [1, "x"], "optim.schedule.milestones[1]", "'x' is not a number."),
    (
        "optim.schedule",
        {"warmup": 3},
        "optim.schedule",
        "no choice is selected; use one of constant, cosine,",
    ),
    (
        "algo.base",
        None,
        "algo.base",
        "no choice is selected; use one of ar_sgd, d_psgd, local_sgd,",
    ),
    ("algo.base.tau", -1, "algo.base.tau", "-1 must be at least 0."),
    (
        "algo.base.layout",
        "papr",
        "algo.base.layout",
        "'papr' is not one of paper, released, released_2019. Did you mean 'paper'?",
    ),
    (
        "algo.base.topology.peers",
        "two",
        "algo.base.topology.peers",
        "'two' is not a whole number or a mapping such as {0: 2}.",
    ),
    ("algo.base.topology.peers", 0, "algo.base.topology.peers", "0 must be at least 1"),
    (
        "cluster.compute.node_factors",
        {"three": 2.0},
        "cluster.compute.node_factors",
        "'three' is not a whole number;",
    ),
    (
        "cluster.compute.step_seconds",
        {"default": "x"},
        "cluster.compute.step_seconds.default",
        "'x' is not a number in seconds (such as 10s or 1ms).",
    ),
    ("results", 2024, "results", "2024 is not text; quote it: \"results='2024'\"."),
    (
        "logger._target_",
        "os.system",
        "logger._target_",
        "there is no such setting; logger has no settings.",
    ),
    (
        "logger.name",
        "os.system",
        "logger",
        "'os.system' is not one of csv, jsonl, mlflow, none, tensorboard, wandb.",
    ),
    (
        "logger.name",
        ["wandb"],
        "logger",
        "['wandb'] is not one of csv, jsonl, mlflow, none, tensorboard, wandb.",
    ),
    ("network", {"name": "jsonl"}, "network", "'jsonl' is not one of gloo, mpi, nccl, sim."),
    (
        "algo.base",
        {"name": "ad_psgd"},
        "algo.base",
        "'ad_psgd' is not one of ar_sgd, d_psgd, local_sgd, osgp, sgp.",
    ),
    (
        "algo.base.name",
        "wmt16_en_de_large_batch",
        "algo.base",
        "'wmt16_en_de_large_batch' is not one of ar_sgd, ",
    ),
    (
        "data.name",
        "wmt16_en_de_large_batch",
        "data",
        "'wmt16_en_de_large_batch' is a choice; a file selects it in its defaults list, ",
    ),
    ("faults.name", "none", "faults.name", "there is no such setting."),
    ("checkpoint", {"name": "faults"}, "checkpoint.name", "there is no such setting."),
]


@pytest.mark.parametrize(
    ("key", "value", "named", "sentence"),
    BAD,
    ids=[f"{key}={value}"[:50] for key, value, *_ in BAD],
)
def test_what_does_not_fit_is_refused_by_name(
    key: str, value: object, named: str, sentence: str
) -> None:
    error = refusal(make_experiment, changed(key, value))
    assert error.key == named and sentence in error.sentence and "\n" not in str(error)


def test_a_part_that_is_left_out_is_missed() -> None:
    without = tree()
    del without["optim"]["schedule"]
    with pytest.raises(
        ConfigError, match=r"^optim.schedule: no choice is selected; use one of constant, cosine"
    ):
        make_experiment(without)

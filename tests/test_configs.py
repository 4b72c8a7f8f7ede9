from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cli import main
from sgp_runner.cluster import GammaTime, LogNormalTime
from sgp_runner.groups import CONFIGS, NESTED, group_of, groups
from sgp_runner.overrides import compose, compose_all, configs, parse
from sgp_runner.run import Experiment, Run
from sgp_runner.schema import build, make_experiment, target_of
from sgp_runner.sweep import plan
from sgp_runner.topology import DirectedExponential

ROOT = yaml.safe_load((CONFIGS / "config.yaml").read_text())
FILES = [(group, choice) for group, choices in groups().items() for choice in choices if group != "experiment"]


@pytest.fixture(autouse=True)
def hydra_is_ready() -> Iterator[None]:
    with configs():
        yield


def experiment(*words: str) -> Experiment:
    return make_experiment(compose([setting.word for setting in parse([*words, "logger=jsonl"])]))


def parts(node: dict[str, Any]) -> set[str]:
    """The fields that a file's defaults list fills."""
    return {key.rpartition("@")[2] for entry in node.get("defaults", []) if isinstance(entry, dict) for key in entry}


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_a_file_has_the_fields_of_its_class_and_no_others(group: str, choice: str) -> None:
    file = yaml.safe_load((CONFIGS / group / f"{choice}.yaml").read_text())
    node = file[group] if group == "model" else file
    keys = set(node) - {"defaults", "_target_"}
    if "_target_" not in node:  # a variant of another choice
        parent = next(entry for entry in node["defaults"] if isinstance(entry, str)).removesuffix("@_here_")
        path = CONFIGS / (parent.lstrip("/") if parent.startswith("/") else f"{group}/{parent}")
        node = yaml.safe_load(path.with_suffix(".yaml").read_text())
        assert keys <= {field.name for field in dataclasses.fields(target_of(node, group))}
    else:
        cls = target_of(node, group)
        optional = set(getattr(cls, "only_measured", ())) - keys
        assert keys | parts(node) == {field.name for field in dataclasses.fields(cls)} - optional


def test_the_root_has_the_fields_of_a_run_and_no_others() -> None:
    keys = {key for key in ROOT if key not in ("defaults", "_target_", "hydra")}
    chosen = {
        group.removesuffix("@_global_") for entry in ROOT["defaults"] if isinstance(entry, dict) for group in entry if "hydra" not in group
    }
    assert keys | (chosen - {"experiment"}) == {field.name for field in dataclasses.fields(Run)}
    # Their defaults agree, but for those that every model replaces.
    values = {key: build(ROOT[key], key) if isinstance(ROOT[key], dict) else ROOT[key] for key in keys}
    assert {field.name: field.default for field in dataclasses.fields(Run) if field.name in keys} == values


def test_a_key_belongs_to_a_group() -> None:
    assert group_of("algo") == group_of("algo.first") == group_of("algo.then") == group_of("algo.base.first") == "algo"
    assert group_of("algo.base") == group_of("algo.then.base") == "base"
    assert {key: group_of(key) for key in NESTED.values()} == {key: group for group, key in NESTED.items()}
    assert [group_of(key) for key in ("topology", "base", "nodes", "algo.tau", "optim.lr")] == [None] * 5


TITLES = {
    "ad_psgd": "AD-PSGD",
    "ar_sgd": "AR-SGD",
    "d_psgd": "D-PSGD",
    "gap_aware": "Gap-Aware",
    "hybrid": "AR-SGD, then SGP",
    "local_sgd": "Local SGD",
    "osgp": "OSGP",
    "pipe_sgd": "Pipe-SGD",
    "ps_sgd": "PS-SGD",
    "sgp": "SGP",
    "slowmo": "SlowMo(SGP)",
}


@pytest.mark.parametrize("algo", groups()["algo"])
def test_every_algorithm_can_be_chosen(algo: str) -> None:
    title = experiment(f"algo={algo}").run.algo.title
    assert title == TITLES.get(algo, title)  # a new one needs no entry here


@pytest.mark.parametrize("model", groups()["model"])
def test_every_model_brings_data_that_it_reads(model: str) -> None:
    run = experiment(f"model={model}").run
    assert (run.model.name, run.data.name) == (model, run.model.default_data)


OTHERS = ["algo.topology", "optim.schedule", "cluster.compute_time", "optim", "cluster", "faults", "data"]
ROUNDS = list(zip_longest(*(groups()[group_of(key) or ""] for key in OTHERS)))


@pytest.mark.parametrize("choices", ROUNDS, ids=["-".join(filter(None, choices)) for choices in ROUNDS])
def test_every_other_choice_can_be_made(choices: tuple[str | None, ...], tmp_path: Path) -> None:
    words = [f"{key}={choice}" for key, choice in zip(OTHERS, choices, strict=True) if choice]
    if "algo.topology=edges" in words:
        (tmp_path / "graph.txt").write_text("\n".join(f"{i} {(i + 1) % 8}" for i in range(8)))
        words.append(f"algo.topology.path={tmp_path}/graph.txt")
    made = experiment("model=timing_only", *words)
    data = choices[OTHERS.index("data")]
    assert data is None or made.run.data.name == data.removesuffix("_large_batch")


@pytest.mark.parametrize("network", groups()["network"])
def test_every_network_can_be_chosen(network: str) -> None:
    assert experiment(f"network={network}").run.network.name == network


def test_choices_inside_choices() -> None:
    run = experiment(
        "algo=slowmo", "algo.base=osgp", "algo.base.topology=exponential", "algo.base.topology.peers={0:2,30:1}", "algo.base.tau=3"
    ).run
    assert str(run.algo) == str(
        experiment("algo=slowmo", "base@algo.base=osgp", "++algo.base.tau=3", "algo.base.topology.peers={0: 2, 30: 1}").run.algo
    )
    assert "OSGP(topology=DirectedExponential(peers={0: 2, 30: 1}), tau=3" in str(run.algo)
    over_local = experiment("algo=slowmo", "algo.base=local_sgd").run.algo
    assert "LocalSGD(tau=None)" in str(over_local) and getattr(over_local, "period") == 12  # noqa: B009
    assert getattr(experiment("algo=slowmo", "algo.base=osgp").run.algo, "period") == 48  # noqa: B009
    hybrid = experiment("algo=hybrid", "algo.first=local_sgd", "algo.then=d_psgd", "algo.then.topology=torus").run.algo
    assert hybrid.title == "Local SGD, then D-PSGD" and "Torus()" in str(hybrid)


def test_mappings_are_set_by_name_or_as_a_whole() -> None:
    by_name = experiment("cluster.node_factors.3=2", "+cluster.step_seconds.mlp=0.1", "model=mlp").run.cluster
    as_a_whole = experiment("cluster.node_factors={3: 2}", "cluster.step_seconds={mlp: 0.1}", "model=mlp").run.cluster
    assert by_name.node_factors == as_a_whole.node_factors == {3: 2.0}
    assert by_name.mean_step("mlp", 32) == 0.1 and "default" in by_name.step_seconds
    assert as_a_whole.step_seconds == {"mlp": 0.1}


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("algo.topology=ring", "topology@algo.topology=ring"),
        ("algo.topology=ring,torus", "topology@algo.topology=ring,torus"),
        ("algo.base=osgp", "base@algo.base=osgp"),
        ("algo.base.topology=ring", "topology@algo.base.topology=ring"),
        ("algo.first=sgp", "algo@algo.first=sgp"),
        ("algo.then=sgp", "algo@algo.then=sgp"),
        ("optim.schedule=cosine", "schedule@optim.schedule=cosine"),
        ("cluster.compute_time=gamma", "compute_time@cluster.compute_time=gamma"),
        ("+algo.topology=ring", "+topology@algo.topology=ring"),
        ("topology@algo.topology=ring", "topology@algo.topology=ring"),
        ("algo=sgp", "algo=sgp"),
        ("algo.topology.peers=2", "++algo.topology.peers=2"),
        ("algo.topology.peers={0:2,30:1}", "++algo.topology.peers={0:2,30:1}"),
        ("algo.base.tau=3", "++algo.base.tau=3"),
        ("+nodes=3", "++nodes=3"),
        ("++nodes=3", "++nodes=3"),
        ("~nodes", "~nodes"),
        ("nodes=4,8", "++nodes=4,8"),
        ("hydra.job.num=3", "hydra.job.num=3"),
        ("hydra/launcher=basic", "hydra/launcher=basic"),
    ],
)
def test_what_is_typed_is_translated(typed: str, word: str) -> None:
    assert parse([typed])[0].word == word


@pytest.mark.parametrize(
    ("words", "slow_nodes"),
    [
        (["faults.slow_nodes={3: 10}"], {3: 10.0}),
        (["faults.slow_nodes={}"], {}),
        (["faults.slow_nodes= {3: 10}"], {3: 10.0}),
        (["++faults.slow_nodes={3: 10}"], {3: 10.0}),
        (["faults.slow_nodes.3=10"], {0: 4.0, 3: 10.0}),
        (["faults.slow_nodes={3: 10}", "faults.slow_nodes.5=2"], {3: 10.0, 5: 2.0}),
        (["faults.slow_nodes.5=2", "faults.slow_nodes={3: 10}"], {3: 10.0}),
    ],
)
def test_a_mapping_on_the_command_line_replaces_that_of_a_preset(words: list[str], slow_nodes: dict[int, float]) -> None:
    assert experiment("faults=slow_node", *words).run.faults.slow_nodes == slow_nodes


def test_mappings_replace_each_other_wherever_they_are() -> None:
    run = experiment("cluster=sgp_ethernet", "cluster.step_seconds={resnet8: 0.1}", "algo.topology.peers={0: 2, 5: 1}").run
    assert run.cluster.step_seconds == {"resnet8": 0.1}
    deep = experiment("algo=slowmo", "algo.base.topology.peers={0: 2, 5: 1}", "algo.base={topology: {peers: {0: 1}}}").run.algo
    assert isinstance(deep, SlowMo) and deep.base == SGP(DirectedExponential(peers={0: 1}))


def test_a_part_keeps_the_settings_that_a_mapping_does_not_name() -> None:
    run = experiment("checkpoint={every_steps: 5}", "cluster.compute_time=log_normal", "cluster.compute_time={cv: 0.3}").run
    assert (run.checkpoint.every_steps, run.checkpoint.keep, run.cluster.compute_time) == (5, 2, LogNormalTime(0.3))
    other = "cluster.compute_time={_target_: sgp_runner.cluster.GammaTime, shape: 4}"
    assert experiment("cluster.compute_time=log_normal", other).run.cluster.compute_time == GammaTime(4.0)


def test_what_is_printed_of_a_configuration_has_whole_mappings_too(capfd: pytest.CaptureFixture[str]) -> None:
    GlobalHydra.instance().clear()
    assert main(["faults=slow_node", "faults.slow_nodes={3: 10}", "--cfg", "job", "--package", "faults.slow_nodes"]) == 0
    assert capfd.readouterr().out == "# @package faults.slow_nodes\n3: 10\n"


def test_hydras_own_mappings_are_left_to_hydra() -> None:
    words = [setting.word for setting in parse(["++hydra.job.env_set={A: b}"])]
    assert compose_all(words, hydra_too=True).hydra.job.env_set == {"A": "b"}


def test_a_sweep_over_mappings_replaces_them_in_each_run() -> None:
    words = ["faults=slow_node", "faults.slow_nodes={3: 10},{1: 2}", "model=timing_only", "logger=jsonl"]
    _, _, jobs = plan(parse(words))
    assert [job.experiment.run.faults.slow_nodes for job in jobs] == [{3: 10.0}, {1: 2.0}]

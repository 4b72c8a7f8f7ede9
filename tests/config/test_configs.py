from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.refusals import refusal
from hydra.core.global_hydra import GlobalHydra

from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cli.main import main
from sgp_runner.cli.sweep import plan
from sgp_runner.cluster.compute_variation import GammaTime, LogNormalTime
from sgp_runner.config.choices import (
    CLASSES,
    CONFIGS,
    NESTED,
    class_of,
    group_of,
    groups,
    has_names,
)
from sgp_runner.config.command_line import parse
from sgp_runner.config.composed import composed_once
from sgp_runner.config.experiment import Experiment, load_experiment, make_experiment, stored
from sgp_runner.config.overrides import compose, compose_all, configs, prepare_algorithms
from sgp_runner.config.plugins.composition import default_of
from sgp_runner.config.run import Run
from sgp_runner.config.schema import completed, fields_of, has_default
from sgp_runner.topology.graphs import DirectedExponential

FILES = [(group, choice) for group in CLASSES for choice in groups()[group]]


@pytest.fixture(autouse=True)
def hydra_is_ready() -> Iterator[None]:
    with configs():
        yield


def experiment(*overrides: str) -> Experiment:
    return make_experiment(compose(parse(["logger=jsonl", *overrides])))


@pytest.mark.parametrize(("group", "choice"), FILES)
def test_a_file_names_its_class_and_sets_only_what_differs_from_its_defaults(
    group: str, choice: str
) -> None:
    file = yaml.safe_load((CONFIGS / group / f"{choice}.yaml").read_text()) or {}
    node = file["model"] if group == "model" else file
    of = node.get(
        "name", next((entry for entry in node.get("defaults", []) if isinstance(entry, str)), "")
    )
    cls = class_of(group, of if has_names(group) else "")
    assert cls is not None and (choice.startswith(of) or not has_names(group))
    fields = fields_of(cls, group)
    settings = {*node} - {"defaults", *(["name"] if has_names(group) else [])}
    assert group == "cluster" or not [
        name
        for name in settings
        if has_default(fields[name]) and node[name] == default_of(fields[name])
    ]


def test_every_model_sets_only_what_differs_from_the_defaults_of_a_run() -> None:
    fields = fields_of(Run, "")
    for choice in groups()["model"]:
        file = yaml.safe_load((CONFIGS / "model" / f"{choice}.yaml").read_text())
        assert not [
            name
            for name, value in file.items()
            if name in fields and has_default(fields[name]) and default_of(fields[name]) == value
        ]


def test_the_root_chooses_and_sets_nothing() -> None:
    assert {*yaml.safe_load((CONFIGS / "config.yaml").read_text())} == {"defaults", "hydra"}


def test_defaults_are_added_in_the_order_of_the_fields() -> None:
    tree = completed(
        {"seed": 2, "algo": {"tau": 2, "name": "osgp"}, "cluster": {"bandwidth": 1.0}, "odd": 1}
    )
    assert list(tree["algo"].items()) == [  # type: ignore[attr-defined]
        ("name", "osgp"),
        ("tau", 2),
        ("interval", 1),
        ("layout", "paper"),
        ("push_sum_weight", True),
    ]
    assert (tree["nodes"], tree["seed"], tree["odd"]) == (8, 2, 1)
    assert tree["checkpoint"] == {
        "every_steps": None,
        "every_minutes": 30,
        "keep": 2,
        "keep_last": False,
    }
    assert tree["cluster"] == {"bandwidth": 1.0}  # a profile is stored as it is written


def test_a_default_can_be_referred_to_and_restored() -> None:
    assert (
        experiment("nodes=${gpus_per_node}", "epochs=${optim.schedule.reference_epochs}").run.epochs
        == 90
    )
    assert experiment("model=resnet50").run.eval_every == 5
    assert (
        experiment("model=resnet50", "~eval_every", "~timed_as").run
        == experiment("model=resnet50", "eval_every=1", "~timed_as").run
    )
    assert experiment("~checkpoint.keep").run.checkpoint.keep == 2


def test_an_algorithm_has_defaults_of_its_own_for_sgd() -> None:
    """They name the same run as if typed, and give way to what is typed."""
    typed = ("optim.momentum=0", "optim.lr=1e-3", "optim.weight_decay=0")
    assert experiment("algo=demo").name == experiment("algo=demo", *typed).name
    assert experiment("algo=d_squared", "optim.momentum=0.5").run.optim.momentum == 0.5
    assert experiment("algo=demo", "optim.lr=0.2", "~optim.lr").run.optim.lr == 1e-3
    adam, same = (experiment(f"algo={algo}", "optim=adam") for algo in ("d_squared", "d_psgd"))
    assert adam.run.optim == same.run.optim
    assert experiment("algo=hybrid", "algo.then=gradient_tracking").run.optim.momentum == 0.9


def test_a_key_belongs_to_a_group() -> None:
    assert (
        group_of("algo")
        == group_of("algo.first")
        == group_of("algo.then")
        == group_of("algo.base.first")
        == "algo"
    )
    assert group_of("algo.base") == group_of("algo.then.base") == "base"
    assert {key: group_of(key) for key in NESTED.values()} == {
        key: group for group, key in NESTED.items()
    }
    assert [group_of(key) for key in ("topology", "base", "nodes", "algo.tau", "optim.lr")] == [
        None
    ] * 5


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


@pytest.fixture(scope="module")
def algorithms_composed_at_once() -> None:
    prepare_algorithms(["logger=jsonl"], [[f"algo={algo}"] for algo in groups()["algo"]])


@pytest.mark.usefixtures("algorithms_composed_at_once")
@pytest.mark.parametrize("algo", groups()["algo"])
def test_every_algorithm_can_be_chosen(algo: str) -> None:
    title = experiment(f"algo={algo}").run.algo.title
    assert title == TITLES.get(algo, title)  # a new one needs no entry here


@pytest.mark.parametrize("model", groups()["model"])
def test_every_model_brings_data_that_it_reads(model: str) -> None:
    found = experiment(f"model={model}", *(["model.path=gpt2"] if model == "hf" else []))
    name = found.config["model"]["name"]  # type: ignore[index]
    assert model == name or (model.startswith(("gpt_", "gpt2")) and name == "gpt")
    assert found.run.data.name == found.run.model.default_data


OTHERS = [
    "algo.topology",
    "optim.schedule",
    "cluster.compute_time",
    "optim",
    "cluster",
    "faults",
    "data",
]
OF_ANY_LENGTH = ("text", "folder", "python_text", "hf", "gutenberg", "help_en_de")
ROUNDS = list(zip_longest(*(groups()[group_of(key) or ""] for key in OTHERS)))


@pytest.mark.parametrize(
    "choices", ROUNDS, ids=["-".join(filter(None, choices)) for choices in ROUNDS]
)
def test_every_other_choice_can_be_made(choices: tuple[str | None, ...], tmp_path: Path) -> None:
    overrides = [f"{key}={choice}" for key, choice in zip(OTHERS, choices, strict=True) if choice]
    if "algo.topology=edges" in overrides:
        (tmp_path / "graph.txt").write_text("\n".join(f"{i} {(i + 1) % 8}" for i in range(8)))
        overrides.append(f"algo.topology.path={tmp_path}/graph.txt")
    if "data=hf" in overrides:
        overrides += ["data.path=hf", "data.tokenizer=gpt2"]
    if "faults=trace" in overrides:
        (tmp_path / "trace.csv").write_text("".join(f"0,add,node{i}\n" for i in range(8)))
        overrides.append(f"faults.trace={tmp_path}/trace.csv")
    if {"data=text", "data=folder"} & {*overrides}:
        overrides.append(f"data.path={tmp_path}")
    if {f"data={name}" for name in OF_ANY_LENGTH} & {*overrides}:
        overrides.append("faults.events=[]")  # events need an epoch of known length
    nodes = {"cluster=aws_10_regions": 10, "cluster=halos_4_regions": 16}
    overrides += [f"nodes={number}" for word, number in nodes.items() if word in overrides]
    made = experiment("model=timing_only", *overrides)
    data = choices[OTHERS.index("data")]
    assert data is None or data.startswith(made.run.data.name)


@pytest.mark.parametrize("network", groups()["network"])
def test_every_network_can_be_chosen(network: str) -> None:
    assert experiment(f"network={network}").run.network.name == network


def test_choices_inside_choices() -> None:
    run = experiment(
        "algo=slowmo",
        "algo.base=osgp",
        "algo.base.topology=exponential",
        "algo.base.topology.peers={0:2,30:1}",
        "algo.base.tau=3",
    ).run
    assert str(run.algo) == str(
        experiment(
            "algo=slowmo",
            "base@algo.base=osgp",
            "++algo.base.tau=3",
            "algo.base.topology.peers={0: 2, 30: 1}",
        ).run.algo
    )
    assert "OSGP(topology=DirectedExponential(peers={0: 2, 30: 1}), tau=3" in str(run.algo)
    over_local = experiment("algo=slowmo", "algo.base=local_sgd").run.algo
    assert "LocalSGD(tau=None)" in str(over_local) and getattr(over_local, "period") == 12  # noqa: B009
    assert getattr(experiment("algo=slowmo", "algo.base=osgp").run.algo, "period") == 48  # noqa: B009
    hybrid = experiment(
        "algo=hybrid", "algo.first=local_sgd", "algo.then=d_psgd", "algo.then.topology=torus"
    ).run.algo
    assert hybrid.title == "Local SGD, then D-PSGD" and "Torus()" in str(hybrid)


def test_mappings_are_set_by_name_or_as_a_whole() -> None:
    by_name = experiment(
        "cluster.compute.node_factors.3=2", "+cluster.step_seconds.mlp=0.1", "model=mlp"
    ).run.cluster
    as_a_whole = experiment(
        "cluster.compute.node_factors={3: 2}", "cluster.step_seconds={mlp: 0.1}", "model=mlp"
    ).run.cluster
    assert by_name.compute.node_factors == as_a_whole.compute.node_factors == {3: 2.0}
    assert by_name.compute.mean_step("mlp", 32) == 0.1
    assert "default" in by_name.compute.step_seconds
    assert as_a_whole.compute.step_seconds == {"mlp": 0.1}


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
    assert parse([typed])[0].line == word


@pytest.mark.parametrize(
    ("overrides", "slow_nodes"),
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
def test_a_mapping_on_the_command_line_replaces_that_of_a_preset(
    overrides: list[str], slow_nodes: dict[int, float]
) -> None:
    assert experiment("faults=slow_node", *overrides).run.faults.slow_nodes == slow_nodes


def test_mappings_replace_each_other_wherever_they_are() -> None:
    run = experiment(
        "cluster=sgp_ethernet",
        "cluster.step_seconds={resnet8: 0.1}",
        "algo.topology.peers={0: 2, 5: 1}",
    ).run
    assert run.cluster.compute.step_seconds == {"resnet8": 0.1}
    deep = experiment(
        "algo=slowmo",
        "algo.base.topology.peers={0: 2, 5: 1}",
        "algo.base={topology: {peers: {0: 1}}}",
    ).run.algo
    assert isinstance(deep, SlowMo) and deep.base == SGP(DirectedExponential(peers={0: 1}))


def test_a_part_keeps_the_settings_that_a_mapping_does_not_name() -> None:
    run = experiment(
        "checkpoint={every_steps: 5}",
        "cluster.compute_time=log_normal",
        "cluster.compute_time={cv: 0.3}",
    ).run
    assert (run.checkpoint.every_steps, run.checkpoint.keep, run.cluster.compute_time) == (
        5,
        2,
        LogNormalTime(0.3),
    )
    other = "cluster.compute_time={name: gamma, shape: 4}"
    assert experiment(
        "cluster.compute_time=log_normal", other
    ).run.cluster.compute_time == GammaTime(4.0)


def test_what_is_printed_of_a_configuration_has_whole_mappings_too(
    capfd: pytest.CaptureFixture[str],
) -> None:
    GlobalHydra.instance().clear()
    assert (
        main(
            [
                "faults=slow_node",
                "faults.slow_nodes={3: 10}",
                "--cfg",
                "job",
                "--package",
                "faults.slow_nodes",
            ]
        )
        == 0
    )
    assert capfd.readouterr().out == "# @package faults.slow_nodes\n3: 10\n"


def test_hydras_own_mappings_are_left_to_hydra() -> None:
    tree = compose_all(parse(["++hydra.job.env_set={A: b}"]), hydra_too=True)
    assert tree.hydra.job.env_set == {"A": "b"}


def test_runs_with_the_same_choices_are_composed_once() -> None:
    composed_once.cache_clear()
    overrides = ["algo=osgp", "faults=slow_node", "faults.slow_nodes={3: 10},{1: 2}", "seed=1,2"]
    runs = [job.experiment.run for job in plan(parse(overrides)).jobs]
    assert [(run.faults.slow_nodes, run.seed) for run in runs] == [
        *(({3: 10.0}, 1), ({3: 10.0}, 2), ({1: 2.0}, 1), ({1: 2.0}, 2))
    ]
    assert experiment("algo=osgp", "faults=slow_node").run.faults.slow_nodes == {0: 4.0}
    assert composed_once.cache_info().misses == 2  # the last one has a logger


def test_a_sweep_over_mappings_replaces_them_in_each_run() -> None:
    slow = ["faults=slow_node", "faults.slow_nodes={3: 10},{1: 2}"]
    jobs = plan(parse([*slow, "model=timing_only", "logger=jsonl"])).jobs
    assert [job.experiment.run.faults.slow_nodes for job in jobs] == [{3: 10.0}, {1: 2.0}]


def test_units_are_converted_and_name_the_same_run() -> None:
    bare = experiment(
        "cluster.bandwidth=1e8",
        "cluster.latency_seconds=50e-6",
        "cluster.collectives.bucket_bytes=25000000",
        "cluster.step_seconds.default=0.0125",
        "checkpoint.every_minutes=0.25",
        "faults.events=[{what: pause, ranks: [1], start: 10, end: 120}]",
    )
    written = experiment(
        "cluster.bandwidth=100Mbit/s",
        "cluster.latency_seconds=50us",
        "cluster.collectives.bucket_bytes=25MB",
        "cluster.step_seconds.default=12.5ms",
        "checkpoint.every_minutes=15s",
        "faults.events=[{what: pause, ranks: [1], start: 10s, end: 2min}]",
    )
    assert bare.config == written.config and bare.name == written.name
    assert written.run.cluster.links.latency_seconds == 50e-6


@pytest.mark.parametrize(
    ("overrides", "optim"),
    [
        (["algo=onebit_adam"], "adam"),
        (["algo=accum_adam", "optim.lr=0.01", "optim.schedule=cosine"], "adam"),
        (["algo=onebit_adam", "optim=sgd"], "sgd"),
        (["algo=onebit_adam", "optim=adamw"], "adamw"),
        (["algo=onebit_adam", "model=gpt"], "adamw"),
        (["algo=onebit_adam", "experiment=compare"], "sgd"),
        (["algo=sgp"], "sgd"),
    ],
)
def test_an_algorithm_chooses_the_optimizer_that_it_needs_if_nothing_else_does(
    overrides: list[str], optim: str
) -> None:
    tree: dict[str, Any] = compose(parse(overrides))
    assert tree["optim"]["name"] == optim


@pytest.mark.parametrize(
    ("word", "key", "meant"),
    [
        ("cluster.bandwidth=10", "cluster.links.bandwidth", "10Gbit/s? Otherwise write 10bit/s"),
        ("cluster.links.bandwidth=[1,2]", "cluster.links.bandwidth[0]", "1Gbit/s"),
        (
            "+cluster.links.node_bandwidth_up={3:20}",
            "cluster.links.node_bandwidth_up.3",
            "20Gbit/s",
        ),
        (
            "cluster.latency_seconds=30",
            "cluster.links.latency_seconds",
            "30ms? Otherwise write 30s",
        ),
        ("network=gloo network.bandwidth=10", "network.bandwidth", "10Gbit/s"),
        ("network=gloo network.latency_seconds=5", "network.latency_seconds", "5ms"),
        ("faults=delay faults.delay_seconds=20", "faults.delay_seconds", "20ms"),
    ],
)
def test_an_unlikely_number_without_a_unit_is_refused(word: str, key: str, meant: str) -> None:
    error = refusal(compose, parse([*word.split(), "logger=jsonl"]))
    assert error.key == key and f"did you mean {meant}" in error.sentence


def test_an_unlikely_number_with_a_unit_is_accepted_and_loaded_again(tmp_path: Path) -> None:
    made = experiment("cluster.bandwidth=10bit/s", "cluster.latency_seconds=30s")
    assert (made.run.cluster.links.rate, made.run.cluster.links.latency_seconds) == (10.0, 30.0)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(stored(made)), encoding="utf-8")
    assert load_experiment(path, None).digest == made.digest

"""A mistyped name is refused, whichever setting it is in."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
from test_schema import CONFIGURED

from sgp_runner.cli.main import main
from sgp_runner.config.check import annotation, check, kind_of
from sgp_runner.config.choices import NESTED, groups
from sgp_runner.config.schema import fields_of
from sgp_runner.utils.errors import ConfigError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TYPED = "mistyped"
SMALL = ["nodes=2", "logger=none", "epochs=0.01"]
# Texts that name nothing that exists before: what a user calls things, and places for them.
FREE = {
    "Run.name",
    "Run.results",
    "Cluster.name",
    "Mlflow.uri",
    "Mlflow.experiment",
    "Wandb.project",
    "Wandb.entity",
    "Wandb.group",
    "Edges.sha256",  # compared with the file
    "Faults.trace_sha256",
    "Gutenberg.sha256",
    "HelpEnDe.sha256",
    "IdxImages.sha256",
    "HubModel.sha256",
    "HubText.sha256",
}
# Settings of any text or of ranks -> words with a mistyped name, and the key of the refusal.
NAMES = {
    "Run.row": ("row=sgp_sgp_9O", "row"),
    "Run.trace_steps": ("trace_steps=3-x", "trace_steps"),
    "TimedAs.model": ("timed_as.model=llama_10B model=timing_only", "timed_as.model"),
    "StepTimes.step_seconds": (
        "cluster.compute.step_seconds.resnt50=1 model=timing_only",
        "cluster.compute.step_seconds.resnt50",
    ),
    "StepTimes.step_batch": (
        "cluster.compute.step_batch={mpl:8}",
        "cluster.compute.step_batch.mpl",
    ),
    "CodingTimes.encode_seconds": (
        "cluster.codecs.encode_seconds.int9=1ns",
        "cluster.codecs.encode_seconds.int9",
    ),
    "CodingTimes.decode_seconds": (
        "cluster.codecs.decode_seconds={topk:1ns}",
        "cluster.codecs.decode_seconds.topk",
    ),
    "Validated.fitted_on": (
        "cluster.validated.fitted_on=[sgp_sgp_9O]",
        "cluster.validated.fitted_on",
    ),
    "StepTimes.node_factors": (
        "cluster.compute.node_factors.2=2",
        "cluster.compute.node_factors.2",
    ),
    "Links.node_bandwidth_up": (
        "cluster.links.node_bandwidth_up.2=1e9",
        "cluster.links.node_bandwidth_up.2",
    ),
    "Links.node_bandwidth_down": (
        "cluster.links.node_bandwidth_down.2=1e9",
        "cluster.links.node_bandwidth_down.2",
    ),
    "Faults.slow_nodes": ("faults.slow_nodes.2=2", "faults.slow_nodes.2"),
    "Faults.slow_links": ("faults.slow_links.2=2", "faults.slow_links.2"),
    "Sim.device": ("network.device=cuda:x", "network.device"),
    "Gloo.device": ("network=gloo network.device=gpu", "network.device"),
    "Wandb.mode": ("logger=wandb logger.mode=ofline", "logger.mode"),
    "Torchvision.arch": ("model=torchvision model.arch=mobilenet_v3_smal", "model.arch"),
    "HubModel.path": ("model=hf:./nowhere", "model.path"),
    "HubText.path": ("model=hf:gpt2 data=hf:./nowhere", "data.path"),
    "HubText.tokenizer": ("model=gpt data=hf:org/text data.tokenizer=./nowhere", "data.tokenizer"),
    "Text.path": ("data=text model=gpt_small data.path=nowhere", "data.path"),
    "Faults.trace": ("faults=trace faults.trace=nowhere", "faults.trace"),
    "Edges.path": ("algo=sgp algo.topology=edges algo.topology.path=nowhere", "algo.topology.path"),
    "Cifar.root": ("data=cifar10 data.root=nowhere", "data.root"),
    "IdxImages.root": ("data=mnist data.root=nowhere", "data.path"),
    "IdxImages.path": ("data=mnist data.path=nowhere", "data.path"),
    "Gutenberg.root": ("data=gutenberg model=gpt data.root=nowhere", "data.path"),
    "Gutenberg.path": ("data=gutenberg model=gpt data.path=nowhere", "data.path"),
    "HelpEnDe.root": ("data=help_en_de model=transformer data.root=nowhere", "data.path"),
    "HelpEnDe.path": ("data=help_en_de model=transformer data.path=nowhere", "data.path"),
    "Folder.path": ("data=folder data.path=nowhere model=resnet18", "data.path"),
    "ImageNet.root": ("data=imagenet data.root=nowhere model=resnet18", "data.root"),
    "WMT16EnDe.root": ("data=wmt16_en_de data.root=nowhere model=fairseq_transformer", "data.root"),
}
# These need fairseq; tests/models/test_fairseq.py mistypes them.
OF_FAIRSEQ = {"FairseqTransformer.arch", "FairseqTransformer.overrides"}
# These need a data set; tests/data/test_hub_text.py mistypes them.
OF_HUB = {f"HubText.{name}" for name in ("subset", "split", "valid_split", "text_key")}
# From an epoch on.
OF_EPOCHS = {"DirectedExponential.peers"}


def settings() -> Iterator[tuple[str, Any]]:
    for cls in CONFIGURED:
        for name, field in fields_of(cls, "").items():
            yield f"{cls.__name__}.{name}", annotation(cls, field)


def within(hint: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield a type and those that it is made of."""
    kind, arms = kind_of(hint)
    yield kind, arms
    for arm in arms if kind is not Literal else ():
        if isinstance(arm, type) or typing.get_origin(arm):
            yield from within(arm)


CHOSEN = {
    name: hint for name, hint in settings() if any(kind is Literal for kind, _ in within(hint))
}


@pytest.mark.parametrize("setting", sorted(CHOSEN))
def test_one_of_several_words(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: '{TYPED}' is "):
        check(TYPED, CHOSEN[setting], setting, {})


def test_every_setting_that_may_name_something_is_mistyped_here() -> None:
    assert {
        name
        for name, hint in settings()
        if any(kind is str or (kind is Mapping and arms[0] is int) for kind, arms in within(hint))
    } - set(CHOSEN) == {*NAMES, *FREE, *OF_FAIRSEQ, *OF_HUB, *OF_EPOCHS}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return error


@pytest.mark.parametrize("setting", sorted(NAMES))
def test_a_name_among_any_text(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, key = NAMES[setting]
    assert refused(arguments.split(), capsys).startswith(f"sgp-run: {key}: ")


@pytest.mark.parametrize("group", groups())
def test_a_choice(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = NESTED.get(group, group)
    around = {"algo.base": ["algo=slowmo"], "algo.codec": ["algo=choco_sgd"]}.get(key, [])
    said = refused([*around, f"{key}={TYPED}"], capsys)
    assert said.startswith(f"sgp-run: {key}: '{TYPED}' is not one of ")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("algo=./mistyped.py", "algo"),
        ("cluster=./mistyped.yaml", "cluster"),
        ("--plugin=mistyped", "--plugin"),
        ("algo.name=mistyped", "algo"),
        ("algo=hybrid algo.first=mistyped", "algo.first"),
        ("algo=hybrid algo.then=mistyped", "algo.then"),
        ("algo=slowmo algo.sgq.topology=ring", "algo.sgq"),
        ("faults.events=[{what:slow_nod,ranks:[0],factor:2}]", "faults.events[0].what"),
        ("faults.events=[{what:pause,ranks:[2],end:1}]", "faults.events[0].ranks"),
        ("-m algo=sgp,spg", "algo"),
        ("hydra/launcher=mistyped", "hydra/launcher"),
    ],
)
def test_a_name_elsewhere(arguments: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(arguments.split(), capsys).startswith(f"sgp-run: {key}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "timed_as.model=llama_10B",
            "model: there is no model 'llama_10B'. Did you mean 'llama_10b'? Your own model needs "
            "a time, for example cluster.compute.step_seconds.llama_10B=1s.",
        ),
        (
            "timed_as.model=my_7b cluster.step_seconds.my_7b=3.48",
            "num_parameters: the number of parameters of my_7b is not known: set it, for example "
            "timed_as.num_parameters=7e9.",
        ),
        (
            "timed_as.model=mlp",
            "num_parameters: the number of parameters of mlp is not known: set it, for example "
            "timed_as.num_parameters=7e9.",
        ),
    ],
)
def test_a_model_that_is_timed_is_known_with_its_size(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(["model=timing_only", *arguments.split()], capsys) == (
        f"sgp-run: timed_as.{sentence}\n"
    )

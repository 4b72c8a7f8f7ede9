"""Choices with a path, wherever a choice is named: ``model=hf:gpt2``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgp_runner.api.arguments import overrides_of
from sgp_runner.cli.main import main
from sgp_runner.cli.sweep import combinations
from sgp_runner.config.command_line import parse, search_in
from sgp_runner.config.overrides import compose, configs, experiment_of


def node(part: str, *overrides: str) -> tuple[object, object]:
    """Return the name and the path of a part of a composed run."""
    with configs():
        tree = compose(parse(overrides))
    for key in part.split("."):
        tree = tree[key]  # type: ignore[assignment]
    return tree["name"], tree["path"]


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("hf:gpt2", "gpt2"),
        ("hf:roneneldan/TinyStories-1M", "roneneldan/TinyStories-1M"),
        ("hf:meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("hf:./folder", "./folder"),
        ("hf:../folder", "../folder"),
        ("hf:/data/my_model.v2", "/data/my_model.v2"),
        ("'hf:./my folder, new'", "./my folder, new"),
        ("hf:1", "1"),
    ],
)
def test_a_path_is_typed_after_the_choice(typed: str, path: str) -> None:
    assert node("model", f"model={typed}") == ("hf", path)
    assert node("data", "model=hf:gpt2", f"data={typed}") == ("hf", path)


def test_the_choice_brings_its_file_and_later_settings_win() -> None:
    with configs():
        tree = compose(parse(["model=hf:gpt2", "model.pretrained=false", "model.path=other"]))
    assert tree["model"] == {"name": "hf", "path": "other", "pretrained": False, "sha256": None}
    assert (tree["optim"]["name"], tree["data"]["name"]) == ("adamw", "grammar")  # type: ignore[index]


def test_any_choice_with_a_path_has_it() -> None:
    assert node("data", "model=gpt", "data=text:book.txt") == ("text", "book.txt")
    edges = "algo.topology=edges:graphs/ring.txt"
    assert node("algo.topology", "algo=sgp", edges) == ("edges", "graphs/ring.txt")


def test_a_sweep_has_several_paths() -> None:
    with configs():
        settings = parse(["model=hf:gpt2,gpt,hf:./folder", "seed=1,2", "data=hf:a/b"])
        jobs = [compose(parse(overrides))["model"] for overrides in combinations(settings)]
    assert [model.get("path", model["name"]) for model in jobs] == [  # type: ignore[union-attr, index]
        *("gpt2", "gpt2", "gpt", "gpt", "./folder", "./folder"),
    ]


def test_from_python() -> None:
    assert list(overrides_of("model", "hf:./my folder")) == ["model='hf:./my folder'"]
    assert [node("model", *overrides_of("model", value))[1] for value in ("hf:gpt2", "hf:a/b")] == [
        "gpt2",
        "a/b",
    ]


def test_a_file_chooses_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: hf:org/tiny\n"
        "  - override /data: hf:./texts\n\nmodel:\n  pretrained: false\n"
    )
    arguments = ("experiment=mine", search_in(str(tmp_path)))
    assert node("model", *arguments) == ("hf", "org/tiny")
    assert node("data", *arguments) == ("hf", "./texts")


def test_the_name_is_part_of_a_runs_identity() -> None:
    one, other = (experiment_of([f"model=hf:{name}"]) for name in ("gpt2", "org/tiny"))
    assert one.digest != other.digest and one.run.model.name == "gpt2"
    assert other.name.startswith("sgp-org_tiny-grammar-n8-sim-s1-")
    assert one.digest == experiment_of(["model=hf", "model.path=gpt2"]).digest


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            "algo=heloco",
            "algo: 'heloco' was removed after version 0.2: its only source was a summary",
        ),
        (
            "algo=slowmo algo.base=sign_vote",
            "algo.base: 'sign_vote' was removed after version 0.2: use algo=ef_sign, which has",
        ),
        (
            "algo=choco_sgd algo.codec=random_k",
            "algo.codec: 'random_k' was removed after version 0.2: use top_k, which sends the",
        ),
        (
            "cluster=dgx_v100_100g",
            "cluster: 'dgx_v100_100g' was removed after version 0.2: use infiniband_100g, which ",
        ),
        (
            "faults=reorder",
            "faults: 'reorder' was removed after version 0.2: use the equivalent faults=delay "
            "faults.delay_law=uniform.",
        ),
        ("model=hg:gpt2", "model: 'hg:gpt2' is not one of conv, fairseq_transformer, "),
        ("model=mlp:x", "model: 'mlp:x' is not one of conv, fairseq_transformer, "),
        ("network=gloo:x", "network: 'gloo:x' is not one of gloo, mpi, nccl, sim."),
        ("cluster=ideal:x", "cluster: 'ideal:x' is not one of "),
        ("model=hf", "model.path: name a model or a folder: model=hf:gpt2, or model=hf:./folder."),
        ("model=hf:", "model.path: name a model or a folder: model=hf:gpt2, or model=hf:./folder."),
    ],
)
def test_other_names_are_refused(
    overrides: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes=2", "logger=none", *overrides.split()]) == 2
    assert capfd.readouterr().err.startswith(f"sgp-run: {error}")


def test_help_explains_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=hf:gpt2", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("model=hf:gpt2\n  A Hugging Face model, by name or from a folder:")
    assert "\n  model.path=gpt2 " in text and "\n  optim.lr=0.0003\n" in text

"""``--help``, ``--cfg``, ``--version``, completion and the options of Hydra."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sgp_runner import __version__
from sgp_runner.cli.completion import candidates
from sgp_runner.cli.main import main
from sgp_runner.config.choices import CONFIGS, NESTED, groups
from sgp_runner.config.overrides import compose, configs
from sgp_runner.config.schema import keys_of


def test_heavy_packages_wait_until_a_run_starts() -> None:
    code = """
import sys
from sgp_runner.cli.main import main
assert main(["--help"]) == 0 and main(["--version"]) == 0 and main(["plan", "--help"]) == 0
heavy = {"torch", "torchvision", "wandb", "sklearn", "rich", "numpy", "transformers", "datasets"}
assert not (heavy | {"hydra", "omegaconf", "yaml"}) & set(sys.modules)
for name in ("check", "study", "new", "download"):
    assert main([name, "--help"]) == 0
assert main(["exprot", "results/runs/mine"]) == 2
from sgp_runner.cli.completion import candidates
for words in (
    "nodez=4",
    "algo=sgpp",
    "nodes=abc",
    "model=hf:gpt2 data=hf:org/text nodes=abc",
    "algo=ad_psgd algo.topology=ring nodes=3",
    "--cfg job -p algo",
    "-m nodes=4,x",
    "model=mlp network=mpi",
):
    assert main(words.split()) in (0, 2)
assert not heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_lists_every_choice_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes=2", "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    sections = {
        found[1]: found[2].split()
        for found in re.finditer(r"^  ([\w.]+)= +((?:.+\n)(?: {25}.+\n)*)", text, re.MULTILINE)
    }
    for group, choices in groups().items():
        assert set(sections[NESTED.get(group, group)]) >= set(choices), group
    assert [sections[group][0] for group in ("algo", "model", "network", "logger")] == [
        "sgp",
        "resnet8",
        "sim",
        "wandb",
    ]
    assert "\n  nodes=8                number of optimisation workers;" in text
    assert "sgp-run experiment=compare " in text


@pytest.mark.parametrize("command", ["new", "download", "study"])
def test_the_help_of_small_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: sgp-run {command} ")
    assert max(map(len, out.splitlines())) <= 80 and "{" not in out.partition("keys")[0]


def test_a_misspelt_command_is_no_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exprot", "results/runs/mine"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: exprot: this is not a command. Did you mean 'export'?\n"
    )


def test_help_names_every_setting_of_a_run_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^  ([a-z_.]+)=\S", capsys.readouterr().out, re.MULTILINE)
    with configs():
        tree = compose([])
    parts = {"checkpoint", "timed_as", "pretrain"}
    run_keys = {
        key
        for key in keys_of(tree, "")
        if key.partition(".")[0] not in groups() and key not in parts
    }
    assert set(listed) == run_keys and {"checkpoint.keep", "timed_as.batch_size"} <= run_keys


def test_help_shows_the_defaults_of_the_default_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    keys = capsys.readouterr().out.partition("keys (with the defaults of model=resnet8;")[2]
    shown = dict(re.findall(r"^  ([a-z_.]+)=(\S+)", keys, re.MULTILINE))
    with configs():
        tree = compose([])
    for key, value in shown.items():
        node: object = tree
        for part in key.split("."):
            assert isinstance(node, dict)
            node = node[part]
        assert (value if isinstance(node, str) else yaml.safe_load(value)) == node, key
    assert (shown["epochs"], shown["batch_size"]) == ("10", "8")


EXPLAINED = """\
algo=slowmo
  SlowMo (Wang et al. 2020, Alg. 1): slow momentum over any synchronous
  algorithm.

settings (with their values in this run)
  algo.base=osgp         the fast algorithm; it drains its messages before each
                         slow step (one of ar_sgd d_psgd local_sgd osgp sgp)
"""


def test_help_explains_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algo=slowmo", "algo.base=osgp", "--help", "nodes=4", "algo.tau=7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(EXPLAINED)
    assert "\n  algo.tau=7             fast steps between slow steps; null: 12 over" in out
    assert "\n  algo.base.topology.peers=1\n" in out
    assert main(["algo.topology=edges", "-h"]) == 0
    out = capsys.readouterr().out
    assert (
        "\n  algo.topology.path=... path of the file, relative to the working directory of\n" in out
    )
    assert main(["model=resnet50", "experiment=ar_then_sgp", "--help"]) == 0
    out = capsys.readouterr().out
    assert "\n  optim.schedule=cosine\n  batch_size=8\n  epochs=12\n" in out
    assert "experiment=ar_then_sgp\n  Expect: the hybrid of Assran et al. 2019" in out
    assert "\n  algo=hybrid\n  model=resnet8\n  nodes=8\n" in out
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/empty.yaml").touch()
    assert main(["--config-dir", "own", "experiment=empty", "algo='sgp'", "--help"]) == 0
    assert capsys.readouterr().out.startswith("experiment=empty\n\nalgo=sgp\n  Stochastic ")
    assert main(["hydra.searchpath=[own]", "experiment=empty", "--help"]) == 0
    assert capsys.readouterr().out == "experiment=empty\n"
    assert main(["algo=slomo", "--help"]) == 2
    assert "Did you mean 'slowmo'?" in capsys.readouterr().err
    assert main(["algo=sgp,osgp", "--help"]) == 2
    assert capsys.readouterr().err == "sgp-run: algo: --help explains one choice at a time.\n"


@pytest.mark.parametrize("group", sorted(groups()))
def test_help_explains_choices_of_every_group(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = NESTED.get(group, group)
    outer = {"base": ["algo=slowmo"], "codec": ["algo=choco_sgd"]}.get(group, [])
    choices = groups()[group]
    for choice in {choices[0], choices[len(choices) // 2], choices[-1]}:
        assert main([*outer, f"{key}={choice}", "--help"]) == 0, choice
        assert f"{key}=" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["algo=slowmo", "--help"]])
def test_a_reader_that_has_enough_ends_no_command_with_an_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sgp_runner", *arguments]
    done = subprocess.run(command, check=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["calibrate", "doctor"])
def test_commands_that_measure_have_a_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: sgp-run {command} [KEY=VALUE ...]")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sgp-run {__version__}\n"


def test_hydra_answers_its_own_flags(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hydra leaves a log handler on this test's stdout, which later tests would find closed.
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    assert (
        main(["--cfg", "job", "-p", "algo", "algo=osgp", "algo.topology=ring", "algo.tau=3"]) == 0
    )
    out = capsys.readouterr().out
    assert "\n  name: ring\n" in out and re.search(
        r"^tau: 3 +# number of steps that a message may be late", out, re.MULTILINE
    )
    assert main(["--hydra-help"]) == 0
    assert "\nhydra/sweeper: basic\n" in capsys.readouterr().out
    assert main(["--info", "searchpath"]) == 0
    assert f"file://{CONFIGS} " in capsys.readouterr().out
    assert list(in_an_empty_folder.iterdir()) == []


def test_all_settings_are_printed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "algo=slowmo",
        "algo.base=osgp",
        "faults=slow_node",
        "cluster=sgp_ethernet",
        "nodes=${algo.base.tau}",
        "--cfg",
        "job",
    ]
    assert main(arguments) == 0
    described = capsys.readouterr().out
    assert main([*arguments, "--resolve"]) == 0
    plain = capsys.readouterr().out
    assert (
        yaml.safe_load(described) == {**yaml.safe_load(plain), "nodes": "${algo.base.tau}"}
        and yaml.safe_load(plain)["nodes"] == 1
    )
    assert "#" not in plain and max(map(len, described.splitlines())) <= 100
    lines = described.splitlines()
    assert lines[0] == (
        "nodes: ${algo.base.tau}         # number of optimisation workers; a parameter server is "
        "not counted"
    )
    assert (
        "    interval: 1                 # steps between sends; the paper's listing uses tau for "
        "both" in lines
    )
    above = next(i for i, line in enumerate(lines) if line.startswith("  slow_nodes:    "))
    assert "# {rank: factor}: gradients of the rank take factor times longer" in lines[above]
    assert lines[above + 2] == "    0: 4.0"
    unsaid = [line.split()[0] for line in lines if "#" not in line]
    below = {  # these are too long to have their text beside them
        "message_overhead_seconds:",
        "algorithm:",
        "host_seconds_per_byte:",
        "fitted_on:",
    }
    assert {*unsaid} == {"name:", "0:", "resnet50:"} | below


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--cfg=job", "-p", "nodes"], "8\n"),
        (
            ["--cfg", "job", "--package=checkpoint", "--resolve"],
            "# @package checkpoint\nevery_steps: null\nevery_minutes: 30\nkeep: 2\n",
        ),
        (["--cfg", "hydra", "-p", "hydra.job.chdir"], "False\n"),
        (
            ["--cfg", "all", "-p", "faults", "faults=drop"],
            "# @package faults\nslow_nodes: {}\nslow_links: {}\n",
        ),
    ],
)
def test_some_settings_are_printed(
    arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(printed)


def test_the_shell_completes_settings_that_only_have_a_default() -> None:
    line = "sgp-run algo=osgp algo.in"
    environment = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    command = [sys.executable, "-m", "sgp_runner", "-sc", "query=bash"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["algo.interval="]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "algo=s",
            [
                "algo=sgp",
                "algo=slowmo",
                "algo=sparseloco",
                "algo=streaming_diloco",
                "algo=swarm_sgd",
            ],
        ),
        ("-m algo=osgp,sl", ["algo=osgp,slowmo"]),
        ("alg", ["algo.", "algo="]),
        ("algo=sgp algo.", ["algo.topology.", "algo.topology="]),
        ("algo.topology=r", ["algo.topology=random_matching", "algo.topology=ring"]),
        ("algo.topology.", ["algo.topology.peers="]),
        (
            "algo=slowmo algo.base=osgp algo.base.t",
            ["algo.base.tau=", "algo.base.topology.", "algo.base.topology="],
        ),
        ("algo=nosuch algo.t", ["algo.topology.", "algo.topology="]),
        (
            "algo=slowmo algo.buffers=",
            [f"algo.buffers={choice}" for choice in ("auto", "average", "keep", "reset")],
        ),
        ("record=", ["record=false", "record=true"]),
        ("nodes=", ["nodes=8"]),
        ("checkpoint.every_steps=", ["checkpoint.every_steps=null"]),
        ("algo.nowhere.x=", []),
        ("--cgf job nodes=", ["nodes=8"]),
        ("checkpoint", ["checkpoint."]),
        ("cluster.l", ["cluster.latency_seconds=", "cluster.links."]),
        ("cluster.links.du", ["cluster.links.duplex="]),
        ("cluster.hosts.r", ["cluster.hosts.ranks_per_host="]),
        ("cluster.bandwidth=", ["cluster.bandwidth=10000000000.0"]),
        ("calibrate nod", ["nodes="]),
        ("check nod", ["nodes="]),
        (
            "plan site",
            ["site_bandwidth=", "site_latency=", "site_price_per_gb=", "site_window=", "sites="],
        ),
        ("plan nodes=4 methods=sgp,str", ["methods=sgp,streaming_diloco"]),
        ("plan model=gpt2_x", ["model=gpt2_xl"]),
        ("plan nodes=4 cluster=ideal cluster.links.du", ["cluster.links.duplex="]),
        ("plan quality=./ow", ["quality=./own"]),
        ("plan --h", ["--help", "--html"]),
        ("doctor traffic=z", ["traffic=zero3"]),
        ("doctor --", ["--measure"]),
        ("export results/runs/mine --", ["--to"]),
        ("export results/runs/mine --to t", ["trainer"]),
        ("export results/ru", []),
        ("experiment=goyal_8", ["experiment=goyal_8k", "experiment=goyal_8k_no_warmup"]),
        ("--config-dir own experiment=min", ["experiment=mine"]),
        ("results=./ow", ["results=./own"]),
        ("--c", ["--cfg", "--config-dir"]),
        ("-cd ow", []),
        ("_", []),
        ("hydra", []),
    ],
)
def test_completions_are_settings_and_no_internals(line: str, found: list[str]) -> None:
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/mine.yaml").write_text("# @package _global_\nnodes: 2\n")
    with configs():
        assert candidates(line) == found

from __future__ import annotations

import csv
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.processes import hear_interrupts

from sgp_runner import __version__
from sgp_runner.cli import jobs
from sgp_runner.cli.completion import candidates
from sgp_runner.cli.main import main
from sgp_runner.config.choices import CONFIGS, NESTED, groups
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment, stored
from sgp_runner.config.overrides import compose, configs
from sgp_runner.config.schema import keys_of
from sgp_runner.utils.signals import PROMISE

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=1",
    "logger=jsonl",
]
TOPOLOGY = ["algo.base.topology.", "algo.base.topology="]
BUFFERS = ["auto", "average", "keep", "reset"]
TOO_BIG = 10**15  # elements, more than any address space holds


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_directories(results: Path = Path("results")) -> list[Path]:
    return sorted((results / "runs").iterdir())


BAD: list[tuple[str, str, str]] = [
    # words, key, and a part of the sentence
    ("nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("+nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("~nodez", "nodez", "Did you mean 'nodes'?"),
    ("alog=sgp", "alog", "Did you mean 'algo'?"),
    ("lr=0.1", "lr", "Did you mean 'optim.lr'?"),
    ("optim.LR=0.1", "optim.LR", "Did you mean 'optim.lr'?"),
    ("algo=osgp algo.taux=3", "algo.taux", "Did you mean 'algo.tau'?"),
    ("algo=osgp tau=3", "tau", "Did you mean 'algo.tau'?"),
    (
        "algo=ar_sgd algo.topology=ring",
        "algo.topology",
        "there is no such setting; algo has average, codec.",
    ),
    ("algo.base=osgp", "algo.base", "there is no such setting; algo has topology."),
    ("topology=ring", "topology", "write algo.topology=..."),
    ("hydra.foo=1", "hydra.foo", "Hydra has no such setting."),
    ("algo=sgpp", "algo", "'sgpp' is none of ad_psgd, ar_sgd, async_diloco, "),
    ("algo=sgpp", "algo", "Did you mean 'sgp'?"),
    ("algo=", "algo", "'' is none of ad_psgd"),
    ("~algo", "algo", "nothing is chosen; use one of ad_psgd"),
    ("model=resnet5", "model", "Did you mean 'resnet50'?"),
    ("algo.topology=rng", "algo.topology", "Did you mean 'ring'?"),
    ("algo=slowmo algo.base=osgd", "algo.base", "Did you mean 'osgp'?"),
    ("optim.schedule=cosin", "optim.schedule", "Did you mean 'cosine'?"),
    ("cluster.compute_time=gama", "cluster.compute_time", "Did you mean 'gamma'?"),
    ("-m hydra/launcher=bsic", "hydra/launcher", "Did you mean 'basic'?"),
    *(
        (f"{words} seed=1,2 -m", key, "Hydra calls no class but a launcher and a sweeper")
        for words, key in [
            ("hydra.launcher._target_=os.system", "hydra.launcher._target_"),
            ("++hydra.launcher._target_=os.system", "hydra.launcher._target_"),
            ("hydra.launcher={_target_:os.system}", "hydra.launcher._target_"),
            ("hydra.sweeper={_target_:x.BasicSweeper}", "hydra.sweeper._target_"),
            ("+hydra.callbacks.a={_target_:os.system}", "hydra.callbacks.a._target_"),
        ]
    ),
    ("jobs=2", "jobs", "it is the number of runs of a sweep at a time; add -m."),
    ("-m jobs=0 seed=1,2", "jobs", "'0' is not a number of runs, such as jobs=2."),
    ("-m jobs=1,2 seed=1,2", "jobs", "'1,2' is not a number of runs, such as jobs=2."),
    ("algo.osgp.tau=1", "algo.osgp.tau", "it is a setting of algo=osgp, but this run has another"),
    (
        "-m algo=sgp,ar_sgd algo.osgp.tau=1",
        "algo.osgp.tau",
        "it is a setting of algo=osgp, but no run of this sweep has it.",
    ),
    (
        "-m algo=sgp,osgp algo.osgp.taux=1",
        "algo.taux",
        "Did you mean 'algo.tau'? (Job 2 of 2: algo=osgp)",
    ),
    ("hydra/launcher=slurm", "hydra/launcher", "it starts the runs of a sweep; add -m."),
    ("nodes=abc", "nodes", "'abc' is not a whole number."),
    ("nodes=2.5", "nodes", "2.5 is not a whole number."),
    ("nodes=true", "nodes", "true is not a whole number."),
    ("nodes=", "nodes", "'' is not a whole number."),
    ("nodes=null", "nodes", "write nodes=..."),
    ("nodes=???", "nodes", "write nodes=..."),
    ("nodes=0", "nodes", "0 must be at least 1."),
    ("epochs=nan", "epochs", "nan must be finite."),
    ("epochs=-1", "epochs", "must be positive"),
    ("optim.lr=fast", "optim.lr", "'fast' is not a number."),
    ("optim.lr=1ms", "optim.lr", "'1ms' is not a number."),
    (
        "cluster.bandwidth=1ms",
        "cluster.bandwidth",
        "'1ms' is not a number in bit/s (such as 100Mbit/s).",
    ),
    (
        "network=gloo network.latency_seconds=5MB",
        "network.latency_seconds",
        "'5MB' is not a number in seconds (such as 10s or 1ms).",
    ),
    (
        "cluster.bucket_bytes=0.5B",
        "cluster.bucket_bytes",
        "0.5 is not a whole number.",
    ),
    (
        "checkpoint.every_minutes=soon",
        "checkpoint.every_minutes",
        "'soon' is not a number in minutes (such as 30min) or null.",
    ),
    ("algo=SGP", "algo", "Did you mean 'sgp'?"),
    ("algo.topology=RING", "algo.topology", "Did you mean 'ring'?"),
    (
        "algo=gap_aware algo.penalty=gapp",
        "algo.penalty",
        "'gapp' is none of gap, staleness, none. Did you mean 'gap'?",
    ),
    (
        "algo.topology.peers={a:1}",
        "algo.topology.peers",
        "is not a whole number or a mapping such as {0: 2}.",
    ),
    (
        "algo=slowmo algo.base=osgp algo.base.tau=-1",
        "algo.base.tau",
        "must not be negative, but is -1.",
    ),
    (
        "algo=slowmo algo.base=gap_aware",
        "algo.base",
        "'gap_aware' is none of ar_sgd, d_psgd, local_sgd, osgp, sgp.",
    ),
    (
        "algo=ad_psgd algo.topology=ring nodes=3",
        "algo.topology",
        "in step 0 there is 0 -> 2; use bipartite, ring or such edges.",
    ),
    (
        "model=transformer data=digits",
        "data",
        "Use model=mlp or resnet18 or resnet20 or resnet50 or resnet8 or torchvision, or "
        "data=numbers_en_de.",
    ),
    ("data=wmt16_en_de", "data", "is fairseq_translation. Use model=fairseq_transformer."),
    ("data=numbers_en_de", "data", "is translation. Use model=transformer."),
    (
        "data=wmt16_en_de model=fairseq_transformer",
        "data.root",
        "get wmt16_en_de.tar.gz from https://drive.google.com/uc?export=download&id=",
    ),
    ("model=torchvision model.arch=vgg", "model.arch", "is no classifier of torchvision. Did you"),
    (
        "model=torchvision model.arch=alexnet data=digits",
        "model.arch",
        "alexnet cannot read images of 1 x 8 x 8 (",
    ),
    ("download", "download", "write sgp-run download cifar10|cifar100 [data.root=FOLDER]"),
    ("download cifar", "download", "'cifar' is not there. Did you mean 'cifar10'?"),
    ("data=grammar", "data", "is language. Use model=gpt"),
    *(
        (words, "optim.lr", "a sweep needs values that can be counted: write 0.1,0.2 or range")
        for words in ("optim.lr=interval(0.1,0.2)", "-m optim.lr=interval(0.1,0.2)")
    ),
    (
        "algo=d_psgd algo.topology=exponential",
        "algo.topology",
        "base, equi_dyn, hyper_hypercube, or edges with each edge in both directions.",
    ),
    ("+experiment=x", "experiment", "'x' is none of ar_then_sgp, "),
    ("name=../up", "name", "'../up' cannot name a folder"),
    ("checkpoint.every_steps=0", "checkpoint.every_steps", "0 must be at least 1 step, or null."),
    (
        "checkpoint.every_minutes=-1",
        "checkpoint.every_minutes",
        "-1.0 must be positive and finite, or null.",
    ),
    ("checkpoint.keep=0", "checkpoint.keep", "0 must be at least 1."),
    ("checkpoint.every=3", "checkpoint.every", "Did you mean 'checkpoint.every_steps'?"),
    ("faults.slow_nodes={99:2}", "faults.slow_nodes.99", "there is no such rank here; use 0 to 7."),
    (
        "algo=gap_aware faults.slow_nodes={8:2}",
        "faults.slow_nodes.8",
        "there is no such rank here; use 0 to 7.",
    ),
    (
        "cluster.node_factors={8:2}",
        "cluster.node_factors.8",
        "there is no such rank here; use 0 to 7.",
    ),
    (
        "optim.lr=${nodez}",
        "optim.lr",
        "it cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    (
        "optim.schedule={_target_:os.system}",
        "optim.schedule._target_",
        "there is no such setting; optim.schedule has milestones, ",
    ),
    ("nodes", "nodes", "write key=value, for example nodes=4."),
    ("nodes==3", "nodes", "cannot read 'nodes==3'; write key=value"),
    ("nodes=[1", "nodes", "cannot read 'nodes=[1'; write key=value"),
    ("=5", "=5", "the key is missing; write key=value"),
    ("nodes=4,8", "nodes", "add -m to run all of them."),
    ("--nodes=4", "--nodes", "there is no such option; settings are written key=value"),
    ("--cgf job", "--cgf", "Did you mean '--cfg'?"),
    ("--cfg job nodez=4", "nodez", "Did you mean 'nodes'?"),
    ("--cfg", "--cfg", "its value is missing, for example --cfg job."),
    ("-sc query=tcsh", "--shell-completion", "write -sc install=bash, zsh or fish."),
    ("-sc", "--shell-completion", "write -sc install=bash, zsh or fish."),
    ("--cfg jib", "--cfg", "'jib' is none of job, hydra, all."),
    ("--cfg job -p algo.nowhere", "--package", "there is nothing at 'algo.nowhere'."),
    (
        "--cfg job nodes=${nodez}",
        "nodes",
        "it cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    (
        "rehearsal=${nodez}",
        "rehearsal",
        "it cannot be resolved: Interpolation key 'nodez' not found.",
    ),
    ("rehearsal=???", "rehearsal", "it has no value; write rehearsal=..."),
    ("rehearsal=true", "rehearsal", "only presets that say how can be rehearsed;"),
    ("~algo.tau", "algo.tau", "there is no such setting; algo has topology."),
    ("--config-dir nowhere", "--config-dir", "there is no folder 'nowhere'."),
    ("-m nodes=4 algo=sgp,sgpp", "algo", "Did you mean 'sgp'?"),
    (
        "-m nodes=4,5 algo=d_psgd,ad_psgd algo.topology=ring",
        "algo.topology",
        "ring or such edges. (Job 4 of 4: nodes=5 algo=ad_psgd)",
    ),
    ("-m nodes=4,x", "nodes", "'x' is not a whole number. (Job 2 of 2: nodes=x)"),
    ("results=file/below", "results", "cannot write to file/below/runs/sgp-"),
    ("-m nodes=2,4 results=file/below", "results", "cannot write to file/below/sweeps/"),
    ("model=quadratic batch_size=9999", "batch_size", "The largest batch size that works is 512."),
]


@pytest.mark.parametrize(("words", "key", "part"), BAD, ids=[words for words, *_ in BAD])
def test_bad_settings_are_one_sentence_and_nothing_is_written(
    words: str, key: str, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(words.split()) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(rf"sgp-run: {re.escape(key)}: .+\n", error)
    assert part in error
    assert os.listdir() == ["file"]


def test_heavy_packages_wait_until_a_run_starts() -> None:
    code = """
import sys
from sgp_runner.cli.main import main
assert main(["--help"]) == 0 and main(["--version"]) == 0
heavy = {"torch", "torchvision", "wandb", "sklearn", "rich", "numpy"}
assert not (heavy | {"hydra", "omegaconf", "yaml"}) & set(sys.modules)
from sgp_runner.cli.completion import candidates
for words in (
    "nodez=4",
    "algo=sgpp",
    "nodes=abc",
    "algo=ad_psgd algo.topology=ring nodes=3",
    "--cfg job -p algo",
    "-m nodes=4,x",
):
    main(words.split())
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
    assert "\n  nodes=8                optimisation workers;" in text
    assert "sgp-run experiment=compare " in text


def test_help_names_every_setting_of_a_run_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^  ([a-z_.]+)=\S", capsys.readouterr().out, re.MULTILINE)
    with configs():
        tree = compose([])
    parts = {"checkpoint", "timed_as"}
    own = {
        key
        for key in keys_of(tree, "")
        if key.partition(".")[0] not in groups() and key not in parts
    }
    assert set(listed) == own and {"checkpoint.keep", "timed_as.batch_size"} <= own


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
  algo.base=osgp         the fast algorithm; it drains its messages whenever it
                         stops (one of ar_sgd d_psgd local_sgd osgp sgp)
"""


def test_help_explains_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algo=slowmo", "algo.base=osgp", "--help", "nodes=4", "algo.tau=7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(EXPLAINED)
    assert "\n  algo.tau=7             fast steps between slow ones; null is 12 over" in out
    assert "\n  algo.base.topology.peers=1\n" in out
    assert main(["algo.topology=edges", "-h"]) == 0
    out = capsys.readouterr().out
    assert "\n  algo.topology.path=... relative to where the command is started\n" in out
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
    for choice in groups()[group][:: 12 if group == "experiment" else 1]:
        assert main([*outer, f"{key}={choice}", "--help"]) == 0, choice
        assert f"{key}=" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["--cfg", "job"], ["algo=slowmo", "--help"]])
def test_a_reader_that_has_enough_ends_no_command_with_an_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sgp_runner", *words]
    done = subprocess.run(command, check=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_real_time_counts_from_the_start_of_the_command(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "STARTED", time.monotonic() - 1000)
    assert main([*TINY, f"network={network}"]) == 0
    (run,) = run_directories()
    assert 1000 < json.loads((run / "summary.json").read_text())["real_s"] < 1100


def test_a_warm_up_without_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    without = (
        "No warm-up: warmup_from=reference starts at the peak with a global batch of {}, not "
        "above optim.schedule.reference_batch={}.\n"
    )
    schedule = ["optim.schedule=steps", "optim.schedule.warmup_epochs=1", "batch_size=4"]
    for words, said in (
        ([], without.format(8, 256)),
        (["optim.schedule.reference_batch=8"], without.format(8, 8)),
        (["optim.schedule.reference_batch=7"], ""),
        (["optim.schedule.warmup_from=zero"], ""),
        (["optim.schedule.warmup_from=one_over_n"], ""),
        (["optim.schedule.warmup_epochs=0"], ""),
        (["optim.schedule=constant"], ""),
        (
            ["nodes=1", "optim.schedule.warmup_from=one_over_n"],
            "No warm-up: warmup_from=one_over_n starts at the peak with one node.\n",
        ),
    ):
        settings = [*schedule, *words] if "optim.schedule=constant" not in words else words
        assert main([*TINY, *settings]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said) and ("No warm-up" in out) == bool(said), words


def test_algorithms_whose_settings_do_nothing_in_so_short_a_run_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = "SlowMo makes 0 slow steps in 16: algo.tau={} is longer than the run.\n"
    base = ["algo=slowmo", "algo.base=local_sgd"]
    hybrid = "No algo.then: algo.switch_epoch=5 is not before the end, epochs=1.\n"
    for words, said in (
        (["algo=slowmo"], slow.format(48)),
        (["algo=slowmo", "algo.tau=17"], slow.format(17)),
        (["algo=slowmo", "algo.tau=16"], ""),
        (base, ""),
        (["algo=hybrid", "algo.first=ar_sgd", "algo.then=sgp"], hybrid),
        (["algo=hybrid", "algo.first=ar_sgd", "algo.then=sgp", "algo.switch_epoch=0.5"], ""),
    ):
        assert main([*TINY, "batch_size=2", "optim.schedule=constant", *words]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said) and ("algo." in out.splitlines()[0]) == bool(said), words


def test_a_simulated_node_has_the_devices_of_its_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*TINY, "gpus_per_node=8"]) == 0
    assert main([*TINY, "gpus_per_node=${cluster.devices_per_node}", "cluster=ideal"]) == 0
    capsys.readouterr()
    assert main([*TINY, "gpus_per_node=2"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: gpus_per_node: network=sim times whole nodes, which have "
        "cluster.devices_per_node=8 devices here: leave gpus_per_node out, or use network=gloo.\n"
    )


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
        r"^tau: 3 +# steps a message may be late", out, re.MULTILINE
    )
    assert main(["--info", "searchpath"]) == 0
    assert f"file://{CONFIGS} " in capsys.readouterr().out
    assert list(in_an_empty_folder.iterdir()) == []


def test_all_settings_are_printed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "algo=slowmo",
        "algo.base=osgp",
        "faults=slow_node",
        "cluster=sgp_ethernet",
        "nodes=${algo.base.tau}",
        "--cfg",
        "job",
    ]
    assert main(words) == 0
    described = capsys.readouterr().out
    assert main([*words, "--resolve"]) == 0
    plain = capsys.readouterr().out
    assert (
        yaml.safe_load(described) == {**yaml.safe_load(plain), "nodes": "${algo.base.tau}"}
        and yaml.safe_load(plain)["nodes"] == 1
    )
    assert "#" not in plain and max(map(len, described.splitlines())) <= 100
    lines = described.splitlines()
    assert (
        lines[0]
        == "nodes: ${algo.base.tau}         # optimisation workers; a parameter server is extra"
    )
    assert (
        "    interval: 1                 # steps between sends (the paper's listing ties it to tau)"
        in lines
    )
    above = lines.index(
        "  slow_nodes:                   # {rank: factor}: its gradients take longer, all the time"
    )
    assert lines[above + 1] == "    0: 4.0"
    unsaid = [line.split()[0] for line in lines if "#" not in line]
    below = {
        "host_seconds_per_byte:",
        "collective:",
        "fitted_on:",
    }  # these are too long to have their text beside them
    limits = {"nodes:", "bandwidth:", "least_bytes:", "most_bytes:"}  # said of validated
    assert {*unsaid} == {"name:", "0:", "resnet50:"} | limits | below


@pytest.mark.parametrize(
    ("words", "printed"),
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
    words: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
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
        ("algo=s", ["algo=sgp", "algo=slowmo", "algo=sparseloco", "algo=streaming_diloco"]),
        ("-m algo=osgp,sl", ["algo=osgp,slowmo"]),
        ("alg", ["algo.", "algo="]),
        ("algo=sgp algo.", ["algo.topology.", "algo.topology="]),
        ("algo.topology=r", ["algo.topology=random_matching", "algo.topology=ring"]),
        ("algo.topology.", ["algo.topology.peers="]),
        ("algo=slowmo algo.base=osgp algo.base.t", ["algo.base.tau=", *TOPOLOGY]),
        ("algo=nosuch algo.t", ["algo.topology.", "algo.topology="]),
        ("algo=slowmo algo.buffers=", [f"algo.buffers={each}" for each in BUFFERS]),
        ("record=", ["record=false", "record=true"]),
        ("nodes=", ["nodes=8"]),
        ("checkpoint", ["checkpoint."]),
        ("calibrate nod", ["nodes="]),
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


def test_a_run_writes_its_files_and_is_not_repeated(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path
) -> None:
    assert main(TINY) == 0
    first = capsys.readouterr().out
    (run,) = run_directories()
    assert sorted(path.name for path in run.iterdir()) == [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
    ]
    assert [path.name for path in in_an_empty_folder.iterdir()] == ["results"]
    assert re.fullmatch(r"sgp-quadratic-quadratic-n2-sim-s1-[0-9a-f]{8}", run.name)
    assert (
        f"results in results/runs/{run.name}\n" in first and "loss of the averaged model" in first
    )
    metrics = (run / "metrics.jsonl").read_text()
    assert json.loads(metrics.splitlines()[-1])["kind"] == "summary"

    assert main([*TINY, "epochs=1.0"]) == 0
    again = capsys.readouterr().out
    assert again.startswith("This run has finished already (resume=never repeats it).\n")
    assert again.splitlines()[2:] == first.splitlines()[first.splitlines().index("") + 1 :]
    assert (run / "metrics.jsonl").read_text() == metrics

    (run / "metrics.rank1.jsonl").write_text("from another attempt\n")
    assert main([*TINY, "resume=never"]) == 0
    assert run_directories() == [run] and not (run / "metrics.rank1.jsonl").exists()
    repeated = (run / "metrics.jsonl").read_text().splitlines()
    assert (
        repeated[:-1] == metrics.splitlines()[:-1]
    )  # the same bytes; the summary also has the real time
    assert len(repeated) == len(metrics.splitlines())


def test_an_unfinished_run_starts_over(tmp_path: Path) -> None:
    results = tmp_path / "some 'where' else"
    words = [*TINY, f'results="{results}"']
    assert main(words) == 0
    (run,) = run_directories(results)
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text("\n".join(metrics[:3]) + "\n")
    assert main(words) == 0
    assert (run / "metrics.jsonl").read_text().splitlines()[:-1] == metrics[:-1]
    assert not Path("results").exists()


def test_a_run_that_fails_is_one_sentence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TINY, "nodes=4", "faults.events=[{what: crash, ranks: [1], start: 0}]"]
    assert main(words) == 1
    error = capfd.readouterr().err
    assert re.match("sgp-run: deadlock: every worker is blocked", error)
    assert "Traceback" not in error
    monkeypatch.setenv("SGP_RUN_TRACEBACK", "1")
    assert main(words) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_presets_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("my presets") / "experiment"
    folder.mkdir(parents=True)
    lines = [
        "# @package _global_",
        "defaults:",
        "  - override /model: quadratic",
        "  - override /topology@algo.topology: ring",
    ]
    (folder / "tiny.yaml").write_text(
        "\n".join([*lines, "nodes: 3", "data: {samples: 48}", "epochs: 1", ""])
    )
    assert (
        main(["--config-dir", "my presets", "experiment=tiny", "logger=jsonl", "data.dimension=4"])
        == 0
    )
    assert "quadratic · 3 nodes" in capsys.readouterr().out
    (folder / "flat.yaml").write_text("algo: osgp\n")
    (folder / "nested.yaml").write_text("optim:\n  schedule: cosine\n")
    for name, key, line in (
        ("flat", "algo", "- override /algo: osgp"),
        ("nested", "optim.schedule", "- override /schedule@optim.schedule: cosine"),
    ):
        assert main(["--config-dir", "my presets", f"experiment={name}"]) == 2
        assert capsys.readouterr().err == (
            f"sgp-run: {key}: '{line.split()[-1]}' is a choice, which a file makes in its "
            f"defaults list, with a line '{line}' under 'defaults:'.\n"
        )
    assert main(["--config-dir", "my presets", "--help"]) == 0
    assert (
        "nested"
        in capsys.readouterr().out.partition("experiment=")[2].partition("chosen")[0].split()
    )
    assert main(["--config-dir=my presets", "experiment=tine"]) == 2
    assert (
        "experiment: 'tine' is none of" in (error := capsys.readouterr().err)
        and "Did you mean 'tiny'?" in error
    )


def test_a_folder_holds_one_run(
    in_an_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "name=mine"]) == 0
    config = in_an_empty_folder / "results/runs/mine/config.yaml"
    before = config.read_text()
    assert (
        main([*TINY, "name=mine", "checkpoint.keep=5", "logger=jsonl"]) == 0
    )  # these do not change the result
    capsys.readouterr()
    sentence = (
        "results/runs/mine holds a run with other settings: optim.lr is 0.1 there and 0.3 here; "
        "choose another name, or replace"
    )
    assert main([*TINY, "name=mine", "optim.lr=0.3"]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: name: {sentence}")
    assert config.read_text() == before
    assert main([*TINY, "name=mine", "optim.lr=0.3", "resume=never"]) == 0
    assert "lr: 0.3" in config.read_text()
    config.write_text("not: [a config")
    assert main([*TINY, "name=mine", "optim.lr=0.3"]) == 2
    assert "config.yaml cannot be read; choose another name" in capsys.readouterr().err


def test_a_sweep_survives_a_failure_and_repeats_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "algo=slowmo", "algo.base=local_sgd"]
    assert main([*words, "data.dimension=4", "optim.schedule=cosine"]) == 0
    (done,) = run_directories()
    before = {path.name: path.stat().st_mtime_ns for path in done.iterdir()}
    capfd.readouterr()

    assert (
        main(
            [
                *("-m", "jobs=1", *words),
                *(f"data.dimension=2,4,{TOO_BIG}", "optim.schedule=constant,cosine"),
            ]
        )
        == 1
    )
    out, error = capfd.readouterr()
    headings = [line for line in out.splitlines() if re.match(r"\[\d/6\] ", line)]
    assert headings[0] == "[1/6] data.dimension=2 optim.schedule=constant"
    assert (
        headings[-1] == f"[6/6] data.dimension={TOO_BIG} optim.schedule=cosine"
        and len(headings) == 6
    )
    assert out.count("This run has finished already") == 1
    assert {path.name: path.stat().st_mtime_ns for path in done.iterdir()} == before
    assert (
        len(re.findall("^error: data.dimension: the data set needs at least ", error, re.MULTILINE))
        == 2
        and "Traceback" not in error
    )
    assert "Launching" not in out + error
    table = out[out.index("Simulated time to") :]
    assert len(re.findall(r"^[12 ]  SlowMo\(Local SGD\)", table, re.MULTILINE)) == 4
    assert f"\ndata.dimension={TOO_BIG} optim.schedule=cosine failed: data.dimension: the" in table

    (directory,) = Path("results/sweeps").iterdir()
    with (directory / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == [heading.partition(" ")[2] for heading in headings]
    assert [bool(row["failed"]) for row in rows] == [False] * 4 + [True] * 2
    assert [row["algorithm"] for row in rows] == ["SlowMo(Local SGD)"] * 6
    assert all(float(row["average"]) > 0 for row in rows[:4])
    outside = [
        path
        for path in Path().rglob("*")
        if path.is_file() and not {"runs", "report"} & set(path.parts)
    ]
    assert outside == [directory / "comparison.csv"]
    assert f"report in {directory / 'report' / 'index.html'}\n" in out
    with (directory / "report" / "runs.csv").open() as file:
        assert sorted(row["state"] for row in csv.DictReader(file)) == ["finished"] * 4


def name_of(words: list[str]) -> str:
    with configs():
        return make_experiment(compose(parse(words))).name


def stored_config(words: list[str]) -> str:
    with configs():
        experiment = make_experiment(compose(parse(words)))
    return yaml.safe_dump(stored(experiment))


SAVED = (
    rf"\n{re.escape(PROMISE)}\nsgp-run: interrupted; saved in \S+/checkpoints/step-\d+\. "
    r"Run the same command again to resume\.\n"
)


def interrupt(*words: str) -> tuple[int, str, str]:
    """Start the command, press Ctrl-C when its run on four nodes has begun; exit code, stdout,
    stderr.
    """
    command = [sys.executable, "-m", "sgp_runner", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=hear_interrupts) as process:
        try:
            while process.poll() is None and not any(
                path.stat().st_size for path in Path("results").glob("runs/*-n4-*/metrics.jsonl")
            ):
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, error


def test_ctrl_c_ends_a_sweep_with_what_is_done() -> None:
    long = [*TINY, "epochs=100000", "logger=jsonl"]
    done = Path("results/runs") / name_of([*long, "nodes=2"])
    done.mkdir(parents=True)
    # The first job is done; the second takes hours.
    (done / "config.yaml").write_text(stored_config([*long, "nodes=2"]))
    summary = {
        **{"algorithm": "SGP", "model": "quadratic", "data": "quadratic", "network": "sim"},
        **{"nodes": 2, "seed": 1, "epochs": 1.0, "clock": "simulated", "label": "x"},
        **{"server": False, "time_s": 1.0},
    }
    (done / "summary.json").write_text(json.dumps(summary))
    (done / "metrics.jsonl").write_text(json.dumps({"kind": "summary", **summary}) + "\n")
    code, out, error = interrupt("-m", "jobs=1", *long, "nodes=2,4,8")
    assert code == 130 and re.fullmatch(SAVED, error)
    assert "[1/3] nodes=2\n" in out and "[2/3] nodes=4\n" in out and "[3/3]" not in out
    (table,) = Path("results/sweeps").glob("*/comparison.csv")
    assert (
        [row["job"] for row in csv.DictReader(table.open())] == ["nodes=2"]
        and f"\ncomparison in {table}" in out
        and "report in" not in out
    )


def test_ctrl_c_saves_a_run_and_ends_it_with_one_sentence() -> None:
    code, _, error = interrupt(*TINY, "nodes=4", "epochs=100000")
    (run,) = run_directories()
    assert code == 130 and re.fullmatch(SAVED, error)
    assert f"saved in {run}/checkpoints/step-" in error and not (run / "summary.json").exists()

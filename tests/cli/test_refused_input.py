"""Command lines that try to call code, to exhaust the machine or to break the grammar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.commands import run_command
from helpers.refusals import TINY, TOO_LONG, check_refused, refused

from sgp_runner.cli.main import main

LONG = "x" * 300
# The command line, the key of the error, and the beginning of its sentence.
SETTINGS: list[tuple[str, str, str]] = [
    (
        "logger._target_=os.system",
        "logger._target_",
        "there is no such setting; logger has project, entity, group, mode.",
    ),
    (
        "algo._target_=sgp_runner.config.run.Run",
        "algo._target_",
        "there is no such setting; algo has topology.",
    ),
    (
        "_target_=sgp_runner.cluster.faults.Faults",
        "_target_",
        "there is no such setting; a run has nodes, gpus_per_node,",
    ),
    ("+algo._args_=[1]", "algo._args_", "there is no such setting; algo has topology."),
    ("algo.name=os.system", "algo", "'os.system' is not one of a2cid2, acco, accum_adam, "),
    ("algo.name={a:1}", "algo", "{'a': 1} is not one of a2cid2, acco, accum_adam, "),
    ("algo.topology.name=sgp", "algo.topology", "'sgp' is not one of base, bipartite, "),
    (
        "algo.topology.name=edges",
        "algo.topology.path",
        "the value is missing; write algo.topology.path=...",
    ),
    (
        "model=quadratic data.dimension=1000000000",
        "data.dimension",
        "the data set needs at least 65.7 TB of memory (data.dimension=1000000000, "
        "data.samples=4096, data.groups=16), but this machine has ",
    ),
    (
        f"model=quadratic data.samples=1{19 * '0'}",
        "data.samples",
        "the data set needs at least 1.03e+07 PB of memory (data.dimension=64, "
        "data.samples=about 1e19, data.groups=16), but this machine has ",
    ),
    (f"log_every=1{20 * '0'}", "log_every", TOO_LONG),
    (f"log_every=1{5000 * '0'}", "log_every", TOO_LONG),
    (f"checkpoint.keep=-1{20 * '0'}", "checkpoint.keep", TOO_LONG),
    (
        f"cluster.collectives.bucket_bytes=1{8 * '0'}TB",
        "cluster.collectives.bucket_bytes",
        TOO_LONG,
    ),
    (f"network.vmap_width=1{20 * '0'}", "network.vmap_width", TOO_LONG),
    (f"optim.schedule.reference_batch=1{20 * '0'}", "optim.schedule.reference_batch", TOO_LONG),
    (
        "model=quadratic network=gloo nodes=2 data.dimension=100000000",
        "data.dimension",
        "the data set needs at least 6.57 TB of memory (data.dimension=100000000, ",
    ),
    (
        "model=resnet50 nodes=65536",
        "nodes",
        "resnet50, with 23,000,640 parameters or more, needs at least 12.1 TB of memory "
        "(nodes=65536), but this machine has ",
    ),
    (
        "model=mlp model.hidden=[1000000,1000000]",
        "model.hidden",
        "mlp, with 1,000,076,000,010 parameters or more, needs at least 68 TB of memory "
        "(model.hidden=1000000, nodes=8), but this machine has ",
    ),
    ("model=transformer model.encoder_layers=1000000000", "model.encoder_layers", "transformer, "),
    ("model=transformer model.width=100000000", "model.width", "transformer, with 240,000,204,800"),
    ("model=timing_only model.grain=1000000000000", "model.grain", "timing_only, with 1,000,000,"),
    ("data=shapes data.train_size=1000000000000", "data.train_size", "the data set needs at "),
    ("data=synthetic data.size=1000000000000000", "data.size", "the data set needs at least 8 PB"),
    ("data=synthetic data.num_classes=1000000000000", "data.num_classes", "resnet8, with 64,000"),
    ("model=mlp data=teacher data.width=100000000000", "data.width", "the data set needs at least"),
    ("epochs=1e308", "epochs", "1e+308 must be less than 1e+18."),
    ("model=timing_only epochs=1e308", "epochs", "1e+308 must be less than 1e+18."),
    (
        "timed_as.num_parameters=9223372036854775808",
        "timed_as.num_parameters",
        "9223372036854775808 must be less than 2**63.",
    ),
    (
        "cluster.latency_seconds=1e308s",
        "cluster.links.latency_seconds",
        "1e+308 is out of range: simulated time is not finite after 1e+308 s; use a smaller ",
    ),
    (
        "algo=ar_sgd cluster.latency_seconds=1e308s",
        "cluster.links.latency_seconds",
        "1e+308 is out of range: simulated time is not finite after ",
    ),
    ("faults.delay_seconds=1e308s", "faults.delay_seconds", "1e+308 is out of range: simulated"),
    (
        "faults.slow_nodes={0:1e200} faults.events=[{what:slow_node,ranks:[0],factor:1e200}]",
        "faults.slow_nodes.0",
        "1e+200 is out of range (with faults.events[0].factor=1e+200): simulated time is not ",
    ),
    (
        "cluster.bandwidth=1e-307bit/s",
        "cluster.links.bandwidth",
        "1e-307 is out of range: simulated time is",
    ),
    (
        "cluster.compute_time=log_normal cluster.compute_time.cv=1e200",
        "cluster.compute_time.cv",
        "1e+200 is too large: times would not be finite.",
    ),
    (
        "cluster.compute.heterogeneity=1e-200",
        "cluster.compute.heterogeneity",
        "1e-200 is too small: times would not be finite.",
    ),
    ("model.name=digits", "model", "'digits' is not one of conv, fairseq_transformer, "),
    ("optim.name=null", "optim", "no choice is selected; use one of adam, adamw, muon, sgd."),
    ("checkpoint.name=faults", "checkpoint.name", "there is no such setting. Did you mean 'name'?"),
    ("faults.name=none", "faults.name", "there is no such setting. Did you mean 'name'?"),
    (
        "optim.lr=${oc.env:NOWHERE}",
        "optim.lr",
        "the interpolation cannot be resolved: KeyError raised while resolving interpolation: ",
    ),
    ("optim.lr=${oc.decode:x}", "optim.lr", "'x' is not a number."),
    (
        "optim.lr=${optim.lr}",
        "optim.lr",
        "the interpolation cannot be resolved: Recursive interpolation detected.",
    ),
    ("+secret=1", "secret", "there is no such setting. Did you mean 'seed'?"),
    ("algo=ALGO", "algo", "'ALGO' is not one of "),
    ("algo=../../etc/passwd", "algo", "'../../etc/passwd' is not one of "),
    ("model=../config", "model", "'../config' is not one of "),
    ("experiment=nowhere", "experiment", "'nowhere' is not one of "),
    (
        "é=1",
        "é",
        "cannot read 'é=1'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    (
        "nodes=４",
        "nodes",
        "cannot read 'nodes=４'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("nodes=4 nodes=0", "nodes", "0 must be at least 1."),
    (
        "name=名前/x",
        "name",
        "cannot read 'name=名前/x'; write key=value, and quote special characters: \"key='a b'\".",
    ),
    ("--", "--", "there is no such option; settings are written key=value, for example nodes=4."),
    ("-x", "-x", "there is no such option; settings are written key=value, for example nodes=4."),
]


@pytest.mark.parametrize(
    ("overrides", "key", "sentence"), SETTINGS, ids=[overrides[:99] for overrides, *_ in SETTINGS]
)
def test_settings_that_cannot_work(
    overrides: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(overrides, key, sentence, capfd)


@pytest.mark.parametrize(
    ("word", "key", "sentence"),
    [
        (f"results={LONG}", "results", "File name too long."),
        (f"name={LONG}", "name", "use up to 100 letters"),
        (f"algo={LONG}", "algo", "is not one of a2cid2, acco"),
        (f"{LONG}=1", LONG, "there is no such setting"),
        ("results=/proc/nowhere", "results", "cannot write to /proc/nowhere/runs/"),
        ("results=file", "results", "cannot write to file/runs/"),
        ("results='名前\x00'", "results", "is not a valid folder name"),
    ],
    ids=lambda value: value[:20],
)
def test_names_of_folders_that_cannot_be(
    word: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    error = refused([word, "logger=jsonl"], capfd)
    assert error.startswith(f"sgp-run: {key}: ") and sentence in error


def test_unicode_is_welcome_where_it_can_be(capfd: pytest.CaptureFixture[str]) -> None:
    overrides = [*TINY, "results='Ergebnisse für τ=1 名前'", "name='σ_名前'"]
    assert main(overrides) == 0 and main(overrides) == 0
    assert "finished already" in capfd.readouterr().out


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=ad_psgd", "algo.topology=ring", "nodes=5"],
        ["optim.schedule.name=sgp_runner.config.run.Run"],
        ["name=../../up"],
        ["model=mlp", "nodes=5000"],
    ],
    ids=" ".join,
)
def test_refused_before_anything_is_written(
    overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert re.fullmatch(r"sgp-run: [\w.]+: .+\n", refused(["logger=jsonl", *overrides], capfd))


# The same, as commands of their own.
COMMANDS = [
    ["algo._target_=os.system"],
    ["results=/dev/null"],
    ["network=gloo", "model=mlp", "nodes=2", "batch_size=5000"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_as_a_process(arguments: list[str], in_an_empty_folder: Path) -> None:
    done = run_command("logger=jsonl", *arguments)
    assert done.returncode == 2 and done.stdout in (
        "",
        next(iter(done.stdout.splitlines(keepends=True)), ""),
    )
    assert re.fullmatch(r"sgp-run: [\w.]+: .+\n", done.stderr)
    assert list(in_an_empty_folder.iterdir()) == []

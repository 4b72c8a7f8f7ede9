"""Runs whose training fails for good: they stop, say so, and are not repeated."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from helpers.processes import check_no_rank_is_left
from helpers.tiny import machines, run, sgd

from sgp_runner.algorithms.sgp import SGP
from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of
from sgp_runner.recording.divergence import check_loss, check_parameters, cure
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.topology.graphs import DirectedExponential
from sgp_runner.utils.errors import DIVERGED, Diverged

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=40",
    "logger=jsonl",
    "batch_size=8",
    "log_every=1",
]
HOPELESS = [*TINY, "optim.lr=30"]


def the_run() -> Path:
    (directory,) = Path("results/runs").iterdir()
    return directory


@pytest.mark.parametrize("algo", ["sgp", "ad_psgd", "gap_aware", "ps_sgd"])
def test_a_run_that_diverges_stops_and_keeps_its_records(
    algo: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*HOPELESS, f"algo={algo}"]) == DIVERGED == 3
    error = capfd.readouterr().err
    place, what = (
        r"rank \d diverged at step (\d+)",
        r"its (loss is [\d.e+]+, after [\d.e+]+ at the start|parameters are no longer finite)",
    )
    hint = "there is no earlier checkpoint; lower optim.lr, which is 30"
    hint += r"(, or raise optim\.schedule\.warmup_epochs)?\."
    found = re.fullmatch(rf"sgp-run: {place}: {what}; {hint}\n", error)
    assert found
    records = read_metrics(the_run())
    assert {record["kind"] for record in records} == {"train"} | (
        {"server"} if algo in ("gap_aware", "ps_sgd") else set()
    )
    assert max(int(str(record["step"])) for record in records) == int(found[1])
    assert sorted(path.name for path in the_run().iterdir()) == [
        "config.yaml",
        "diverged.json",
        "environment.json",
        "metrics.jsonl",
    ]


def test_it_is_not_repeated_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*HOPELESS, "checkpoint.every_steps=2"]) == 3
    first = capfd.readouterr().err
    assert re.search(
        r"the last good checkpoint is results/runs/\S+/checkpoints/step-\d+; lower optim.lr", first
    )
    before = {path.name: path.stat().st_mtime_ns for path in the_run().iterdir()}
    assert main([*HOPELESS, "checkpoint.every_steps=2"]) == 3
    out, again = capfd.readouterr()
    assert (out, again) == ("", first.rstrip("\n") + " It is not repeated (resume=never does).\n")
    assert {path.name: path.stat().st_mtime_ns for path in the_run().iterdir()} == before
    assert main([*HOPELESS, "resume=never"]) == 3
    assert "no earlier checkpoint" in capfd.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_the_other_jobs_of_a_sweep_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["-m", *TINY, "optim.lr=30,0.1"]) == 1
        out, _ = capfd.readouterr()
        assert "(diverged)" in out and "\noptim.lr=30 diverged: rank" in out
    for path in Path("results/sweeps").glob("*/comparison.csv"):
        diverged, trained = csv.DictReader(path.open())
        assert (diverged["diverged"], trained["diverged"]) == ("True", "")
        assert "diverged at step" in diverged["failed"] and not trained["failed"]


def test_all_real_ranks_end_with_the_one_that_diverged(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*HOPELESS, "epochs=100000", "network=gloo", "algo=ar_sgd"]) == 3
    assert re.match(r"sgp-run: rank [01] diverged at step \d+: its loss is", capfd.readouterr().err)
    check_no_rank_is_left(tmp_path)
    assert json.loads((the_run() / "diverged.json").read_text())["rank"] in (0, 1)
    assert not (the_run() / "summary.json").exists()
    assert main([*HOPELESS, "epochs=100000", "network=gloo", "algo=ar_sgd"]) == 3
    assert "It is not repeated" in capfd.readouterr().err


CODED = {
    "ar_sgd": ("algo.codec=int8",),
    "choco_sgd": ("algo.codec=two_bit",),
    "demo": (),
    "pipe_sgd": ("algo.depth=1", "algo.compression=quantize8"),
    "sparseloco": ("algo.period=1",),
    "streaming_diloco": ("algo.period=2", "algo.codec=fp4"),
}


@pytest.mark.parametrize(
    ("algo", "network"), [*((algo, "sim") for algo in CODED), ("sparseloco", "gloo")]
)
def test_a_message_that_cannot_be_coded_is_divergence(
    algo: str, network: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing else looks at the parameters, as nothing is recorded meanwhile."""
    words = [f"algo={algo}", *CODED[algo], f"network={network}"]
    assert main([*TINY, "log_every=1000", "optim.lr=1e30", *words]) == 3
    what = r"its message has (nan|-?inf|-?[\d.]+e\+\d+) in the tensor x"
    assert re.match(
        rf"sgp-run: rank [01] diverged at step \d: {what}; there is no", capfd.readouterr().err
    )
    assert re.fullmatch(what, json.loads((the_run() / "diverged.json").read_text())["what"])


def test_what_counts_as_diverged() -> None:
    (worker, *_) = run(SGP(DirectedExponential()), 2, 3, sgd(), machines()).workers
    check_parameters(worker)
    check_loss(worker, 9_999.0, 0.1)  # a first loss below 1 counts as 1
    check_loss(worker, 49_999.0, 5.0)
    for loss, first, what in (
        (10_001.0, 0.1, "its loss is 1e+04, after 0.1 at the start"),
        (50_001.0, 5.0, "its loss is 5e+04, after 5 at the start"),
        (float("nan"), 1.0, "its loss is nan"),
        (float("inf"), float("inf"), "its loss is inf"),
    ):
        with pytest.raises(Diverged, match=re.escape(f"rank 0 diverged at step 2: {what}")):
            check_loss(worker, loss, first)
    worker.params[1] = float("nan")
    with pytest.raises(
        Diverged, match="rank 0 diverged at step 2: its parameters are no longer finite"
    ):
        check_parameters(worker)


@pytest.mark.parametrize(
    ("overrides", "cures"),
    [
        (["algo=sgp", "optim.schedule=constant"], "lower optim.lr, which is 0.1"),
        (
            ["algo=zero_one_adam", "optim.schedule=cosine"],
            "lower optim.lr, which is 0.001, or raise optim.schedule.warmup_epochs, or raise "
            "algo.kappa or algo.freeze_epochs or optim.eps",
        ),
    ],
)
def test_the_advice_to_a_diverged_run_names_settings_that_it_has(
    overrides: list[str], cures: str
) -> None:
    assert cure(experiment_of(["model=mlp", *overrides]).run) == cures

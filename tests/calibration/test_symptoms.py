"""``sgp-run doctor --measure``: words of measured values, and two real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.experiments import make_experiment
from helpers.paths import RANKS

from sgp_runner.assembly.real.launch import launch
from sgp_runner.calibration.symptoms import (
    SYMPTOMS,
    Symptoms,
    all_reduce_text,
    observed_words,
)
from sgp_runner.cli.main import main
from sgp_runner.plan.diagnosis import diagnose
from sgp_runner.plan.observation import read_observation

# A ring of three has four rounds of 1 ms, and 1 s for each gigabyte.
FOUND = Symptoms(
    nodes=3,
    num_bytes=400_000_000,
    alone=0.25,
    together=0.75,
    slowest=1.01,
    loading=0.01,
    all_reduces={1_000_000: 0.005, 400_000_000: 0.404},
    streams={1: 5e9, 8: 20e9},
)


def test_measured_values_are_words_of_doctor() -> None:
    arguments = observed_words(FOUND)
    assert arguments == [
        "step.1=0.25s",
        "step.3=0.75s",
        "parameters=100000000",
        "bytes_per_parameter=4",
        "devices=1",
        "latency=0.001s",
        "streams.1=5Gbit/s",
        "streams.8=20Gbit/s",
        "loading=0.01s",
        "slowest=1.01",
    ]
    seen = read_observation(arguments)
    assert (seen.alone, seen.together, seen.latency) == (0.25, {3: 0.75}, 0.001)
    assert seen.streams == FOUND.streams
    verdicts = {cause.name: cause.verdict for cause in diagnose(seen).causes}
    assert verdicts["one connection"] == "likely"
    assert verdicts["input loading"] == verdicts["a slow node"] == "excluded"
    assert all_reduce_text(FOUND) == "Measured all-reduces: 1 MB in 5 ms, 400 MB in 404 ms."


def test_two_real_processes_measure_each_other(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "network=gloo", "nodes=2", "model=mlp", "name=tiny")
    launch(experiment, (str(RANKS / "symptom_rank.py"),))
    found = Symptoms.from_json((experiment.directory / SYMPTOMS).read_text())
    assert (found.nodes, found.num_bytes, len(found.all_reduces)) == (2, 19240, 4)
    assert min(found.alone, found.together, found.loading, *found.all_reduces.values()) > 0
    assert found.slowest >= 1
    assert found.streams.keys() == {1, 8} and min(found.streams.values()) > 0


def test_a_simulation_cannot_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doctor", "--measure", "nodes=2", "model=mlp", "network=sim", f"results={tmp_path}"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "sgp-run: network: a simulation has no machines: use network=gloo or nccl.\n"
    )

"""Every algorithm with several workers on one GPU (make test-gpu)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.experiments import distance, instrumented, make_experiment, summary_of
from helpers.variants import ALONE, LOW_COMMUNICATION, SYNCHRONOUS, launch_real

from sgp_runner.config.experiment import Experiment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.timeout(9000),
]
TINY = ("nodes=4", "model=mlp", "data=digits", "batch_size=8", "epochs=0.18", "log_every=4")
ON_GPU = ("network.device=cuda", "network.autocast=none")
EVERY = SYNCHRONOUS | LOW_COMMUNICATION | ALONE
REAL = {name: EVERY[name] for name in ("ar_sgd", "sgp", "diloco", "demo", "choco_sgd")}


def words_of(name: str) -> list[str]:
    return [f"algo={name.split(maxsplit=1)[0]}", *EVERY[name]]


def ended(experiment: Experiment) -> Experiment:
    summary_of(instrumented(experiment))
    return experiment


@pytest.mark.parametrize("name", EVERY)
def test_a_simulated_run_agrees_with_the_cpu(name: str, tmp_path: Path) -> None:
    overrides = (*TINY, *words_of(name))
    cpu, gpu = (
        ended(make_experiment(tmp_path, *overrides, "dtype=float64", *more))
        for more in ((), ON_GPU)
    )
    assert distance(cpu, gpu) < 1e-10


@pytest.mark.parametrize("model", ["resnet8", "mlp", "transformer", "gpt data.train_size=640"])
@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_float32_agrees_to_1e_5_and_repeats_to_the_bit(
    model: str, engine: str, tmp_path: Path
) -> None:
    overrides = ["algo=sgp", "nodes=4", "batch_size=8", "epochs=0.05", *f"model={model}".split()]
    overrides += [f"network.engine={engine}"]
    cpu = ended(make_experiment(tmp_path / "cpu", *overrides))
    once, twice = (ended(make_experiment(tmp_path / name, *overrides, *ON_GPU)) for name in "ab")
    assert distance(cpu, once) < 1e-5
    assert distance(once, twice) == 0


def test_a_run_on_a_gpu_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    overrides = (*TINY, "algo=osgp", *ON_GPU, "checkpoint.every_steps=3")
    whole = ended(make_experiment(tmp_path / "whole", *overrides))
    part = make_experiment(tmp_path / "part", *overrides)
    ended(part)  # its checkpoints are still there
    assert [*part.checkpoints.glob("step-*")]
    (part.directory / "summary.json").unlink(missing_ok=True)
    assert distance(whole, ended(part)) == 0


def test_ranks_share_a_gpu_over_gloo(tmp_path: Path) -> None:
    pairs = []
    for name in REAL:
        overrides = (*TINY, *words_of(name), "dtype=float64")
        real = make_experiment(tmp_path, *overrides, "network=gloo", *ON_GPU)
        pairs.append((ended(make_experiment(tmp_path, *overrides)), real))
    launch_real([real for _, real in pairs])
    for simulated, real in pairs:
        assert distance(simulated, real) < 1e-10


@pytest.mark.skipif("TORCH_CUDA_SANITIZER" not in os.environ, reason="no sanitizer")
def test_the_sanitizer_is_on() -> None:
    assert torch.cuda._sanitizer.cuda_sanitizer.enabled

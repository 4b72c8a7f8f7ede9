"""Simulated runs on the pretend GPU: what the CPU gives, without a wait of the host in a step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from gpu_rig.pretend_gpu import Log, pretend_gpu
from helpers.experiments import final_parameters, instrumented, make_experiment
from helpers.refusals import refusal
from torch import nn

from sgp_runner.assembly.networks import sim as network
from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import Experiment
from sgp_runner.models.mlp import MLP

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
TINY = ("nodes=2", "batch_size=16", "dtype=float64", "log_every=1000", "eval_workers=false")
RUNS = {
    "vmap": "algo=sgp model=mlp",
    "loop": "algo=osgp model=mlp network.engine=loop",
    "batch norm": "algo=d_psgd model=resnet8",
    "asynchronous": "algo=ad_psgd model=mlp",
    "server": "algo=gap_aware model=mlp",
    "all-reduce": "algo=ar_sgd model=mlp",
    "coded": "algo=choco_sgd algo.codec=top_k model=mlp",
    "micro-batches": "algo=sgp model=mlp micro_batch=4",
}


@pytest.fixture(autouse=True)
def any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "check_present", lambda device: None)
    monkeypatch.setenv(WORKSPACE, "")  # is restored
    monkeypatch.delenv(WORKSPACE)


def on_gpu(experiment: Experiment) -> tuple[dict[str, object], Log]:
    run = instrumented(experiment)
    object.__setattr__(run.run.network, "device", "pretend:0")
    with pretend_gpu() as log:
        summary = execute(run)
    assert summary is not None
    return summary, log


@pytest.mark.parametrize("name", RUNS)
def test_a_simulated_run_on_a_gpu(name: str, tmp_path: Path) -> None:
    overrides = (*TINY, *RUNS[name].split())
    cpu = make_experiment(tmp_path, *overrides, "epochs=0.1")
    gpu = make_experiment(tmp_path, *overrides, "epochs=0.1", "name=gpu")
    expected = execute(instrumented(cpu))
    summary, log = on_gpu(gpu)
    for ours, theirs in zip(final_parameters(gpu), final_parameters(cpu), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12
    assert expected is not None
    for key in ("average", "average_loss", "time_s", "steps", "bytes_per_node"):
        assert summary[key] == pytest.approx(expected[key], abs=1e-12)  # type: ignore[call-overload]
    assert not log.unordered
    # Twice the steps have as many waits: for the first record, and at the end, when the postponed
    # checks of messages are made.
    _, twice = on_gpu(make_experiment(tmp_path, *overrides, "epochs=0.2", "name=longer"))
    assert sum(twice.launches.values()) > 1.5 * sum(log.launches.values())
    more = {where for (what, where), n in twice.syncs.items() if n != log.syncs[what, where]}
    assert all(where.endswith(" check_finite") for where in more)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_has_only_deterministic_algorithms_unless_told_otherwise(
    deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: MLP, dataset: object) -> nn.Module:
        pool = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.AdaptiveAvgPool2d(4))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), pool, nn.Flatten(), nn.Linear(16, 10))

    monkeypatch.setattr(MLP, "build", build)
    overrides = (*TINY, "algo=sgp", "model=mlp", "network.engine=loop", "epochs=0.05")
    experiment = make_experiment(
        tmp_path, *overrides, f"network.deterministic={str(deterministic).lower()}"
    )
    if not deterministic:
        assert on_gpu(experiment)[0]["steps"] == 2
        assert not torch.are_deterministic_algorithms_enabled() and WORKSPACE not in os.environ
        return
    assert str(refusal(on_gpu, experiment)) == (
        "network.deterministic: adaptive_avg_pool2d_backward_cuda has no deterministic "
        "algorithm on a GPU: use network.deterministic=false."
    )
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert os.environ[WORKSPACE] == ":4096:8"

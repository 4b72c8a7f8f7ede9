"""Activations of blocks that the backward pass computes again."""

from __future__ import annotations

import pytest
import torch

from sgp_runner.assembly.build import build_problem
from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.flops import flops_per_sample
from sgp_runner.core.problem import Problem

GPT = "model=gpt model.layers=3 data.train_size=640 data.valid_size=64"
MODELS = (GPT, "model=transformer model.dropout=0.1")


def problem(overrides: str) -> Problem:
    return build_problem(experiment_of(["nodes=2", "batch_size=4", *overrides.split()]).run)


def gradient(of: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    return of.gradient(of.start(), of.flat.fresh_buffers(), rank=1, step=3)


@pytest.mark.parametrize("overrides", MODELS)
def test_gradients_have_the_same_bits(overrides: str) -> None:
    stored, recomputed = problem(overrides), problem(f"{overrides} model.checkpoint_blocks=true")
    torch.testing.assert_close(gradient(recomputed), gradient(stored), rtol=0, atol=0)
    # What is computed again is no work of the model.
    ours, theirs = (
        (of.evaluate(of.start(), of.flat.fresh_buffers()), flops_per_sample(of, 0))
        for of in (recomputed, stored)
    )
    assert ours == theirs


@pytest.mark.parametrize("overrides", MODELS)
def test_fewer_activations_are_saved(overrides: str) -> None:
    sizes = []
    for more in ("", " model.checkpoint_blocks=true"):
        of = problem(overrides + more)
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t,  # type: ignore[misc]
            lambda t: t,
        ):
            of.loss(of.flat.bind(of.start(), of.flat.fresh_buffers()).train(), of.batch(0, 0))
        sizes.append(sum(saved))
    assert sizes[1] < sizes[0] / 3


def test_vmap_cannot_compute_anything_again(capfd: pytest.CaptureFixture[str]) -> None:
    overrides = [*GPT.split(), "model.checkpoint_blocks=true", "network.engine=vmap"]
    assert main(["nodes=2", *overrides]) == 2
    assert capfd.readouterr().err == (
        "sgp-run: network.engine: vmap cannot run model=gpt; use network.engine=loop.\n"
    )
    assert not experiment_of(overrides[:-1]).run.model.vectorizes
    assert experiment_of(GPT.split()).run.model.vectorizes

"""Every model on the pretend GPU: its gradient, evaluation and decoding are those of a CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from gpu_rig.pretend_gpu import DEVICE, Log, pretend_gpu, values
from helpers.corpora import binarised, parallel_text
from helpers.hub_folders import save_gpt2
from torch import Tensor

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.networks.sim import Sim
from sgp_runner.config.choices import class_of, groups
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.core.problem import ON_CPU, Compute, Problem
from sgp_runner.models import vision
from sgp_runner.simulator.engine import Gradient, Vmap

NOISE = ("data=synthetic", "data.size=16", "data.valid_size=4", "data.num_classes=10")
TINY_IMAGES = (*NOISE, "data.image_size=8")
SENTENCES = ("data.train_size=64", "data.valid_size=24")
FAIRSEQ = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("embed_dim", 32), ("ffn_embed_dim", 64))
}
MODELS: dict[str, tuple[str, ...]] = {
    "conv": (),
    "fairseq_transformer": (
        "model.arch=transformer_iwslt_de_en",
        "model.overrides={" + ", ".join(f"{key}: {value}" for key, value in FAIRSEQ.items()) + "}",
        "data.max_tokens=200",
    ),
    "gpt": SENTENCES,
    "hf": ("model.pretrained=false", *SENTENCES, "data.block=16"),
    "mlp": (),
    "mlp of a teacher": ("data=teacher",),
    "quadratic": (),
    "resnet8": TINY_IMAGES,
    "resnet8 of bytes": ("data=shapes", *SENTENCES),
    "resnet18": TINY_IMAGES,
    "resnet20": TINY_IMAGES,
    "resnet50": TINY_IMAGES,
    "torchvision": (*NOISE, "data.image_size=32", "model.arch=mobilenet_v3_small"),
    "transformer": SENTENCES,
}
# Where a gradient may make the host wait: in fairseq, which looks for padding and makes constants,
# and in transformers, which looks for positions that begin again.
FORWARD = "models/from_fairseq.py FromFairseq.forward"
ALLOWED = {
    "fairseq_transformer": {("scalar read", FORWARD), ("copy from pageable memory", FORWARD)},
    "hf": {("scalar read", "models/from_hub.py HubLanguageModel.forward")},
}
# The backward pass of `gather`, which adds at most one number in each place.
ONE_EACH = {("aten.scatter_add.default", "elsewhere")}
SLOW = {"fairseq_transformer", "resnet50"}
GRADIENT = {"resnet18", "resnet50", "torchvision"}  # too large to be evaluated in a second


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wmt")
    return binarised(folder / "binarised", parallel_text(folder / "text"))


def problems(*overrides: str) -> Iterator[tuple[Problem, Log]]:
    """Yield the problem on the CPU and on the pretend GPU, with what happens there."""
    run = experiment_of(["nodes=2", "batch_size=4", *overrides, "logger=jsonl", "resume=never"]).run
    yield build_problem(run), Log()
    with pretend_gpu() as log:
        problem = build_problem(run, replace(ON_CPU, device=str(DEVICE)))
        log.clear()
        yield problem, log


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS]
)
def test_gradient_and_evaluation_are_those_of_a_cpu(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "FEW_SAMPLES", ())  # the same layout on both
    overrides = [f"model={name.split(maxsplit=1)[0]}", *MODELS[name]]
    if name == "fairseq_transformer":
        if importlib.util.find_spec("fairseq") is None:
            pytest.skip("fairseq is not installed: make .venv/.fairseq")
        overrides.append(f"data.root={request.getfixturevalue('root')}")
    if name == "hf":
        folder = request.getfixturevalue("tmp_path")
        overrides.append(f"model.path={save_gpt2(folder, vocab_size=256, dropout=0.1)}")
    found = []
    for problem, log in problems(*overrides):
        x, buffers = problem.start(), problem.flat.fresh_buffers()
        log.clear()
        gradient, loss = problem.gradient(x, buffers, 1, 2)
        assert log.sites <= ALLOWED.get(name, set()) and set(log.unordered) <= ONE_EACH
        assert gradient.is_cuda == (problem.compute.device != "cpu")
        metrics = {} if name in GRADIENT else problem.evaluate(x - 0.1 * gradient, buffers)
        if name not in GRADIENT and problem.flat.has_batch_norm:
            metrics |= {f"mean {k}": v for k, v in problem.evaluate_re_estimated(x).items()}
        found.append((values(gradient), values(loss), [*map(values, buffers)], metrics))
    (gradient, loss, buffers, metrics), (other, loss2, buffers2, metrics2) = found
    assert 0 < gradient.norm() < 1e6
    assert (other - gradient).abs().max() <= 1e-5 * gradient.abs().max()
    assert float(loss2) == pytest.approx(float(loss), rel=1e-6)
    assert all(map(torch.allclose, buffers, buffers2))
    assert metrics2 == pytest.approx(metrics, rel=1e-5)


@contextmanager
def noted_kernels() -> Iterator[list[bool]]:
    """Note for each call of attention whether it may use a fused kernel."""
    attention, fused = torch.nn.functional.scaled_dot_product_attention, []

    def noted(*arguments: Any, **options: Any) -> Tensor:
        fused.append(torch.backends.cuda.flash_sdp_enabled())
        return attention(*arguments, **options)

    with mock.patch("torch.nn.functional.scaled_dot_product_attention", noted):
        yield fused


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_attention_is_fused_on_a_gpu_and_outside_vmap_alone(name: str) -> None:
    for problem, _ in problems(f"model={name}", *SENTENCES):
        x, buffers = problem.start(), problem.flat.fresh_buffers()
        with noted_kernels() as fused:
            problem.gradient(x, buffers, 0, 0)
        assert len(fused) > 1 and set(fused) == {x.is_cuda}
        engine = Vmap(problem, 2)
        with noted_kernels() as fused:
            engine.compute([Gradient(rank, 0, x, buffers) for rank in (0, 1)])
        assert len(fused) > 1 and set(fused) == {False}


def on_pretend_gpu(run: Run) -> Compute:
    """Return how a run computes; the pretend GPU has no 16-bit convolutions."""
    assert isinstance(run.network, Sim)
    return replace(run.network.compute, device=str(DEVICE), autocast="none")


def formats(*options: str) -> tuple[bool, list[bool], Tensor]:
    """Return the format of a run's images on a GPU, of each convolution's input, and a gradient."""
    options = ("nodes=2", "batch_size=4", "network.device=cuda", "network.autocast=bf16", *options)
    run = experiment_of([*options, "logger=jsonl", "resume=never"]).run
    seen: list[bool] = []
    with pretend_gpu():
        problem = build_problem(run, on_pretend_gpu(run))
        for layer in problem.flat.module.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.register_forward_pre_hook(
                    lambda _, x: seen.append(
                        x[0].is_contiguous(memory_format=torch.channels_last)
                        and not x[0].is_contiguous()
                    )
                )
        g, _ = problem.gradient(problem.start(), problem.flat.fresh_buffers(), 0, 0)
    return problem.compute.channels_last, seen, values(g)


def test_convolutions_on_a_gpu_have_channels_last_images_unless_told_otherwise() -> None:
    overrides = ("model=resnet8", *TINY_IMAGES)
    *found, g = formats(*overrides)
    assert found == [True, [True] * 7]
    *found, other = formats(*overrides, "network.channels_last=false")
    assert found == [False, [False] * 7]
    assert float((g - other).norm() / other.norm()) < 1e-5
    assert formats("model=mlp", *TINY_IMAGES)[:2] == (False, [])  # it has no convolution


def test_convolutions_of_many_workers_at_once_stay_as_they_are() -> None:
    overrides = ("model=conv", "network.autocast=bf16", "network.device=cuda", *TINY_IMAGES)
    found = []
    for more in ("auto", "false"):
        run = experiment_of([*overrides, f"network.channels_last={more}", "nodes=2"]).run
        with pretend_gpu():
            problem = build_problem(run, on_pretend_gpu(run))
            x, buffers = problem.start(), problem.flat.fresh_buffers()
            gradients = [Gradient(rank, 0, x, buffers) for rank in (0, 1)]
            Vmap(problem, 2).compute(gradients)
        found.append(
            [values(gradient.value) for gradient in gradients if gradient.value is not None]
        )
    assert all(map(torch.equal, *found)) and len(found[0]) == 2


def test_every_model_is_among_these() -> None:
    names = {name for name in groups()["model"] if class_of("model", name) is not None}
    assert names - {"timing_only"} == {name.split()[0] for name in MODELS}

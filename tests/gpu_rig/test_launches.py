"""Kernels and memory of codecs and optimizers on a model of 288 tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch
from gpu_rig.pretend_gpu import DEVICE, pretend_gpu, values
from torch import Tensor

from sgp_runner.assembly.build import build_problem
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.codecs import quantised
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.codecs.quantised import FP4, Int8, Sign, TwoBit
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.flat import PIECE
from sgp_runner.core.optim import AdamW, Constant, Muon, Optimizer
from sgp_runner.core.problem import Compute
from sgp_runner.simulator.engine import Gradient, Vmap

BLOCK = {
    **{name: (8,) for name in ("a", "b", "c", "d", "e", "f")},
    **{"qkv": (24, 8), "qkv_bias": (24,), "out": (8, 8)},
    **{"up": (32, 8), "up_bias": (32,), "down": (8, 32)},
}
SHAPES = {f"{block}.{name}": shape for block in range(24) for name, shape in BLOCK.items()}
N = sum(map(prod, SHAPES.values()))
X = torch.randn(N, generator=torch.Generator().manual_seed(0))
LARGE = {"a": (2**10, 2**10), "b": (2**19,), "c": (2**10, 2**9)}  # 2 M numbers
CODECS = [
    *((Int8(), 20, 9), (FP4(), 30, 11), (TwoBit(), 87, 12), (Sign(), 18, 12), (Sign("l2"), 18, 12)),
    *((Sign("l1", "vector"), 18, 12), (TopK(3, 4), 37, 20), (TopK(3, 4, 2), 118, 31)),
    (LowRank(1), 35, 97),
]


def peak(function: Callable[[], object]) -> int:
    """Return the most bytes of a CPU that a function has at a time."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        function()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    level = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            level += event.nbytes()
            most = max(most, level)
    return most


@pytest.mark.parametrize(("codec", "to_encode", "to_decode"), CODECS, ids=str)
def test_the_kernels_of_codecs(codec: Codec, to_encode: int, to_decode: int) -> None:
    """At most 150 each, after a first message, which copies constants. The values are a CPU's."""
    expected = codec.decode(codec.encode(X, SHAPES, 1), SHAPES, X, 1)
    with pretend_gpu() as log:
        x = X.to(DEVICE)
        codec.decode(codec.encode(x, SHAPES, 1, lambda check: None), SHAPES, x, 1)
        log.clear()
        message = codec.encode(x, SHAPES, 1, lambda check: None)
        launches = sum(log.launches.values())
        decoded = codec.decode(message, SHAPES, x, 1)
    assert len(SHAPES) == 288
    assert (launches, sum(log.launches.values())) == (to_encode, to_encode + to_decode)
    assert log.syncs == log.unordered == {}
    assert torch.allclose(values(decoded), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("optim", "launches"), [(Muon(Constant()), 131), (AdamW(Constant()), 21)], ids=["muon", "adamw"]
)
def test_the_kernels_of_a_step(optim: Optimizer, launches: int) -> None:
    """At most 400 of Muon, and 30 of AdamW."""

    def two_steps(x: Tensor) -> tuple[Tensor, int]:
        buffers = optim.buffers(x)
        x = x - optim.direction(x * 1.0, x, buffers, 0.01, SHAPES)
        g = x * -0.5
        log.clear()
        return x - optim.direction(g, x, buffers, 0.01, SHAPES), sum(log.launches.values()) - 1

    with pretend_gpu() as log:
        on_gpu, counted = two_steps(X.to(DEVICE))
        assert (counted, log.syncs) == (launches, {})
    assert torch.allclose(values(on_gpu), two_steps(X)[0], atol=1e-4)


def test_the_batches_of_all_simulated_workers_are_copied_together() -> None:
    """For eight workers there are three copies: inputs, targets and dropout seeds."""
    on_cpu = build_problem(
        experiment_of(
            ["model=mlp", "data=digits", "nodes=8", "batch_size=64", "logger=jsonl", "resume=never"]
        ).run
    )
    problem = replace(on_cpu, compute=Compute(str(DEVICE)))
    gradients = [Gradient(rank, 0, on_cpu.start(), []) for rank in range(8)]
    with pretend_gpu() as log:
        _, seeds, (images,), targets = Vmap(problem, 8).stacked(gradients)
    assert [tuple(t.shape) for t in (seeds, images, targets)] == [(8,), (8, 64, 1, 8, 8), (8, 64)]
    assert {where.split()[1]: n for where, n in log.launches.items()} == {"to_device": 3}


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("codec", [Int8(), FP4(), TwoBit(), Sign(), Sign("l1", "vector")], ids=str)
def test_codecs_need_at_most_12_bytes_per_parameter(
    codec: Codec, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 8 pieces of a GPU, or 32 of a CPU."""
    monkeypatch.setattr(quantised, "GPU_PIECE", 2**18)
    n = sum(map(prod, LARGE.values()))
    x = torch.linspace(-1, 1, n)
    messages = []
    with pretend_gpu():
        x = x.to(DEVICE) if on_gpu else x
        encoding = peak(lambda: messages.append(codec.encode(x, LARGE, 1, lambda check: None)))
        decoding = peak(lambda: codec.decode(messages[0], LARGE, x, 1))
    assert n == 8 * 2**18 == 32 * PIECE
    assert n / 8 < encoding <= 12 * n and 4 * n <= decoding <= 12 * n

"""Streaming DiLoCo against the recursion of its paper, and its fragments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import ADAM, LATE, OPTIM, PLAIN, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, Result, run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.streaming_diloco import FragmentSchedule, StreamingDiLoCo
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.fragments import fragments_of
from sgp_runner.core.worker import Worker
from sgp_runner.data.grammar import Grammar
from sgp_runner.models.gpt import GPT


def test_one_fragment_without_delay_is_diloco() -> None:
    for optim in (OPTIM, ADAM):
        streaming = StreamingDiLoCo(Identity(), 4, fragments=1, delay=0, alpha=0.0, lr=0.7)
        assert same(streaming, DiLoCo(4, lr=0.7), 3, optim)
    at_once = StreamingDiLoCo(Identity(), 1, fragments=1, delay=0, alpha=0.0, lr=1, momentum=0)
    assert same(at_once, ARSGD(), 3, PLAIN)


def test_schedule_of_a_fragment() -> None:
    """Fragment 1 of 3 with H = 6 and tau = 2: sent after t = H + H / 3 = 8, 14, ... inner steps."""
    schedule = FragmentSchedule(first=8, period=6, delay=2)
    assert [k + 1 for k in range(21) if schedule.sends(k)] == [8, 14, 20]
    assert [k + 1 for k in range(21) if schedule.lands(k)] == [10, 16]


@pytest.mark.parametrize("cluster", LATE)
def test_streaming_diloco(cluster: Cluster) -> None:
    """A fragment of the whole model, sent after steps 3, 6, 9, ... and landing a step later."""
    oracle, theta, v, sent = Oracle(3), START.copy(), np.zeros(D), np.zeros(D)
    for k in range(STEPS + 1):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 3 == 0:
            sent = np.mean(theta - oracle.x, axis=0)
        if k >= 3 and k % 3 == 0:
            v = 0.9 * v + sent
            theta = theta - 0.4 * (sent + 0.9 * v)
            oracle.x = 0.25 * oracle.x + 0.75 * theta
    algo = StreamingDiLoCo(Identity(), 3, fragments=1, delay=1, alpha=0.25)
    result = run(algo, 3, STEPS + 1, OPTIM, cluster)
    assert_equal(result.x, oracle.x)
    assert_equal(
        np.stack([worker.model.numpy() for worker in result.workers]), np.tile(theta, (3, 1))
    )


@pytest.mark.parametrize("codec", [Identity(), TopK(k=1, side=1)])
def test_the_outer_parameters_are_equal_everywhere_at_all_times(codec: Any) -> None:
    outer: dict[int, dict[int, bytes]] = {}

    def look(result: Result, worker: Worker) -> None:
        outer.setdefault(worker.step, {})[worker.rank] = worker.model.numpy().tobytes()

    run(StreamingDiLoCo(codec, 3, fragments=1, delay=2), 3, STEPS, OPTIM, LATE[1], each_step=look)
    assert all(len(set(by_rank.values())) == 1 and len(by_rank) == 3 for by_rank in outer.values())
    # Moved after steps 5, 8 and 11, and by the exchange that the end of the run cuts short.
    assert len({by_rank[0] for by_rank in outer.values()}) == 5


def test_fragments_follow_the_blocks() -> None:
    data = Grammar(block=4, valid_size=1).load(torch.float32)
    with torch.device("meta"):
        module = GPT(layers=6, width=8, heads=2).build(data)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    sizes = [12 * 64 + 16] * 6
    for pattern, owned in (
        ("strided", [[0, 2, 4], [1, 3, 5]]),
        ("sequential", [[0, 1, 2], [3, 4, 5]]),
    ):
        *blocks, rest = fragments_of(shapes, 3, pattern, 99)
        starts = [256 * 8 + sum(sizes[:i]) for i in range(6)]
        for fragment, numbers in zip(blocks, owned, strict=True):
            places = [i for span in fragment.spans for i in range(span.start, span.stop)]
            assert places == [i for n in numbers for i in range(starts[n], starts[n] + sizes[n])]
        assert [tuple(shape) for shape in rest.shapes.values()] == [(256, 8), (8,)]
    for layers, count in ((24, 9), (48, 17), (108, 37)):  # those of the paper
        names = {f"blocks.{i}.x": (1,) for i in range(layers)} | {"norm": (1,)}
        assert len(fragments_of(names, 3, "strided", 99)) == count
        assert 100 // count == {24: 11, 48: 5, 108: 2}[layers]


def test_a_model_without_blocks_is_cut_into_runs_of_tensors() -> None:
    shapes = {"a": (4,), "b": (1, 2), "c": (3,), "d": (3,)}
    assert [fragment.shapes for fragment in fragments_of(shapes, 3, "strided", 3)] == [
        {"a": (4,)},
        {"b": (1, 2)},
        {"c": (3,), "d": (3,)},
    ]
    assert [fragment.spans for fragment in fragments_of(shapes, 3, "strided", 1)] == [
        [slice(0, 4), slice(4, 6), slice(6, 9), slice(9, 12)]
    ]

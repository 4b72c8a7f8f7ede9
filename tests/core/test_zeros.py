"""Vectors that stand for tensors: the same numbers, views and versions, also once they are one."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers.experiments import make_experiment

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.simulated.times import simulate_times
from sgp_runner.config.choices import groups
from sgp_runner.core.optim.adam import frozen_divisor
from sgp_runner.core.zeros import Zeros, zeros

TYPES = [torch.float32, torch.float64]


def pair(weight: float = 1.0, dtype: torch.dtype = torch.float32) -> tuple[Any, torch.Tensor]:
    """Four zeros and a weight, and the tensor with these entries."""
    start, tensor = zeros(4, dtype), torch.zeros(5, dtype=dtype)
    tensor[-1] = weight
    return torch.cat([start, start.new_full((1,), weight)]), tensor


def the_same(vector: Any, tensor: torch.Tensor) -> None:
    """Assert that a vector without values has the bytes of ``tensor``."""
    assert type(vector) is Zeros and vector.memory.tensor is None
    assert vector.shape == tensor.shape and vector.dtype == tensor.dtype
    assert vector.nbytes == tensor.nbytes and vector.memory.tensor is None
    assert deepcopy(vector).tensor().numpy().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_push_sum_weight_has_the_bits_of_a_tensor(dtype: torch.dtype) -> None:
    def change(x: Any, y: Any, factor: float) -> None:
        x *= factor
        x += y
        x[:-1] *= x[-1]
        x /= factor + 0.7
        x -= y / 3

    random = Random(1)
    for factor in [3, 1 / 3, 0.5, 7, *(random.random() for _ in range(200))]:
        vector, tensor = pair(random.random(), dtype)
        other, same = pair(random.random(), dtype)
        change(vector, other, factor)
        change(tensor, same, factor)
        the_same(vector, tensor)
        the_same(vector * factor, tensor * factor)
        the_same(vector + other, tensor + same)
        assert float(vector[-1]) == float(tensor[-1]) == vector[-1].item()


def test_zeros_stay_zeros_in_what_algorithms_do() -> None:
    x, y = zeros(4, torch.float32), zeros(4, torch.float32)
    x.add_(y, alpha=0.3).sub_(y, alpha=2).mul_(0.9).div_(4).lerp_(y, 0.5).copy_(y).zero_()
    x -= 0.1 * (x - y) + x / 3
    the_same(x, torch.zeros(4))
    the_same(torch.cat([x, y]).chunk(2)[1], torch.zeros(4))
    the_same(torch.zeros_like(x), torch.zeros(4))
    assert [part.numel() for part in x.split_with_sizes([1, 3])] == [1, 3]
    message = torch.cat([x, x.new_full((1,), 5)])
    the_same(message[:-1], torch.zeros(4))
    assert int(message[-1]) == 5


def test_views_share_a_memory_and_its_version() -> None:
    x, _ = pair()
    params, version = x[:-1], x._version
    params.zero_()
    x[-1] = 0.25
    assert x._version == params._version == version + 2
    assert x[-1].item() == x.number == 0.25 and x.clone()[-1].item() == 0.25
    assert x.tensor()[-1] == x.number == 0.25 and x._version == version + 2
    params += 1
    assert x.tolist() == [1, 1, 1, 1, 0.25] and x._version == version + 3


def test_an_operation_that_needs_values_gets_those_of_a_tensor() -> None:
    for change in (
        lambda x: x[:-1].add_(torch.arange(4.0)),
        lambda x: x.add_(x, alpha=0.5),
        lambda x: x.fill_(2),
        lambda x: x.__setitem__(slice(1, 3), 7),
        lambda x: x[:2].copy_(torch.tensor([3.0, 4.0])),
        lambda x: x.mul_(float("inf")),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.cos_(),
    ):
        vector, tensor = pair(0.75)
        vector.mul_(0.5), tensor.mul_(0.5)
        change(vector), change(tensor)
        torch.testing.assert_close(vector.tensor(), tensor, rtol=0, atol=0, equal_nan=True)
        vector += tensor
        tensor += tensor.clone()
        torch.testing.assert_close(vector.tensor(), tensor, rtol=0, atol=0, equal_nan=True)
    vector, tensor = pair(0.75)
    for read in (
        lambda x: 1 - x,
        lambda x: x @ x,
        lambda x: x.norm() > 0.5,
        lambda x: torch.stack([x, x]).mean(0),
        lambda x: tensor - x,
        lambda x: x + torch.ones(5),
        lambda x: x.double() / 0,
        lambda x: x[torch.tensor([4, 0])],
    ):
        torch.testing.assert_close(read(vector), read(tensor), rtol=0, atol=0, equal_nan=True)


def test_it_is_saved_as_a_tensor_and_restored_without_values() -> None:
    vector, tensor = pair(0.3)
    saved = pickle.loads(pickle.dumps(vector))
    assert type(saved) is torch.Tensor and torch.equal(saved, tensor)
    fresh, _ = pair()
    fresh.copy_(saved)
    the_same(fresh, tensor)
    fresh += saved
    the_same(fresh, tensor + tensor)


def test_vectors_of_the_meta_device_lose_their_values_to_other_operations() -> None:
    x = zeros(4, torch.float32, "meta")
    both = torch.cat([x, x.new_full((1,), 1.0)])
    assert x.is_meta and both.is_meta and float(both[-1]) == 1
    x += both[:4].clone()
    assert type(x) is Zeros and x.memory.tensor is None
    code: Any = x.new_empty(10**13, dtype=torch.uint8)
    assert type(code) is torch.Tensor and code.is_meta
    step = (x / (x.sqrt() + 1e-8)).addcmul_(x, x, value=0.1)
    assert type(step) is Zeros and step.memory.tensor is None and len(step) == 4
    divisor: Any = frozen_divisor(step, 1e-8, {"x": (4,)})
    assert type(divisor) is Zeros and step.memory.tensor is divisor.memory.tensor is None
    table = step.view(2, 2) + step[:2]
    assert type(table) is torch.Tensor and table.is_meta and table.shape == (2, 2)


def test_a_study_of_fragments_computes_nothing(tmp_path: Path) -> None:
    overrides = ("model=timing_only", "algo=streaming_diloco", "nodes=2", "model.sample_steps=40")
    run = make_experiment(
        tmp_path, *overrides, "timed_as.model=llama_1b", "codec@algo.codec=fp4"
    ).run
    simulation, workers = simulate_times(run, build_problem(run))
    simulation.run()
    vectors: list[Any] = [worker.push_sum for worker in workers]
    assert [type(x) for x in vectors] == [Zeros, Zeros]
    assert [x.memory.tensor for x in vectors] == [None, None]


ALGORITHMS = sorted(set(groups()["algo"]) - {"none"})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_study_has_the_times_weights_and_bytes_of_tensors(algo: str, tmp_path: Path) -> None:
    overrides = (f"algo={algo}", "nodes=6", "model.sample_steps=20", "cluster=infiniband_100g")
    run = make_experiment(tmp_path, "model=timing_only", "model.grain=40", *overrides).run
    vectors = build_problem(run)
    assert vectors.start().is_meta == (run.timed_shapes is not None)
    found = []
    for problem in (vectors, replace(vectors, initial=None)):
        simulation, workers = simulate_times(run, problem)
        simulation.run()
        numbers = [(worker.push_sum_weight, worker.comm.num_bytes_sent) for worker in workers]
        found.append((simulation.clock.now, numbers))
    assert found[0] == found[1]

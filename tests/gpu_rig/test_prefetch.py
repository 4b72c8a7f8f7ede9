"""Batches that a thread loads ahead for a pretend GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from gpu_rig.judged import CUDA, Judged, pretend_cuda, running
from gpu_rig.pretend_gpu import Log, values
from gpu_rig.streams import Gpu

from sgp_runner.core.flat import to_device
from sgp_runner.core.prefetch import Prefetcher
from sgp_runner.core.problem import Compute, Problem, make_problem
from sgp_runner.data.dataset import Batch
from sgp_runner.data.digits import Digits
from sgp_runner.data.images import Decoders, ImageFiles
from sgp_runner.data.in_memory_data import ReadSplit
from sgp_runner.models.mlp import MLP
from sgp_runner.utils.errors import DataError
from sgp_runner.utils.shard import WHOLE, Shard


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    device = Gpu(0)
    with pretend_cuda(), running(device):
        yield device
    assert device.races == {}


@pytest.fixture
def loads() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture
def prefetcher(gpu: Gpu) -> Iterator[Prefetcher]:
    loader = Prefetcher(str(CUDA))
    yield loader
    loader.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("loads batches")
    ]


def load_into(loads: list[tuple[int, int, str]]) -> Callable[[int, int], Batch]:
    def load(rank: int, step: int) -> Batch:
        loads.append((rank, step, threading.current_thread().name))
        if step == 9:
            raise DataError("image 9 cannot be read; copy it again.")
        return (to_device(torch.tensor([rank, step]), CUDA),), to_device(torch.tensor(step), CUDA)

    return load


def numbers(batch: Batch) -> list[int]:
    (inputs,), target = batch
    return [*values(inputs).tolist(), int(values(target))]


def test_the_next_batch_is_loaded_by_a_thread_and_a_step_does_not_wait_for_the_device(
    prefetcher: Prefetcher, loads: list[tuple[int, int, str]]
) -> None:
    load, log = load_into(loads), Log()
    with Judged(log):
        assert [numbers(prefetcher.batch(load, 2, step)) for step in (3, 4, 4, 5)] == [
            [2, 3, 3],
            [2, 4, 4],
            [2, 4, 4],
            [2, 5, 5],
        ]
        (ahead,) = prefetcher.pending.values()
        ahead.result()
    assert log.syncs == {}
    assert [(step, thread) for _, step, thread in loads] == [
        (step, "loads batches_0") for step in (3, 4, 5, 4, 6)
    ]


def test_an_error_is_raised_for_its_batch(
    prefetcher: Prefetcher, loads: list[tuple[int, int, str]]
) -> None:
    load = load_into(loads)
    assert numbers(prefetcher.batch(load, 0, 8)) == [0, 8, 8]
    with pytest.raises(DataError, match=r"^image 9 cannot be read; copy it again\.$"):
        prefetcher.batch(load, 0, 9)


@pytest.fixture
def problem() -> Problem:
    return make_problem(MLP(), Digits(), workers=2, batch_size=8, seed=1, dtype=torch.float32)


@pytest.mark.parametrize("first", [0, 7])  # 7: a resumed run
def test_a_device_gets_the_batches_of_a_cpu(gpu: Gpu, problem: Problem, first: int) -> None:
    on_cpu = problem.on_device(Shard(1, 2))
    on_gpu = replace(problem, compute=Compute(str(CUDA))).on_device(Shard(1, 2))
    assert on_cpu.prefetcher is None and on_gpu.prefetcher is not None
    with closing(on_gpu):
        for step in range(first, first + 3):
            (inputs,), targets = on_gpu.batch(1, step)
            (same,), labels = on_cpu.batch(1, step)
            assert len(labels) == 4
            assert torch.equal(values(inputs), same) and torch.equal(values(targets), labels)
        (inputs,), _ = on_gpu.subset(1, 8).batch(0, first + 3)  # after the loss of a node
        (same,), _ = on_cpu.subset(1, 8).batch(0, first + 3)
        assert torch.equal(values(inputs), same)


def test_a_data_set_that_draws_from_torch_is_read_by_the_training_thread(
    gpu: Gpu, problem: Problem
) -> None:
    train = ReadSplit([(torch.ones(64), 3)] * 2000, None, torch.float32, column=False)
    dataset = replace(problem.dataset, train=train)
    on_gpu = replace(problem, dataset=dataset, compute=Compute(str(CUDA))).on_device(WHOLE)
    (inputs,), _ = on_gpu.batch(0, 0)
    assert values(inputs).shape == (8, 64)
    assert on_gpu.prefetcher is not None and not on_gpu.prefetcher.pending


@pytest.mark.parametrize(("workers", "draws"), [(0, True), (2, False)])
def test_images_draw_from_torch_without_decoding_processes(workers: int, draws: bool) -> None:
    assert ImageFiles(["a"], torch.zeros(1), 8, True, Decoders(workers)).draws_from_torch is draws

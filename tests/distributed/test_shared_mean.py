"""Means in the memory of one machine: their bits, the life of their slots, and what stops them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, ProcessGroupGloo

from sgp_runner.core.comm import mean_of
from sgp_runner.core.flat import PIECE
from sgp_runner.distributed import shared_memory
from sgp_runner.distributed.shared_mean import LINE, SharedMean
from sgp_runner.distributed.shared_memory import SMALLEST, SharedMemory

T = TypeVar("T")
SIZE = 3
LENGTH = SIZE * PIECE + 5


@pytest.fixture
def ranks() -> Iterator[list[SharedMean]]:
    """Three ranks in this process, each with a file and a group of its own."""
    store, memories = HashStore(), [SharedMemory(rank, SIZE) for rank in range(SIZE)]
    for memory in memories:
        memory.readers = set(memory.open([peer.address for peer in memories]))
    with ThreadPoolExecutor(SIZE) as pool:
        groups = list(pool.map(lambda rank: ProcessGroupGloo(store, rank, SIZE), range(SIZE)))
    means = [SharedMean(memory, group) for memory, group in zip(memories, groups, strict=True)]
    del groups
    yield means
    for mean in means:
        mean.close()


def start(ranks: list[SharedMean], vectors: list[Tensor]) -> list[Future[list[Tensor]]]:
    """Start a mean on all ranks, of vectors in two parts."""
    return [
        rank.start(partial(rank.mean, list(vector.tensor_split([LENGTH // 3]))))
        for rank, vector in zip(ranks, vectors, strict=True)
    ]


def finish(futures: list[Future[T]]) -> list[T]:
    return [future.result(timeout=300) for future in futures]


def of_ranks(seed: int, length: int = LENGTH) -> list[Tensor]:
    return list(torch.randn(SIZE, length, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("length", [LENGTH, 7 * LINE + 1, SMALLEST // 4, SMALLEST // 4 - 1])
def test_a_mean_has_the_bits_of_a_sum_in_the_order_of_ranks(
    length: int, ranks: list[SharedMean]
) -> None:
    """Vectors below `SMALLEST` go over TCP, where the sum has another order."""
    vectors = of_ranks(0, length)
    here = finish(start(ranks, [vector.clone() for vector in vectors]))
    means = [torch.cat(parts) for parts in here]
    assert all(torch.equal(mean, means[0]) for mean in means[1:])
    if 4 * length >= SMALLEST:
        assert torch.equal(means[0], mean_of(vectors))
        bounds = ranks[0].ends(length)
        sizes = [end - begin for begin, end in pairwise(bounds)]
        assert [len(part) for part in here[0]] == [size for size in sizes if size]
        assert all(begin % LINE == 0 for begin in bounds[:-1])
    else:
        assert torch.allclose(means[0], mean_of(vectors), rtol=0, atol=1e-6)


def test_a_mean_stays_until_it_is_gone_and_its_slots_are_used_again(
    ranks: list[SharedMean],
) -> None:
    vectors = of_ranks(1)
    kept = finish(start(ranks, vectors))[1]
    for seed in range(4):
        others = finish(start(ranks, of_ranks(seed)))
        assert torch.equal(torch.cat(others[0]), mean_of(of_ranks(seed)))
        del others
    assert torch.equal(torch.cat(kept), mean_of(vectors))
    assert {len(rank.memory.slots) for rank in ranks} == {2}
    del kept
    finish(start(ranks, vectors))
    gc.collect()
    assert not any(slot.held for rank in ranks for slot in rank.memory.slots)
    assert not any(any(rank.memory.unread(slot)) for rank in ranks for slot in rank.memory.slots)


def test_the_parts_of_a_mean_are_where_all_ranks_read_them(ranks: list[SharedMean]) -> None:
    means = finish(start(ranks, of_ranks(2)))
    means[2][0].fill_(5.0)  # a reader must not; here it shows that there is one copy
    assert all(mean[0].unique().tolist() == [5.0] for mean in means)


def test_a_rank_without_memory_lets_all_average_over_tcp(
    ranks: list[SharedMean], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(start(ranks, of_ranks(3)))
    allocate = shared_memory.os.posix_fallocate

    def full(file: int, *where: int) -> None:
        if file == ranks[1].memory.file:
            raise OSError(28, "No space left on device")
        allocate(file, *where)

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    longer = of_ranks(4, LENGTH + 1)
    (mean,) = {tuple(torch.cat(parts).tolist()) for parts in finish(start(ranks, longer))}
    assert torch.allclose(torch.tensor(mean), mean_of(longer), rtol=0, atol=1e-6)
    assert not any(any(rank.memory.unread(slot)) for rank in ranks for slot in rank.memory.slots)


def test_collectives_are_made_in_the_order_in_which_they_were_started(
    ranks: list[SharedMean],
) -> None:
    """The first one fails on all ranks, which does not stop the others."""
    calls: list[tuple[int, str]] = []

    def fail(rank: int) -> None:
        calls.append((rank, "failed"))
        raise ZeroDivisionError

    failures = [rank.start(partial(fail, number)) for number, rank in enumerate(ranks)]
    several = [start(ranks, of_ranks(seed)) for seed in range(3)]
    last = [
        rank.start(partial(calls.append, (number, "last"))) for number, rank in enumerate(ranks)
    ]
    for failure in failures:
        with pytest.raises(ZeroDivisionError):
            failure.result(timeout=300)
    finish(last)
    for seed, futures in enumerate(several):
        assert all(future.done() for future in futures)
        assert torch.equal(torch.cat(futures[0].result()), mean_of(of_ranks(seed)))
    assert sorted(calls[:SIZE]) == [(rank, "failed") for rank in range(SIZE)]
    assert sorted(calls[SIZE:]) == [(rank, "last") for rank in range(SIZE)]


def test_a_lost_rank_ends_the_waits_of_the_others(ranks: list[SharedMean]) -> None:
    finish(start(ranks, of_ranks(5)))
    lost, vectors = ranks.pop(), of_ranks(6)
    waiting: list[Callable[[], object]] = [
        start([rank], [vector])[0].result for rank, vector in zip(ranks, vectors, strict=False)
    ]
    lost.close()
    del lost  # its connections with it
    for wait in waiting:
        with pytest.raises(RuntimeError, match="third_party/gloo"):
            wait()

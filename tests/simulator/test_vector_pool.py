"""Slots of one size: when one is free again, and what is in one."""

from __future__ import annotations

import torch

from sgp_runner.core.mapped_memory import whole_pages
from sgp_runner.simulator.vector_pool import VectorPool

LENGTH = 3000


def test_a_slot_is_free_once_nothing_uses_its_memory() -> None:
    pool = VectorPool(LENGTH, 3, torch.float64)
    first, second = pool.empty(LENGTH), pool.empty(LENGTH)
    assert first is not None and second is not None
    assert [pool.slot_of(first), pool.slot_of(second), pool.free] == [0, 1, [2]]
    view = first[:-1]
    del first
    assert pool.free == [2] and pool.slot_of(view) == 0
    del view
    assert pool.free == [2, 0]
    again = pool.empty(LENGTH - 1)  # what was in use last is in the cache
    assert again is not None and pool.slot_of(again) == 0 and len(again) == LENGTH - 1
    last, numbers = pool.empty(LENGTH), torch.ones(LENGTH)
    assert last is not None and pool.slot_of(last) == 2
    assert pool.empty(LENGTH) is None and pool.shared(numbers) is numbers


def test_vectors_outside_of_the_pool_are_copied_and_those_in_it_are_not() -> None:
    pool = VectorPool(LENGTH, 2, torch.float32)
    numbers = torch.arange(float(LENGTH))
    assert pool.slot_of(numbers) is None
    copy = pool.shared(numbers)
    assert torch.equal(copy, numbers) and pool.slot_of(copy) == 0
    assert pool.shared(copy) is copy
    assert pool.slot_of(copy[1:]) is None
    assert torch.equal(pool.at(0, LENGTH), numbers)


def test_messages_of_another_size_or_type_take_no_slot() -> None:
    pool = VectorPool(LENGTH, 8, torch.float32)
    most = whole_pages(4 * LENGTH) // 4
    half = most // 2
    assert pool.empty_like(torch.ones(half)) is None
    assert pool.empty_like(torch.ones(most + 1)) is None
    assert pool.empty_like(torch.ones(LENGTH, dtype=torch.float64)) is None
    message = pool.empty_like(torch.ones(half + 1))
    assert message is not None and message.shape == (half + 1,)
    assert len(pool.free) == 7

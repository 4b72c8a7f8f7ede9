"""The steps of all ranks of a training loop, compared at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from helpers.refusals import refusal

from sgp_runner.api.step_counts import StepCounts
from sgp_runner.core.scheduler import RealClock
from sgp_runner.utils.waits import interrupt

UNEQUAL = "rank 0 took 2 and rank 1 took 1 steps: all ranks must call step() the same number of"


@pytest.fixture
def pair() -> Iterator[tuple[StepCounts, StepCounts]]:
    store: dist.Store = dist.HashStore()  # type: ignore[attr-defined]
    both = StepCounts(store, 0, 2), StepCounts(store, 1, 2)
    both[0].clock = RealClock()
    yield both
    for counts in both:
        counts.close()
    interrupt(None)


def test_a_step_that_waits_for_a_rank_that_has_finished_fails_with_both_counts(
    pair: tuple[StepCounts, StepCounts],
) -> None:
    waits, finished = pair
    waits.step()
    finished.step()
    waits.step()
    finished.publish()
    assert waits.clock is not None
    assert refusal(waits.clock.advance).sentence.startswith(UNEQUAL)
    assert refusal(finished.compare).sentence.startswith(UNEQUAL)


def test_equal_counts_end_in_silence(pair: tuple[StepCounts, StepCounts]) -> None:
    for counts in pair:
        counts.step()
        counts.publish()
    for counts in pair:
        counts.compare()
        counts.close()
    assert pair[0].clock is not None and pair[0].clock.posted.empty()

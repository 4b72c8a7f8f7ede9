"""The steps of all ranks of a training loop, compared at its end."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
import torch.distributed as dist

from sgp_runner.api.step_counts import StepCounts
from sgp_runner.utils.errors import ConfigError

UNEQUAL = "rank 0 took 2 and rank 1 took 1 steps: all ranks must call step() the same number of"


def pair() -> tuple[StepCounts, StepCounts, SimpleQueue[Exception]]:
    store: dist.Store = dist.HashStore()  # type: ignore[attr-defined]
    errors: SimpleQueue[Exception] = SimpleQueue()
    first, second = (StepCounts(store, rank, 2, errors.put) for rank in (0, 1))
    return first, second, errors


def test_a_step_that_waits_for_a_rank_that_has_finished_fails_with_both_counts() -> None:
    waits, finished, errors = pair()
    waits.step()
    finished.step()
    finished.publish()
    waits.step()
    assert str(errors.get()).startswith(f"Averager: {UNEQUAL}")
    with pytest.raises(ConfigError) as caught:
        finished.compare()
    assert caught.value.sentence.startswith(UNEQUAL)


def test_equal_counts_end_in_silence() -> None:
    first, second, errors = pair()
    for counts in (first, second):
        counts.step()
        counts.publish()
    first.compare()
    second.compare()
    assert errors.empty()

"""Detection of ranks that are alive but do not arrive at an exchange."""

from __future__ import annotations

import json
import sys
import sysconfig
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from threading import get_ident
from traceback import extract_stack
from typing import TypeAlias

from torch.distributed.distributed_c10d import Store

from sgp_runner.utils.errors import StallTimeout
from sgp_runner.utils.units import duration, rank_list
from sgp_runner.utils.waits import longest_wait, stall_report

ASKED, ANSWERED = "a rank has waited too long", "the ranks that did not come"
ANSWER_SECONDS = 10.0  # longest wait for the answers of all ranks
#: The steps that a rank has begun, whether it waits for others, and what it does.
Answer: TypeAlias = tuple[int, bool, str]
SILENT: Answer = (-1, False, "does not answer")


class RollCall:
    """A check of where all ranks are, once one has waited too long, to report the missing ranks.

    Separate threads ask and answer, because the training thread of a rank may hang.

    store: shared by all ranks
    limit: how long a rank may wait for others (seconds)
    """

    def __init__(self, store: Store, rank: int, size: int, limit: float) -> None:
        self.store, self.rank, self.size, self.limit = store, rank, size, limit
        self.training = get_ident()

    def outcome(self, steps: int) -> StallTimeout | None:
        """Return the same error on all ranks if one of them has waited too long, else None.

        steps: number of steps that this rank has started
        """
        if longest_wait() > self.limit:
            self.store.compare_set(ASKED, "", duration(self.limit))
        if not self.store.check([ASKED]):
            return None
        waits = longest_wait() > 0
        what = stall_report() if waits else f"is at {place(self.training)}"
        self.store.set(f"answer of {self.rank}", json.dumps([steps, waits, what]))
        until = time.monotonic() + ANSWER_SECONDS
        answers = {rank: self.answer_of(rank, until) for rank in range(self.size)}
        limit = str(self.store.get(ASKED), "utf-8")  # of the rank that has asked
        agreed = self.store.compare_set(ANSWERED, "", sentence(answers, limit))
        return StallTimeout(str(agreed, "utf-8"))

    def answer_of(self, rank: int, until: float) -> Answer:
        """Return the answer of a rank, or `SILENT` if there is none at the time ``until``."""
        key, left = f"answer of {rank}", until - time.monotonic()
        try:
            if left > 0:
                self.store.wait([key], timedelta(seconds=left))
            elif not self.store.check([key]):
                return SILENT
        except RuntimeError:
            return SILENT
        steps, waits, what = json.loads(self.store.get(key))
        return steps, waits, what


def sentence(answers: Mapping[int, Answer], limit: str) -> str:
    """Describe the missing ranks: among ranks that do not wait, the ones with the fewest steps."""
    texts = {
        rank: f"rank {rank} {what}"
        if steps < 0
        else f"rank {rank} has begun {steps} steps and {what}"
        for rank, (steps, _, what) in answers.items()
    }
    absent = {rank: steps for rank, (steps, waits, _) in answers.items() if not waits}
    missing = [rank for rank, steps in absent.items() if steps == min(absent.values())]
    longer = f"{limit} (timeout_seconds)"
    if not missing:
        return (
            f"all ranks have waited for each other for {longer}, so call step, average, finish "
            f"and state_dict on all of them together: {'; '.join(texts.values())}."
        )
    waiting = [rank for rank, (_, waits, _) in answers.items() if waits][:1]
    return (
        f"{rank_list(missing)} did not arrive within {longer}, so fix the cause or allow more: "
        f"{'; '.join(texts[rank] for rank in missing + waiting)}."
    )


def place(thread: int) -> str:
    """Return the function, file and line of the script that a thread is executing."""
    stack = extract_stack(sys._current_frames()[thread])[::-1]
    libraries = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")})
    frame = next((entry for entry in stack if not entry.filename.startswith(libraries)), stack[0])
    return f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"

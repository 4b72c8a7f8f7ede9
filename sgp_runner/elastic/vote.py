"""Who of a real run is still there. Whoever loses a connection calls the roll, and everybody takes
the same answer for the truth.

The store of the run holds the call, the answers and the verdict. Each rank answers on its watching
thread, whatever it computes. Who asks waits until all have answered, or for `VOTE_SECONDS`;
the first list of those present that is proposed is the verdict for all, also for a rank that was
only slow: it is given up, and ends. Where the others would not go on anyway, a rank may be silent
for as long as `network.timeout_seconds` allows, and only a lost connection makes somebody ask.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from sgp_runner.elastic.membership import VOTE_SECONDS
from sgp_runner.utils.errors import Aborted

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

DEATHS = "deaths"  # counted in the store by a launching process
POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 5.0  # between two signs of life
SILENCE_SECONDS = 30.0  # of a rank, while another one waits, until the roll is called: gloo does not tell who only receives of an end


class Vote:
    """On one rank; ``rank`` and ``members`` are numbers of the start of the run."""

    def __init__(self, store: Store, original_rank: int, size: int) -> None:
        self.store, self.original_rank, self.members = store, original_rank, list(range(size))
        self.number = 0
        self.answered = False
        self.lock = Lock()  # between the watching thread and the one that asks
        self.deaths = 0
        self.next_heartbeat = 0.0
        self.heard: dict[
            int, tuple[bytes, float]
        ] = {}  # the latest sign of life of each, and when it was new

    def key(self, word: str, rank: int | None = None) -> str:
        return f"roll call {self.number} {word}" + ("" if rank is None else f" {rank}")

    def heartbeat(self) -> None:
        """A sign of life, from the watching thread."""
        if (now := time.monotonic()) >= self.next_heartbeat:
            self.store.set(f"beat {self.original_rank}", str(now))
            self.next_heartbeat = now + HEARTBEAT_SECONDS

    def suspicion(self, waited: float) -> str | None:
        """Why the roll should be called: the launching process has seen a death, or we wait and
        somebody gives no sign of life.
        """
        if (
            deaths := int(self.store.get(DEATHS)) if self.store.check([DEATHS]) else 0
        ) > self.deaths:
            self.deaths = deaths
            return "the launching process has seen it end"
        if waited < SILENCE_SECONDS:
            self.heard.clear()
            return None
        now = time.monotonic()
        for rank in self.members:
            sign = self.store.get(f"beat {rank}") if self.store.check([f"beat {rank}"]) else b""
            before, since = self.heard.get(rank, (None, now))
            if sign != before:
                self.heard[rank] = sign, now
            elif now - since > SILENCE_SECONDS:
                return f"rank {rank} has given no sign of life for {now - since:.0f} s"
        return None

    def start(self, why: str) -> None:
        self.store.compare_set(self.key("why"), "", why)

    def answer(self) -> bool:
        """If the roll is called and this rank has not answered yet, it does now."""
        if self.answered or not self.store.check([self.key("why")]):
            return False
        self.store.set(self.key("here", self.original_rank), "")
        self.answered = True
        return True

    def decide(self) -> tuple[list[int], str]:
        """Who is gone, of those who were there before, and why it was asked. Raises Aborted if a
        rank has failed, which explains all.
        """
        deadline = time.monotonic() + VOTE_SECONDS
        while (
            self.silent()
            and not any(self.store.check([key]) for key in ("failed", self.key("present")))
            and time.monotonic() < deadline
        ):
            time.sleep(POLL_SECONDS)
        if self.store.check(["failed"]):
            raise Aborted("another rank failed")
        silent = self.silent()
        present = [rank for rank in self.members if rank not in silent]
        agreed: list[int] = json.loads(
            self.store.compare_set(self.key("present"), "", json.dumps(present))
        )
        why = str(self.store.get(self.key("why")), "utf-8")
        with self.lock:
            gone = sorted(set(self.members) - set(agreed))
            self.members, self.number, self.answered = agreed, self.number + 1, False
        return gone, why

    def silent(self) -> Sequence[int]:
        return [rank for rank in self.members if not self.store.check([self.key("here", rank)])]

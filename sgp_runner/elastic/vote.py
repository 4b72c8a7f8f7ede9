"""Membership agreement: a rank that loses a connection starts a vote on who is still there.

The run's store holds the question, the answers and the decision. Each rank answers on its watchdog
thread, whatever it computes. The asking rank waits for all answers, at most `VOTE_SECONDS`; the
first proposed list of live ranks is binding. A rank that was only slow is evicted and ends. If a
run cannot continue without lost ranks, a rank may be silent for as long as
`network.timeout_seconds` allows, and only a lost connection starts a vote.
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

LOST = "lost"  # set in the store by a rank whose failure is the loss of another one
DEATHS = "deaths"  # counted in the store by a launching process
POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 5.0
# How long a rank may be silent while another one waits: gloo does not report a lost peer to a rank
# that only receives.
SILENCE_SECONDS = 30.0


class Vote:
    """The votes as seen by one rank; ``original_rank`` and ``members`` are original ranks."""

    def __init__(self, store: Store, original_rank: int, size: int) -> None:
        self.store, self.original_rank, self.members = store, original_rank, list(range(size))
        self.number = 0
        self.answered = False
        self.lock = Lock()  # between the watchdog thread and the asking one
        self.deaths = 0
        self.next_heartbeat = 0.0
        self.heard: dict[int, tuple[bytes, float]] = {}  # latest heartbeats and when they came

    def key(self, word: str, rank: int | None = None) -> str:
        return f"vote {self.number} {word}" + ("" if rank is None else f" {rank}")

    def heartbeat(self) -> None:
        """Write a heartbeat, from the watchdog thread."""
        if (now := time.monotonic()) >= self.next_heartbeat:
            self.store.set(f"heartbeat {self.original_rank}", str(now))
            self.next_heartbeat = now + HEARTBEAT_SECONDS

    def suspicion(self, waited: float) -> str | None:
        """Return a reason to start a vote: an ended process, or a rank that is silent too long."""
        deaths = int(self.store.get(DEATHS)) if self.store.check([DEATHS]) else 0
        if deaths > self.deaths:
            self.deaths = deaths
            return "the launching process has seen it end"
        if waited < SILENCE_SECONDS:
            self.heard.clear()
            return None
        now = time.monotonic()
        for rank in self.members:
            key = f"heartbeat {rank}"
            heartbeat = self.store.get(key) if self.store.check([key]) else b""
            before, since = self.heard.get(rank, (None, now))
            if heartbeat != before:
                self.heard[rank] = heartbeat, now
            elif now - since > SILENCE_SECONDS:
                return f"rank {rank} has sent no heartbeat for {now - since:.0f} s"
        return None

    def start(self, why: str) -> None:
        self.store.compare_set(self.key("why"), "", why)

    def answer(self) -> bool:
        """Answer the current vote, if there is one that this rank has not answered yet."""
        if self.answered or not self.store.check([self.key("why")]):
            return False
        self.store.set(self.key("here", self.original_rank), "")
        self.answered = True
        return True

    def decide(self) -> tuple[list[int], str]:
        """Return the lost original ranks and the reason for the vote.

        Raises Aborted if a rank has failed, which explains the loss.
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

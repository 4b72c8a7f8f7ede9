"""Membership agreement: a rank that loses a connection starts a vote on the live ranks.

The run's store holds the reason for the vote, the answers and the decision. Each rank answers on
its watchdog thread, even during computations. The rank that started the vote waits until all
members have answered or are known to be dead, but at most ``vote_seconds``. The first proposed list
of live ranks is binding; a rank that answers too late is not on the list, is evicted and exits. If
a member on the list is found dead, another vote follows, so ranks may die at any time: before a
vote, during it, or while the survivors reconnect. If a run cannot continue without lost ranks, only
a lost connection starts a vote, and a rank may be silent for `network.timeout_seconds`.
"""

from __future__ import annotations

import json
import time
from threading import Lock

from torch.distributed.distributed_c10d import Store

from sgp_runner.core.survivors import LossDetection
from sgp_runner.utils import waits
from sgp_runner.utils.errors import Aborted, MembershipChanged

LOST = "lost"  # set in the store by a rank that fails because another rank is lost
DEAD = "dead"  # ranks whose processes have ended, written to the store by a launching process
CONCLUDED = "concluded"  # set once rank 0 has the results of the run
POLL_SECONDS = 0.05
HEARTBEATS = 6  # sent in ``silence_seconds``


class Vote:
    """The state of the votes on one rank; ``original_rank`` and ``members`` are original ranks.

    number: number of decided votes that this rank has seen
    answered: whether this rank has answered the current vote
    """

    def __init__(
        self, store: Store, original_rank: int, size: int, detection: LossDetection
    ) -> None:
        self.store, self.original_rank, self.members = store, original_rank, list(range(size))
        self.detection = detection
        self.number = 0
        self.answered = False
        self.lock = Lock()  # between the watchdog thread and the thread that asks
        self.next_heartbeat = 0.0
        self.heard: dict[int, tuple[bytes, float]] = {}  # latest heartbeats and when they came

    def key(self, word: str, rank: int | None = None) -> str:
        return f"vote {self.number} {word}" + ("" if rank is None else f" {rank}")

    def heartbeat(self) -> None:
        """Write a heartbeat if one is due; the watchdog thread calls this."""
        if (now := time.monotonic()) >= self.next_heartbeat:
            self.store.set(f"heartbeat {self.original_rank}", str(now))
            self.next_heartbeat = now + self.detection.silence_seconds / HEARTBEATS

    def suspicion(self, waited: float) -> str | None:
        """Return a reason to start a vote (a member is dead or silent for too long), else None."""
        if self.dead():
            return "the launching process has seen it end"
        if waited < self.detection.silence_seconds:
            self.heard.clear()
            return None
        now = time.monotonic()
        for rank in self.members:
            key = f"heartbeat {rank}"
            heartbeat = self.store.get(key) if self.store.check([key]) else b""
            before, since = self.heard.get(rank, (None, now))
            if heartbeat != before:
                self.heard[rank] = heartbeat, now
            elif now - since > self.detection.silence_seconds:
                return f"rank {rank} has sent no heartbeat for {now - since:.0f} s"
        return None

    def dead(self) -> list[int]:
        """Return the members whose processes have ended, as reported by their launchers."""
        ended = json.loads(self.store.get(DEAD)) if self.store.check([DEAD]) else []
        return [rank for rank in self.members if rank in ended]

    def start(self, why: str) -> None:
        self.store.compare_set(self.key("why"), "", why)

    def answer(self) -> bool:
        """Answer the current vote once, if there is one; return whether this call answered it."""
        if self.answered or not self.store.check([self.key("why")]):
            return False
        self.store.set(self.key("here", self.original_rank), "")
        self.answered = True
        return True

    def decide(self) -> tuple[list[int], str]:
        """Wait for the started vote; return the lost original ranks and the reason for the vote.

        Raises Aborted if a rank has failed, because its failure explains the loss. Raises
        MembershipChanged if the run has concluded.
        """
        with self.lock:
            self.answer()
        deadline = time.monotonic() + self.detection.vote_seconds
        while (
            not (self.complete() or self.concluded or self.store.check(["failed"]))
            and time.monotonic() < deadline
        ):
            time.sleep(POLL_SECONDS)
        if self.store.check(["failed"]):
            raise Aborted("another rank failed")
        if self.concluded and not self.decided:
            raise MembershipChanged("the run has concluded")
        return self.settle(self.present())

    def complete(self) -> bool:
        """Return whether the vote is decided or all live members have answered."""
        return self.decided or set(self.members) == {*self.answers(), *self.dead()}

    @property
    def decided(self) -> bool:
        return self.store.check([self.key("present")])

    def answers(self) -> list[int]:
        return [rank for rank in self.members if self.store.check([self.key("here", rank)])]

    def present(self) -> list[int]:
        """Return the members that have answered and are not known to be dead."""
        dead = self.dead()
        return [rank for rank in self.answers() if rank not in dead]

    def settle(self, present: list[int]) -> tuple[list[int], str]:
        """Propose ``present`` as the members, adopt the list proposed first, and end the vote.

        Returns the original ranks that are not on this list, and the reason for the vote.
        """
        agreed: list[int] = json.loads(
            self.store.compare_set(self.key("present"), "", json.dumps(present))
        )
        why = str(self.store.get(self.key("why")), "utf-8")
        gone = [rank for rank in self.members if rank not in agreed]
        with self.lock:
            waits.interrupt(None)  # before the watchdog thread can answer the next vote
            self.members, self.number, self.answered = agreed, self.number + 1, False
        return gone, why

    def conclude(self) -> None:
        """Record that rank 0 has the results, so that a rank lost later needs no vote."""
        self.store.set(CONCLUDED, "")

    @property
    def concluded(self) -> bool:
        return self.store.check([CONCLUDED])

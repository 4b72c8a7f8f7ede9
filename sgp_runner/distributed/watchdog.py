"""The thread of a real rank that looks after it: whether others have failed, are gone or wait too
long, and who answers a roll call.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING

from sgp_runner.utils.errors import Aborted, MembershipChanged, StallTimeout
from sgp_runner.utils.launchers import kept_elsewhere, launched, orphaned
from sgp_runner.utils.waits import interrupt, longest_wait, stall_report

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.scheduler import RealClock
    from sgp_runner.distributed.world import World
    from sgp_runner.elastic.membership import Membership
    from sgp_runner.elastic.vote import Vote

POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for closing files and the W&B mirror once another rank has failed


@dataclass
class Watchdog:
    """What the watching thread needs to know. world: the processes that are there now; None for one
    that is not needed any more.
    """

    world: World | None
    vote: Vote
    ended: Event = field(default_factory=Event)
    clock: RealClock | None = None
    on_tick: Callable[[], None] | None = None

    def attend(self, clock: RealClock | None, on_tick: Callable[[], None] | None = None) -> None:
        """From now on let errors out of ``clock``, and call ``on_tick`` twice a second."""
        self.clock, self.on_tick = clock, on_tick

    def reduce(self, membership: Membership) -> None:
        """To a membership that was smaller when it was saved."""
        from sgp_runner.distributed.processes import DistributedWorld

        assert isinstance(self.world, DistributedWorld)
        own = self.world.process_rank
        self.world = self.world.among(
            membership.original_ranks if own in membership.original_ranks else [own]
        )
        self.vote.members = list(membership.original_ranks)
        if own in membership.original_ranks:
            self.world.connect(membership.run.nodes)
        else:
            self.world = None


@contextmanager
def watching(watch: Watchdog, run: Run) -> Iterator[None]:
    """Answer roll calls, and stop this process when another rank has failed, it waits for too long,
    or whoever keeps the store is gone.
    """
    world, vote = watch.world, watch.vote
    assert world is not None

    def end(error: Exception) -> None:
        if watch.clock is not None:
            watch.clock.post_error(error)
        interrupt(error)
        if not watch.ended.wait(GRACE_SECONDS):
            sys.stdout.flush()
            os._exit(1)

    def look() -> None:
        told = False
        while not watch.ended.wait(POLL_SECONDS):
            try:
                if orphaned():
                    return end(Aborted("the launching process is gone"))
                if world.alarm.check(["failed"]):
                    return end(Aborted("another rank failed"))
                if not told and world.alarm.check(["stands still"]):
                    world.alarm.set(f"waits {world.process_rank}", stall_report())
                    told = True
                if longest_wait() > run.network.timeout_seconds:
                    if run.on_failure == "continue":
                        vote.start(
                            f"rank {world.process_rank} {stall_report()} (network.timeout_seconds)"
                        )
                    elif not told and world.alarm.add("errors", 1) == 1:
                        return end(report(world))
                if run.on_failure == "continue":
                    vote.heartbeat()
                    if (why := vote.suspicion(longest_wait())) is not None:
                        vote.start(why)
                with vote.lock:
                    if vote.answer():
                        interrupt(MembershipChanged("somebody asks who is still there"))
                        if run.on_failure == "continue" and watch.clock is not None:
                            watch.clock.post_error(
                                MembershipChanged("somebody asks who is still there")
                            )
                if watch.on_tick is not None:
                    watch.on_tick()
            except Exception:
                return end(store_is_gone(world))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        thread.join(
            GRACE_SECONDS
        )  # in the middle of a call to the store it would not survive the end of the interpreter


def store_is_gone(world: World) -> Exception:
    """Under srun rank 1 says so; mpirun says it itself, and ends all ranks."""
    process = launched()
    if kept_elsewhere() or world.process_rank != 1 or process is None or process.launcher != "srun":
        return Aborted("whoever kept the store is gone")
    sentence = "rank 0 is gone for good, which kept the store and the records of the run: nobody can go on without it."
    print(
        f"sgp-run: {sentence} The same command goes on from the last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    return Aborted(sentence)


def report(world: World) -> StallTimeout:
    """What every rank that still answers waits for, on stderr and, in short, for the launching
    process.
    """
    alarm, own = world.alarm, stall_report()
    alarm.set(f"waits {world.process_rank}", own)
    alarm.set("stands still", "")
    time.sleep(4 * POLL_SECONDS)
    answers = [
        str(alarm.get(key), "utf-8") if alarm.check([key := f"waits {rank}"]) else None
        for rank in range(world.size)
    ]
    lines = [f"  rank {rank} {answer or 'does not answer'}" for rank, answer in enumerate(answers)]
    print(
        "\n".join(["The run stands still:", *lines]), file=sys.__stderr__, flush=True
    )  # not into the progress display, if there is one
    silent = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None)
    sentence = f"the run stood still (network.timeout_seconds): rank {world.process_rank} {own}"
    sentence += f"; rank {silent} does not answer." if silent else "."
    alarm.set("failed", sentence)
    return StallTimeout(sentence)

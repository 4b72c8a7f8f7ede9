"""Watchdog of a real rank: a thread that detects failures, losses and stalls, and votes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import NoReturn

from sgp_runner.config.experiment import Experiment
from sgp_runner.core.scheduler import RealClock
from sgp_runner.distributed.vote import Vote
from sgp_runner.distributed.world import World
from sgp_runner.recording.checkpoint import resume_hint, stopped_unsaved
from sgp_runner.utils import signals
from sgp_runner.utils.errors import Aborted, MembershipChanged, StallTimeout
from sgp_runner.utils.launchers import kept_elsewhere, orphaned
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import duration
from sgp_runner.utils.waits import interrupt, interruption, longest_wait, stall_report

POLL_SECONDS = 0.5
VOTE_STARTED = "a vote on the live ranks has started"
SIGNAL = "signal"  # key in the store of the signal that ends all ranks, unsaved
CAME, BUILT = "came", "built"  # number of ranks that are up; set once rank 0 is ready to train
REPORTED = "signal reported"  # set by the rank that has reported it
REPORT_SECONDS = 5.0  # for rank 0 to report it
IDLE_SHARE = 0.01  # of a processor: a rank that computes less does nothing
GRACE_SECONDS = 3.0  # to close files and the W&B mirror once another rank has failed
ANSWER_SECONDS = 20.0  # for the other ranks to read or to write something in the store


@dataclass
class Watchdog:
    """State of the watchdog thread.

    world: the current processes
    begun: whether this rank has taken a step
    alive: time at which this rank, before its first step, last computed or waited for others
    computed: CPU seconds of all threads except the watchdog's, until ``alive``
    """

    world: World
    vote: Vote
    experiment: Experiment
    start_seconds: float  # how long this rank may stand still before its first step
    ended: Event = field(default_factory=Event)
    reporting: Lock = field(default_factory=Lock)  # taken by the thread that reports a lost store
    clock: RealClock | None = None
    on_tick: Callable[[], None] | None = None
    begun: Callable[[], bool] = lambda: False
    alive: float = field(default_factory=time.monotonic)
    computed: float = 0.0

    def follow(self, clock: RealClock | None, on_tick: Callable[[], None] | None = None) -> None:
        """Post errors to ``clock`` from now on, and call ``on_tick`` twice a second."""
        self.clock, self.on_tick = clock, on_tick
        # An error may have come before there was a clock.
        if clock is not None and (error := interruption()) is not None:
            clock.post_error(error)

    def idle_seconds(self) -> float:
        """Return how long this rank has made no progress before its first step; call it often."""
        now, computed = time.monotonic(), time.process_time() - time.thread_time()
        busy = computed - self.computed > IDLE_SHARE * (now - self.alive)
        if busy or longest_wait() or self.begun():
            self.alive, self.computed = now, computed
        return now - self.alive

    def longest_allowed_wait(self) -> float:
        """Return how many seconds this rank may wait for others; longer while they start."""
        timeout_seconds = self.experiment.run.network.timeout_seconds
        return timeout_seconds if self.begun() else max(timeout_seconds, self.start_seconds)


@contextmanager
def watching(watch: Watchdog) -> Iterator[None]:
    """Run the watchdog thread, which votes and ends this process in five cases.

    The cases are the failure of another rank, a signal to any rank outside training, too long a
    wait, a rank without progress before its first step, and the loss of the store.
    """
    world, vote, run = watch.world, watch.vote, watch.experiment.run

    def end(error: Exception) -> None:
        if watch.clock is not None:
            watch.clock.post_error(error)
        interrupt(error)
        if not watch.ended.wait(GRACE_SECONDS):
            leave(watch)
            sys.stdout.flush()
            os._exit(1)

    def poll() -> None:
        reported = False
        while not watch.ended.wait(POLL_SECONDS):
            try:
                if orphaned():
                    return end(Aborted("the launching process is gone"))
                if world.alarm.check(["failed"]):
                    return end(Aborted("another rank failed"))
                if (number := signal_for_all(world)) is not None:
                    end_all(watch, number)
                if not reported and world.alarm.check(["stalled"]):
                    world.alarm.set(f"waits {world.process_rank}", stall_report())
                    reported = True
                if longest_wait() > watch.longest_allowed_wait():
                    if run.on_failure == "continue":
                        vote.start(
                            f"rank {world.process_rank} {stall_report()} (network.timeout_seconds)"
                        )
                    elif not reported and world.alarm.add("errors", 1) == 1:
                        return end(report(world))
                if watch.idle_seconds() > watch.start_seconds:
                    return end(stands_still(watch))
                take_part_in_votes(watch, world.process_rank)
                if watch.on_tick is not None:
                    watch.on_tick()
            except Exception:
                return end(store_is_gone(watch))

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        # A thread inside a call to the store would crash at the end of the interpreter.
        thread.join(GRACE_SECONDS)


def take_part_in_votes(watch: Watchdog, process_rank: int) -> None:
    """Answer a started vote; with on_failure=continue, start one if a rank seems lost."""
    vote, survives = watch.vote, watch.experiment.run.on_failure == "continue"
    if survives:
        vote.heartbeat()
        with vote.lock:  # or a suspicion could become the next vote
            if (why := vote.suspicion(longest_wait())) is not None:
                vote.start(why)
        if process_rank != 0 and vote.concluded:
            interrupt(MembershipChanged("the run has concluded"))
    with vote.lock:
        if vote.answer():
            interrupt(MembershipChanged(VOTE_STARTED))
            if survives and watch.clock is not None:
                watch.clock.post_error(MembershipChanged(VOTE_STARTED))


def signal_for_all(world: World) -> int | None:
    """Return the signal that this or another rank has received outside training, if any."""
    if world.alarm.check([SIGNAL]):
        return int(world.alarm.get(SIGNAL))
    return signals.signal_state.pending


def end_all(watch: Watchdog, number: int) -> NoReturn:
    """End this process, and through their watchdogs all others, on the signal ``number``.

    Rank 0 reports. The others wait for that report, since a launcher may kill rank 0 when they end,
    and report themselves if none comes.
    """
    world = watch.world
    with suppress(Exception):  # the store may be gone
        world.alarm.set(SIGNAL, str(number))
        if not signals.signal_state.reports:
            world.alarm.wait([REPORTED], timedelta(seconds=REPORT_SECONDS))
            signals.signal_state.command = ""
        else:
            signals.report(stopped_unsaved(number, watch.experiment))
        world.alarm.set(REPORTED, "")
    leave(watch)
    outlast(watch)
    signals.exit_now(number)


def leave(watch: Watchdog) -> None:
    """Record that this rank no longer needs the store."""
    with suppress(Exception):  # the store may be gone
        watch.world.alarm.set(f"left {watch.vote.original_rank}", "")


def outlast(watch: Watchdog) -> None:
    """Wait until the other ranks have read why the run ends, if this rank hosts the store."""
    others = [f"left {rank}" for rank in watch.vote.members if rank != 0]
    if watch.vote.original_rank == 0 and others and not kept_elsewhere():
        wait_for(watch.world, others)


def wait_for(world: World, keys: list[str]) -> None:
    """Wait until all ``keys`` are in the store, for at most `ANSWER_SECONDS`."""
    with suppress(Exception):  # a rank that was killed writes none
        world.alarm.wait(keys, timedelta(seconds=ANSWER_SECONDS))


@contextmanager
def noticing_a_lost_store(watch: Watchdog) -> Iterator[None]:
    """Raise the error for a lost store, which the main thread may notice before the watchdog."""
    from torch.distributed import DistNetworkError, DistStoreError

    try:
        yield
    except (DistNetworkError, DistStoreError) as error:
        raise store_is_gone(watch) from error


def store_is_gone(watch: Watchdog) -> Exception:
    """Return the error for a lost store, which rank 1 reports."""
    world = watch.world
    if world is None or kept_elsewhere() or world.process_rank != 1:
        return Aborted("the host of the store is lost")
    sentence = "rank 0, which hosts the store and the records of the run, is lost."
    if watch.reporting.acquire(blocking=False):
        logger.error(f"{sentence} {resume_hint(watch.experiment)}")
    return Aborted(sentence)


def report(world: World) -> StallTimeout:
    """Print the stall report of all ranks to stderr and return its summary as an error."""
    alarm, line = world.alarm, stall_report()
    alarm.set(f"waits {world.process_rank}", line)
    alarm.set("stalled", "")
    wait_for(world, [f"waits {rank}" for rank in range(world.size)])
    answers = [
        str(alarm.get(key), "utf-8") if alarm.check([key := f"waits {rank}"]) else None
        for rank in range(world.size)
    ]
    lines = [f"  rank {rank} {answer or 'does not answer'}" for rank, answer in enumerate(answers)]
    logger.critical("\n".join(["The run stalled:", *lines]))
    silent = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None)
    sentence = f"the run stalled (network.timeout_seconds): rank {world.process_rank} {line}"
    sentence += f"; rank {silent} does not answer." if silent else "."
    alarm.set("failed", sentence)
    return StallTimeout(sentence)


def stands_still(watch: Watchdog) -> Exception:
    """Report and return the error of this rank, since its main thread may never do so."""
    world = watch.world
    sentence = (
        f"rank {world.process_rank} has done nothing for "
        f"{duration(watch.start_seconds)} before its first step "
        "(network.start_timeout_seconds): its data, model or algorithm is blocked; "
        "fix that, or increase the limit."
    )
    if world.alarm.add("errors", 1) > 1:
        return Aborted("another rank failed")
    signals.report(sentence)
    world.alarm.set("failed", sentence)
    return StallTimeout(sentence)

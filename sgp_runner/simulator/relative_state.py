"""The state of a simulation relative to a time and a step, for detecting repetitions.

Times of symmetric machines differ by rounding. States are therefore taken once all events at or
shortly after the time have happened, and compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sgp_runner.core.worker import Worker
from sgp_runner.simulator.fabric import Sent
from sgp_runner.simulator.simulation import Simulation

TOLERANCE = 1e-13  # of differences between times, relative to the time since the start

#: What is pending and where, and when: seconds from the time of the state.
Pending = tuple[tuple[Any, ...], list[float]]


@dataclass(frozen=True)
class RelativeState:
    """The state of a simulation after rank 0 has begun a step.

    step, time: number of the step, and simulated seconds at its start
    num_bytes: bytes that each rank has sent
    coding_seconds: seconds that each rank has coded
    pending: pending events, messages and collectives with their times, sorted
    """

    step: int
    time: float
    num_bytes: Sequence[int]
    coding_seconds: Sequence[float]
    pending: Sequence[Pending]

    def equals(self, other: RelativeState) -> bool:
        """Return whether both states have the same pending entries at the same relative times."""
        most = TOLERANCE * max(self.time, other.time)
        return len(self.pending) == len(other.pending) and all(
            what == same and all(abs(a - b) <= most for a, b in zip(times, others, strict=True))
            for (what, times), (same, others) in zip(self.pending, other.pending, strict=True)
        )


def relative_state(simulation: Simulation, workers: Sequence[Worker], time: float) -> RelativeState:
    """Return the state of a simulation that has `OwnProcessors` and no faults or servers."""
    pending = [
        *events(simulation, time),
        *interfaces(simulation, time),
        *channels(simulation, time),
        *collectives(simulation, workers[0], time),
        *coroutines(simulation, workers),
    ]
    return RelativeState(
        workers[0].step,
        time,
        [worker.comm.num_bytes_sent for worker in workers],
        [*simulation.coding_seconds],
        sorted(pending),
    )


def events(simulation: Simulation, now: float) -> Iterator[Pending]:
    """Yield the clock's events without step and collective numbers, which grow."""
    for time, _, event, (first, *others) in simulation.clock.events:
        if isinstance(first, Sent):
            length = first.message.numel()
            what: tuple[Any, ...] = (event, first.src, first.dst, first.tag, length)
            yield what, [time - now, *map(float, others)]
        else:
            rank = others[0] if event == "joins" else first
            by_rank = event in ("joins", "gradient ends", "wakes", "coded")
            yield (event, rank) if by_rank else (event,), [time - now]


def interfaces(simulation: Simulation, now: float) -> Iterator[Pending]:
    """Yield the times at which each interface, region link and processor becomes free."""
    fabric, compute = simulation.fabric, simulation.machines.compute
    for name, free in (
        ("sends", fabric.tx_free),
        ("receives", fabric.rx_free),
        ("leaves", fabric.leave_free),
        ("enters", fabric.enter_free),
        ("computes", compute.busy_until),
    ):
        yield (name,), recent(simulation, free, now)
    for name, until in (("gradients", compute.computing_until), ("codes", compute.coded_until)):
        yield (name,), [max(time - now, 0.0) for time in until]


def recent(simulation: Simulation, times: Iterable[float], now: float) -> list[float]:
    """Return times relative to ``now``, in seconds; times too old to have an effect become equal.

    Input and collectives may begin before now, but by no more than two gradients.
    """
    longest = max(simulation.machines.durations.mean_seconds)
    least = -2 * longest - simulation.machines.model.cluster.compute.input_seconds
    return [time - now if time - now > least else least for time in times]


def channels(simulation: Simulation, now: float) -> Iterator[Pending]:
    """Yield the streams with a message in flight."""
    least = TOLERANCE * now
    for src, by_receiver in enumerate(simulation.fabric.channels):
        for dst, channel in by_receiver.items():
            reach, arrival = channel.reach - now, channel.arrival - now
            if reach > least or arrival > least:
                yield ("stream", src, dst), [max(reach, 0.0), max(arrival, 0.0)]


def collectives(simulation: Simulation, first: Worker, now: float) -> Iterator[Pending]:
    """Yield the collectives that have not ended, numbered from the next one of rank 0."""
    for collective in simulation.machines.collectives.under_way.values():
        number = collective.number - first.comm.collectives
        what = ("collective", number, collective.gathers, sorted(collective.missing))
        times = recent(simulation, (collective.begin, collective.ready, collective.end), now)
        yield what, [*times, collective.num_bytes]


def coroutines(simulation: Simulation, workers: Sequence[Worker]) -> Iterator[Pending]:
    """Yield the visible state of the workers' coroutines."""
    step, number = workers[0].progress.step, workers[0].comm.collectives
    for worker in workers:
        progress, comm = worker.progress, worker.comm
        counts = progress.step - step, progress.gradients - step, comm.collectives - number
        unread = sorted((*key, len(queue)) for key, queue in comm.mailbox.queues.items())
        yield ("worker", worker.rank, *counts, unread, sorted(comm.mailbox.waiting)), []
    for rank, gradient in simulation.gradients:
        yield ("gradient", rank, gradient - workers[rank].progress.gradients), []
    yield ("coroutines", len(simulation.scheduler.tasks)), []

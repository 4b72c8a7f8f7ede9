"""State dictionaries: what was saved is there again, and a collective under way is plain data."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_simulator import Custom
from tiny import machines, run

from sgp_runner.cluster.faults import Faults
from sgp_runner.core.scheduler import Call, Future, VirtualClock, resolved
from sgp_runner.core.state import futures_in, packed, unpacked
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.collective import CollectiveEnds, Contribute, Reduced
from sgp_runner.simulator.compute import Computed, GradientEnds, Served, Taken
from sgp_runner.simulator.fabric import Cross, Fabric, Reach, Sent
from sgp_runner.simulator.machines import EVENTS, Wakes
from sgp_runner.simulator.processors import NoOp, TaskEnds


def reloaded(state: Any) -> Any:
    """As it comes from a file, in which nothing is but tensors and plain data."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_collective_under_way_is_saved_by_its_number_and_with_its_value_if_it_has_ended() -> None:
    pending: Future[torch.Tensor] = Future(("all-reduce", 7, {1, 2}))
    ended: Future[torch.Tensor] = Future(("all-reduce", 6, None))
    ended.value, ended.done = torch.tensor([2.0]), True
    state = unpacked(
        reloaded(packed({"pipeline": [pending, ended], "count": 3, "pairs": [(1, 2)]}))
    )
    assert (state["count"], state["pairs"]) == (3, [(1, 2)])
    first, second = state["pipeline"]
    assert not first.done and first.what[1] == 7
    assert second.done and second.value.tolist() == [2.0] and second.what[1] == 6
    assert list(futures_in(state)) == [first, second]


def test_a_worker_that_loads_the_state_of_another_has_the_same_state() -> None:
    async def body(worker: Worker) -> None:
        worker.keep("average", worker.params.clone)
        worker.keep("expected", lambda: [(0, 1)])
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()))
            worker.observe("staleness", 2.0)
            worker.comm.send(1 - worker.rank, torch.tensor([float(worker.step)]))
            if worker.step == 1:
                states[worker.rank] = reloaded(worker.state_dict())
            if worker.step:
                await worker.comm.recv(1 - worker.rank)
        await worker.comm.recv(1 - worker.rank)

    states: dict[int, Any] = {}
    run(Custom(body), 2, 3, cluster=machines(latency=0.1))
    fresh = run(Custom(nothing), 2, 3).workers[0]
    fresh.load_state_dict(states[0])
    assert str(fresh.state_dict()) == str(states[0])
    assert (
        fresh.steps_taken == 2
        and fresh.comm.num_bytes_sent == 8
        and len(states[0]["comm"]["mailbox"]) == 1
    )


async def nothing(worker: Worker) -> None:
    """Takes no step."""


def test_events_are_saved_with_all_that_they_say() -> None:
    message = torch.tensor([1.0, 2.0])
    clock = VirtualClock(None)
    events = [
        GradientEnds(0, 3),
        Wakes(2, 1),
        Contribute(4, 1, 2, 80.0, 1.5),
        CollectiveEnds(4),
        Reach(Sent(0, 1, 5, message), 0.5, 0.25),
        Cross(Sent(0, 1, 5, message), 8.0, 0.5, leaves=True),
        Sent(0, 1, 5, message),
        Computed(0, 3, 1.5, (4, 80.0), 0.5),
        Taken(Sent(0, 1, 5, message), 2.5),
        Reduced(4),
        TaskEnds(0, 7),
        NoOp(),
        Served(Sent(0, 2, 0, message)),
    ]
    for seconds, event in enumerate(events):
        clock.at(float(seconds), event)
    again = VirtualClock(None)
    again.load_state_dict(reloaded(clock.state_dict()), EVENTS)
    assert str(again.state_dict()) == str(clock.state_dict())
    assert [type(event) for _, _, event in sorted(again.events)] == [
        type(event) for event in events
    ]
    assert EVENTS.keys() == {event.kind for event in events}
    clock.at(99.0, Call(print))
    with pytest.raises(TypeError, match="^a call cannot be saved$"):
        clock.state_dict()


def test_a_fabric_that_loads_a_state_delivers_when_the_other_one_does() -> None:
    def network() -> tuple[VirtualClock, Fabric, list[tuple[int, float]]]:
        arrived: list[tuple[int, float]] = []
        clock = VirtualClock(holder := SimpleNamespace())
        cluster = machines(bandwidth=8.0, latency=10.0)
        holder.fabric = Fabric(
            cluster, Faults(), clock, 3, lambda sent: arrived.append((sent.tag, clock.now))
        )
        return clock, holder.fabric, arrived

    clock, fabric, arrived = network()
    for tag, (src, dst, num_bytes) in enumerate([(0, 1, 5.0), (2, 1, 3.0), (0, 1, 2.0)]):
        fabric.transmit(Sent(src, dst, tag, torch.zeros(0)), num_bytes)
    clock.advance()
    later, other, arrived_later = network()
    later.load_state_dict(reloaded(clock.state_dict()), EVENTS)
    other.load_state_dict(reloaded(fabric.state_dict()))
    for each in (clock, later):
        while each.advance():
            pass
    assert arrived == arrived_later == [(0, 15.0), (1, 18.0), (2, 20.0)]


def test_a_collective_that_finishes_its_value_is_saved_finished_and_once() -> None:
    calls: list[int] = []

    def finish(value: int) -> int:
        calls.append(value)
        return value + 1

    future: Future[int] = Future(("all-reduce", 3, None), finish)
    future.value, future.done = 1, True
    assert list(packed(future).values()) == [3, 2]
    assert (future.result(), calls) == (2, [1])


def test_a_resolved_future_needs_no_wait() -> None:
    async def value() -> int:
        return await resolved(3)

    with pytest.raises(StopIteration) as stop:
        value().send(None)
    assert stop.value.value == 3

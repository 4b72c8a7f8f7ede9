"""State dictionaries: what was saved is there again, and a collective under way is plain data."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from helpers.clusters import changed
from helpers.tiny import machines, run
from test_simulator import Custom

from sgp_runner.cluster.faults import Faults
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Future, Scheduler, VirtualClock, resolved
from sgp_runner.core.state import futures_in, packed, unpacked
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.fabric import Fabric, Sent, packed_events, unpacked_events

MESSAGE = torch.tensor([1.0, 2.0])


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
        worker.state("average", worker.params.clone)
        worker.state("expected", lambda: [(0, 1)])
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()))
            worker.log("staleness", 2.0)
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


#: The fields of each kind of event in a checkpoint, in their order.
FIELDS: dict[str, dict[str, Any]] = {
    "gradient ends": {"rank": 0, "step": 3},
    "wakes": {"rank": 2, "number": 1},
    "joins": {"number": 4, "rank": 1, "step": 2, "num_bytes": 80.0, "ready": 1.5},
    "collective ends": {"number": 4},
    "reach": {"sent": (0, 1, 5, MESSAGE), "seconds": 0.5, "late": 0.25},
    "cross": {"sent": (0, 1, 5, MESSAGE), "num_bytes": 8.0, "tail": 0.5, "leaves": True},
    "arrive": {"sent": (0, 1, 5, MESSAGE)},
    "computed": {"rank": 0, "step": 3, "began": 1.5, "joins": (4, 80.0), "left": 0.5},
    "taken": {"sent": (0, 1, 5, MESSAGE), "arrival": 2.5},
    "reduced": {"number": 4},
    "task ends": {"host": 0, "turn": 7},
    "nothing": {},
    "served": {"sent": (0, 2, 0, MESSAGE)},
    "announce": {"src": 0},
    "leaves": {"sent": (0, 1, 5, MESSAGE), "num_bytes": 8.0},
    "coding done": {"rank": 0, "number": 1, "what": "encode", "begin": 1.5},
    "coded": {"rank": 0, "number": 1, "what": "encode", "begin": 1.5},
}


def test_events_are_saved_with_their_arguments_by_name() -> None:
    shared = changed(machines(), cores_per_host=1)
    clock = run(Custom(nothing), 2, 3, cluster=shared).simulation.clock
    assert clock.handlers.keys() == {"call", *FIELDS}
    saved = [(float(n), n, *field) for n, field in enumerate(FIELDS.items())]
    assert str(packed_events(clock, unpacked_events(saved))) == str(saved)


def test_a_fabric_that_loads_a_state_delivers_when_the_other_one_does() -> None:
    def network() -> tuple[VirtualClock, Fabric, list[tuple[int, float]]]:
        arrived: list[tuple[int, float]] = []
        clock = VirtualClock()
        links = machines(bandwidth=8.0, latency=10.0).links
        fabric = Fabric(
            links, Faults(), clock, 3, lambda sent: arrived.append((sent.tag, clock.now))
        )
        return clock, fabric, arrived

    clock, fabric, arrived = network()
    for tag, (src, dst, num_bytes) in enumerate([(0, 1, 5.0), (2, 1, 3.0), (0, 1, 2.0)]):
        fabric.transmit(Sent(src, dst, tag, torch.zeros(0)), num_bytes)
    clock.advance()
    later, other, arrived_later = network()
    later.now, later.events = (
        clock.now,
        unpacked_events(reloaded(packed_events(clock, clock.events))),
    )
    other.load_state_dict(reloaded(fabric.state_dict()))
    for either in (clock, later):
        while either.advance():
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


def test_messages_of_a_tag_are_polled_in_the_order_of_arrival() -> None:
    mailbox = Mailbox(Scheduler(VirtualClock()))
    for number, (src, tag) in enumerate([(2, 0), (2, 0), (1, 0), (0, 5), (2, 0), (1, 0)]):
        mailbox.deliver(src, tag, torch.tensor(number))
    assert int(mailbox.poll(1, 0)) == 2  # type: ignore[arg-type]
    polled = [(src, int(message)) for src, message in iter(lambda: mailbox.poll_any(0), None)]
    assert polled == [(2, 0), (2, 1), (2, 4), (1, 5)]
    assert mailbox.unread() == [(0, 5, 1)]

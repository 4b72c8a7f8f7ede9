"""The simulated machines: literal times of messages and collectives, and every misuse that must not
pass silently.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers.clusters import changed, cluster_of
from helpers.refusals import refusal
from helpers.tiny import D, machines, run, sgd
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.cluster.collectives import CollectiveAlgorithm
from sgp_runner.cluster.compute_variation import ConstantTime, GammaTime, LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.scheduler import Deadlock, VirtualClock
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.engine import Gradient, Loop
from sgp_runner.simulator.fabric import Fabric, Sent
from sgp_runner.simulator.simulation import LeftInFlight
from sgp_runner.topology.graphs import DirectedExponential, Phase, Ring
from sgp_runner.utils.errors import RankFailed

Body = Callable[[Worker], Awaitable[None]]


@dataclass(frozen=True)
class Custom:
    """An algorithm made of one coroutine function."""

    body: Body
    title: ClassVar[str] = "Custom"
    asynchronous: ClassVar[bool] = False
    servers: ClassVar[int] = 0

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Anything goes."""

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1)]

    async def run(self, worker: Worker) -> None:
        await self.body(worker)


def network(
    nodes: int = 3, faults: Faults | None = None, **changes: Any
) -> tuple[VirtualClock, Fabric]:
    """One byte takes 1 s, the first bit 10 s."""
    clock, made = VirtualClock(), changed(machines(bandwidth=8.0, latency=10.0), **changes)
    return clock, Fabric(made.links, faults or Faults(), clock, nodes, lambda sent: None, 5)


def arrivals(clock: VirtualClock, fabric: Fabric, *messages: tuple[int, int, float]) -> list[float]:
    times: dict[int, float] = {}
    fabric.deliver = lambda sent: times.__setitem__(sent.tag, clock.now)
    for number, (src, dst, num_bytes) in enumerate(messages):
        fabric.transmit(Sent(src, dst, number, torch.zeros(0)), num_bytes)
    while clock.advance():
        pass
    assert fabric.in_flight == 0
    return [times[number] for number in range(len(messages))]


THREE_TIMES, TEN_TIMES = Faults({}, {1: 3.0}), Faults({}, {1: 10.0})  # slower at node 1


@pytest.mark.parametrize(
    ("how", "messages", "times"),
    [
        # A message takes latency and its bytes.
        ({}, [(0, 1, 5)], [15.0]),
        # Two messages share their sender's queue, or their receiver's.
        ({}, [(0, 1, 5), (0, 2, 3)], [15.0, 18.0]),
        ({}, [(0, 2, 5), (1, 2, 3)], [15.0, 18.0]),
        # Both directions are free at once only in full duplex; else receiving waits until sending
        # is over.
        ({}, [(0, 1, 5), (1, 0, 5)], [15.0, 15.0]),
        ({"duplex": "half"}, [(0, 1, 20), (1, 0, 20)], [40.0, 40.0]),
        # Overhead delays each message.
        ({"message_overhead_seconds": 2.0}, [(0, 1, 5), (0, 1, 5)], [17.0, 24.0]),
        # A slow link slows both directions.
        ({"faults": THREE_TIMES}, [(0, 1, 5), (2, 0, 5)], [25.0, 15.0]),
        ({"faults": THREE_TIMES}, [(1, 2, 5)], [25.0]),
        # It does not hold up messages between others, and those over itself take turns.
        ({"faults": TEN_TIMES}, [(1, 2, 5), (0, 2, 5)], [60.0, 20.0]),
        ({"faults": TEN_TIMES}, [(0, 1, 5), (0, 2, 5)], [60.0, 20.0]),
        ({"faults": TEN_TIMES}, [(0, 1, 5), (2, 1, 5)], [60.0, 110.0]),
        ({"faults": TEN_TIMES}, [(1, 0, 5), (1, 2, 5)], [60.0, 110.0]),
    ],
)
def test_messages_arrive_after_latency_bytes_and_the_queues_of_both_ends(
    how: dict[str, Any], messages: list[tuple[int, int, float]], times: list[float]
) -> None:
    assert arrivals(*network(**how), *messages) == times


@pytest.mark.parametrize(
    ("collective", "seconds"),
    # 1 s of latency, 8 s for the whole vector on one link
    [
        ("ring", {1: 0.0, 2: 2 * 1 * (1 + 4.0), 4: 2 * 3 * (1 + 2.0), 5: 2 * 4 * (1 + 1.6)}),
        ("recursive_doubling", {1: 0.0, 2: 9.0, 4: 18.0, 5: 27.0}),
        ("halving_doubling", {1: 0.0, 2: 2 + 8.0, 4: 4 + 12.0, 5: 6 + 12.8}),
        ("tree", {1: 0.0, 2: 18.0, 4: 36.0, 5: 54.0}),
    ],
)
def test_costs_of_an_all_reduce(collective: CollectiveAlgorithm, seconds: dict[int, float]) -> None:
    cluster = cluster_of({"default": 1.0}, ConstantTime(), 8.0, 1.0, {}, collective=collective)
    assert {n: pytest.approx(cluster.all_reduce_seconds(n, 8.0)) for n in seconds} == seconds


def test_all_reduce_bytes_per_node() -> None:
    ring = cluster_of({"default": 1.0}, ConstantTime(), 8.0, 1.0, {})
    doubling = cluster_of(
        {"default": 1.0}, ConstantTime(), 8.0, 1.0, {}, collective="recursive_doubling"
    )
    assert ring.all_reduce_bytes(4, 100.0) == 150.0
    assert doubling.all_reduce_bytes(4, 100.0) == 200.0


@pytest.mark.parametrize(
    ("overlap", "seconds"),
    [(0.0, 10 + 4), (0.5, max(10.0, 5 + 4) + 1), (0.9, max(10.0, 1 + 4) + 1)],
)
def test_an_all_reduce_overlaps_the_backward_pass_but_for_its_last_bucket(
    overlap: float, seconds: float
) -> None:
    """A gradient takes 10 s, its all-reduce 4 s; a bucket is a quarter of the vector."""
    num_bytes = D * 8
    cluster = cluster_of(
        {"default": 10.0},
        ConstantTime(),
        num_bytes * 8 / 4.0,
        0.0,
        {},
        overlap=overlap,
        bucket_bytes=num_bytes // 4,
    )
    assert run(ARSGD(), 2, 1, cluster=cluster).simulation.clock.now == pytest.approx(seconds)


def test_an_all_reduce_waits_for_the_slowest_and_for_its_link() -> None:
    cluster = machines(bandwidth=D * 8 * 8 / 4.0)  # 4 s on two nodes
    assert [
        run(ARSGD(), 2, 3, cluster=cluster, faults=faults).simulation.clock.now
        for faults in (Faults(), Faults({0: 6.0}, {}), Faults({}, {1: 2.0}))
    ] == pytest.approx([3 * 5.0, 3 * 10.0, 3 * 9.0])


@pytest.mark.parametrize(
    ("law", "cv"), [(LogNormalTime(0.3), 0.3), (GammaTime(100.0), 0.1), (GammaTime(4.0), 0.5)]
)
def test_compute_times_have_the_mean_and_spread_they_promise(
    law: LogNormalTime | GammaTime, cv: float
) -> None:
    times = np.array(law.sample(2.0, np.random.default_rng(0), 40_000))
    assert times.mean() == pytest.approx(2.0, rel=0.01)
    assert times.std() / times.mean() == pytest.approx(cv, rel=0.03)


def test_node_factors_and_faults_multiply() -> None:
    result = run(
        OSGP(DirectedExponential(), tau=100),
        3,
        4,
        cluster=machines(factors={1: 2.0}),
        faults=Faults({1: 1.5, 2: 4.0}, {}),
    )
    ends = {rank: max(time for time, r, _ in result.trace if r == rank) for rank in range(3)}
    assert ends == {0: 4.0, 1: 12.0, 2: 16.0}


async def wait_in_a_circle(worker: Worker) -> None:
    await worker.comm.recv((worker.rank + 1) % worker.size)


async def two_of_three_average(worker: Worker) -> None:
    if worker.rank == 1:
        await worker.comm.recv_any(tag=7)
    await worker.comm.all_reduce(worker.params.clone())


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (
            wait_in_a_circle,
            [
                "  rank 0 waits for a message from rank 1",
                "  rank 1 waits for a message from rank 0",
            ],
        ),
        (
            two_of_three_average,
            [
                "  rank 0 waits for all-reduce 0, which ranks [1] have not joined",
                "  rank 1 waits for a message from any rank (tag 7)",
                "  rank 2 waits for all-reduce 0, which ranks [1] have not joined",
            ],
        ),
    ],
)
def test_workers_that_wait_for_each_other_are_a_deadlock(body: Body, waits: list[str]) -> None:
    with pytest.raises(Deadlock) as deadlock:
        run(Custom(body), len(waits), 1)
    assert str(deadlock.value).splitlines() == ["deadlock: every worker is blocked.", *waits]


async def writes_while_a_message_travels(worker: Worker) -> None:
    if worker.rank == 0:
        worker.comm.send(1, worker.params)
        worker.params.add_(1)
    else:
        await worker.comm.recv(0)


async def writes_while_a_message_lies_unread(worker: Worker) -> None:
    if worker.rank == 0:
        worker.comm.send(1, worker.params)
        await worker.grad(worker.params.clone())
        worker.params.add_(1)
    else:
        await worker.grad()
        await worker.grad()
        await worker.comm.recv(0)


async def writes_to_what_is_averaged(worker: Worker) -> None:
    mean = worker.comm.all_reduce(worker.params)
    worker.params.add_(1)
    await mean


async def writes_while_a_gradient_is_computed(worker: Worker) -> None:
    gradient = worker.grad()
    worker.params.add_(1)
    await gradient


async def leaves_a_message_unread(worker: Worker) -> None:
    if worker.rank == 0:
        worker.comm.send(1, torch.zeros(1), tag=3)
    await worker.grad()


async def awaits_no_all_reduce(worker: Worker) -> None:
    worker.comm.all_reduce(worker.params.clone())
    await worker.grad()


@pytest.mark.parametrize(
    ("body", "cluster", "error", "sentence"),
    [
        (
            writes_while_a_message_travels,
            machines(latency=1.0),
            Exception,
            "a message from rank 0 to rank 1 .*was written to after being handed over",
        ),
        (
            writes_while_a_message_lies_unread,
            machines(),
            RankFailed,
            "rank 1, step -1: WrittenAfterSend: a message from rank 0 .*pass a clone",
        ),
        (
            writes_to_what_is_averaged,
            machines(),
            Exception,
            "the tensor that rank 0 passed to all-reduce 0 was written to",
        ),
        (
            writes_while_a_gradient_is_computed,
            machines(),
            Exception,
            "the parameter vector of rank 0, at which gradient 0 is being computed, was written to",
        ),
        (
            leaves_a_message_unread,
            machines(),
            LeftInFlight,
            r"rank 1 did not receive 1 message\(s\) from rank 0 \(tag 3\)",
        ),
        (
            leaves_a_message_unread,
            machines(latency=5.0),
            LeftInFlight,
            r"1 message\(s\) are still in flight",
        ),
        (
            awaits_no_all_reduce,
            machines(bandwidth=1.0),
            LeftInFlight,
            "all-reduce 0 has not ended",
        ),
    ],
)
def test_a_misuse_is_caught(
    body: Body, cluster: Cluster, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        run(Custom(body), 2, 1, cluster=cluster)


def test_an_error_names_its_rank_and_step() -> None:
    async def fails(worker: Worker) -> None:
        for k in worker.steps():
            await worker.grad()
            if worker.rank == 1 and k == 2:
                raise KeyError("missing")

    with pytest.raises(RankFailed, match="^rank 1, step 2: KeyError: 'missing'$"):
        run(Custom(fails), 3, 5)


def test_messages_of_one_pair_arrive_in_order_whatever_their_size_and_tags_keep_apart() -> None:
    got: list[tuple[int, float]] = []

    async def orderly(worker: Worker) -> None:
        if worker.rank == 0:
            for value, length, tag in ((1, 100, 0), (2, 1, 0), (3, 1, 1)):
                worker.comm.send(1, torch.full((length,), float(value)), tag)
        else:
            for tag in (1, 0, 0):
                message = await worker.comm.recv(0, tag)
                got.append((tag, float(message[0])))

    run(Custom(orderly), 2, 1, cluster=machines(bandwidth=8.0))
    assert got == [(1, 3.0), (0, 1.0), (0, 2.0)]


def test_two_activities_of_a_worker_run_side_by_side() -> None:
    log: list[tuple[float, str]] = []

    async def twofold(worker: Worker) -> None:
        async def answer() -> str:
            await worker.comm.recv(1 - worker.rank)
            log.append((worker.now, f"answered {worker.rank}"))
            return "done"

        answering = worker.spawn(answer())
        await worker.grad()
        worker.comm.send(1 - worker.rank, torch.zeros(1))
        await worker.grad()
        log.append((worker.now, f"second gradient {worker.rank}"))
        assert await answering == "done"

    run(Custom(twofold), 2, 1, cluster=machines(latency=0.5))
    assert log == [
        (1.5, "answered 1"),
        (1.5, "answered 0"),
        (2.0, "second gradient 0"),
        (2.0, "second gradient 1"),
    ]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    cluster = machines(LogNormalTime(0.5), latency=0.7)
    runs = [
        run(OSGP(DirectedExponential(), tau=2), 5, 12, sgd(momentum=0.9), cluster) for _ in range(2)
    ]
    assert runs[0].x.tobytes() == runs[1].x.tobytes()
    assert runs[0].trace == runs[1].trace
    other = run(OSGP(DirectedExponential(), tau=2), 5, 12, sgd(momentum=0.9), cluster, seed=4)
    assert other.trace != runs[0].trace
    assert other.x.tobytes() != runs[0].x.tobytes()
    times = [time for time, _, _ in runs[0].trace]
    assert times != [float(round(time)) for time in times]  # compute times do vary


def test_all_reduce_is_a_mean_in_a_tensor_of_ones_own() -> None:
    results: dict[int, Tensor] = {}

    async def average(worker: Worker) -> None:
        results[worker.rank] = await worker.comm.all_reduce(torch.tensor([float(worker.rank), 1.0]))
        results[worker.rank] += worker.rank  # nobody else sees this

    run(Custom(average), 3, 1)
    assert {rank: result.tolist() for rank, result in results.items()} == {
        0: [1.0, 1.0],
        1: [2.0, 2.0],
        2: [3.0, 3.0],
    }


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (
            lambda: cluster_of({"a": 0.0}, ConstantTime(), 1.0, 0.0, {}),
            "cluster.compute.step_seconds.a",
        ),
        (lambda: cluster_of({"a": 1.0}, ConstantTime(), 0.0, 0.0, {}), "cluster.links.bandwidth"),
        (
            lambda: cluster_of({"a": 1.0}, ConstantTime(), 1.0, -1.0, {}),
            "cluster.links.latency_seconds",
        ),
        (
            lambda: cluster_of({"a": 1.0}, ConstantTime(), 1.0, 0.0, {2: -1.0}),
            "cluster.compute.node_factors.2",
        ),
        (
            lambda: cluster_of({"a": 1.0}, ConstantTime(), 1.0, 0.0, {}, overlap=1.0),
            "cluster.collectives.overlap",
        ),
        (
            lambda: cluster_of({"a": 1.0}, ConstantTime(), 1.0, 0.0, {}).compute.mean_step("b", 1),
            "cluster.compute.step_seconds.b",
        ),
        (lambda: LogNormalTime(0.0), "cluster.compute_time.cv"),
        (lambda: GammaTime(-1.0), "cluster.compute_time.shape"),
        (lambda: Faults({0: 0.5}, {}), "faults.slow_nodes.0"),
        (lambda: Faults({}, {9: 2.0}).check(8, 1), "faults.slow_links.9"),
    ],
)
def test_impossible_machines_are_refused(make: Callable[[], object], key: str) -> None:
    assert refusal(make).key == key


def vectors() -> int:
    """Return the vectors of the tiny problem that were made since the last collection."""
    every = [
        vector
        for vector in gc.get_objects(generation=0)
        if type(vector) is Tensor and vector.shape == (D,)
    ]
    return len({vector.untyped_storage().data_ptr() for vector in every})


@pytest.mark.parametrize(
    ("algo", "kept"),
    [(ARSGD(), 2), (DPSGD(Ring()), 3), (SGP(DirectedExponential()), 2)],
)
def test_a_worker_keeps_parameters_momentum_and_what_it_shares_during_a_gradient(
    algo: Algorithm, kept: int
) -> None:
    most = 0

    class Counting(Loop):
        def finish(self, gradient: Gradient) -> Tensor:
            nonlocal most
            value = super().finish(gradient)
            most = max(most, vectors())
            return value

    def needed(nodes: int) -> tuple[int, int]:
        nonlocal most
        most, before = 0, vectors()
        assert len(run(algo, nodes, 4, sgd(momentum=0.9), engine=Counting).workers) == nodes
        return most - before, vectors() - before

    gc.collect()
    gc.disable()  # nothing waits for a collection
    try:
        few, many = needed(4), needed(8)
    finally:
        gc.enable()
    assert ((many[0] - few[0]) / 4, (many[1] - few[1]) / 4) == (kept, 2)

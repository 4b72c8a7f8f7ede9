"""Collectives and pairs of messages between real ranks, whose threads are late at random; rank 0
says whether all is as it must be.

``collective_rank.py NETWORK DEVICES``: gloo, hierarchical, paired (as over NCCL) or mpi; the
launcher describes the ranks.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import torch

from sgp_runner.core.comm import Comm
from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.world import World

ROUNDS = 12


def world_of(network: str, devices: int) -> World:
    if network == "mpi":
        import mpi4py

        mpi4py.rc(thread_level="funneled", finalize=False)
        from sgp_runner.distributed.mpi_world import MpiWorld

        return MpiWorld(60.0)
    from sgp_runner.distributed.torch_world import TorchWorld

    return TorchWorld(devices, paired=network == "paired", hierarchical=network == "hierarchical")


def late(chance: random.Random) -> None:
    time.sleep(chance.uniform(0, 0.004))


async def collectives(comm: Comm, rank: int, size: int, chance: random.Random) -> None:
    """Several of each kind under way at once, and awaited in another order."""
    for _ in range(3):
        means, gathered = [], []
        for k in range(5):
            late(chance)
            means.append(comm.all_reduce(torch.full((k + 1,), float(rank * k))))
            gathered.append(comm.all_gather(torch.tensor([rank, k], dtype=torch.int8)))
        for k in (3, 0, 4, 1, 2):
            late(chance)
            assert (await means[k]).tolist() == [k * (size - 1) / 2] * (k + 1)
            assert [part.tolist() for part in await gathered[k]] == [
                [source, k] for source in range(size)
            ]


async def exchange(
    comm: Comm, name: int, trace: list[Any], rank: int, size: int, chance: random.Random
) -> None:
    """One of several activities that pass a number around the ring, each with a tag of its own."""
    right, left = (rank + 1) % size, (rank - 1) % size
    number = 100 * name + rank
    for k in range(ROUNDS):
        comm.send(right, torch.full((name + 2,), float(number)), tag=name)
        late(chance)
        number = int((await comm.recv(left, name))[-1])
        assert number == 100 * name + (rank - k - 1) % size
        trace.append((name, k))


async def arrivals(comm: Comm, rank: int, size: int) -> None:
    """Rank 0 takes what has arrived in the order of arrival, here not that of ranks."""
    order = [size - 1, *range(1, size - 1)]
    if rank:
        await comm.recv(0, tag=21)
        for tag in (20, 22):
            comm.send(0, torch.tensor([rank]), tag)
        return
    for other in order:
        comm.send(other, torch.ones(1), tag=21)
        await comm.recv(other, 22)
    assert [(src, int(x)) for src, x in iter(lambda: comm.poll_any(20), None)] == [
        (other, other) for other in order
    ]


def main(network: str, devices: int) -> None:
    world = world_of(network, devices)
    size = world.size // devices
    world.connect(size)
    clock, chance, trace = RealClock(), random.Random(world.process_rank), []
    scheduler = Scheduler(clock, world.in_order)
    comm, rank = connect(world, scheduler, clock), world.layout.node_rank

    async def everything() -> None:
        activities = [
            scheduler.spawn(exchange(comm, name, trace, rank, size, chance), f"activity {name}")
            for name in range(3)
        ]
        for activity in activities:
            await activity
        await collectives(comm, rank, size, chance)
        if not world.in_order:
            await arrivals(comm, rank, size)

    scheduler.spawn(everything(), f"rank {rank}")
    scheduler.run()
    assert comm.close() == []
    traces = world.gather(trace)
    if world.process_rank == 0:
        print(
            "in one order"
            if all(order == traces[0] for order in traces)
            else "in orders of their own",
            len(trace),
        )
    world.close()


main(sys.argv[1], int(sys.argv[2]))

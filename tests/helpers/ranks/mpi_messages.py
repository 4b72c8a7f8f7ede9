"""Messages between four ranks under mpirun; rank 0 prints what it received. The ranks then run what
the words name, as `real_rank` does.
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import torch

from sgp_runner.core.comm import Comm
from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.mpi_world import MpiWorld
from sgp_runner.distributed.rank import connect

RANKS = 4


async def talk(comm: Comm, rank: int) -> None:
    if rank == 0:
        for src in range(1, RANKS):
            large, small, empty = [await comm.recv(src) for _ in range(3)]
            assert torch.all(large == src)
            print(
                (
                    f"{src}: {len(large)} x {src} {large.dtype}, {len(small)} {small.dtype}, "
                    f"{len(empty)} {empty.dtype}"
                ).replace("torch.", "")
            )
        senders = sorted([(await comm.recv_any(5))[0] for _ in range(1, RANKS)])
        print("from anybody:", ", ".join(map(str, senders)))
        comm.send(2, torch.ones(1), tag=9)
        while (message := comm.poll(2, 8)) is None:
            time.sleep(0.001)
        print("polled:", int(message))
    else:
        comm.send(
            0, torch.full((4_000_000,), float(rank), dtype=torch.float64)
        )  # arrives long after the next one could
        comm.send(0, torch.tensor([3, 4], dtype=torch.int8))
        comm.send(0, torch.empty(0, dtype=torch.bfloat16))
        comm.send(0, torch.zeros(1, dtype=torch.float16), tag=5)
    if rank == 2:
        await comm.recv(0, 9)
        comm.send(0, torch.tensor(7), tag=8)
    mean = await comm.all_reduce(torch.full((3,), float(rank)))
    if rank == 0:
        print("mean of 0, 1, 2, 3:", float(mean[1]))


world = MpiWorld(60.0)
world.connect(RANKS)
clock = RealClock()
scheduler = Scheduler(clock)
comm = connect(world, scheduler, clock)
scheduler.spawn(talk(comm, world.process_rank), f"rank {world.process_rank}")
scheduler.run()
assert comm.close() == []
world.close()
runpy.run_path(str(Path(__file__).with_name("real_rank.py")), run_name="__main__")

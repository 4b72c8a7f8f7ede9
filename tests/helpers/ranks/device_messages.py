"""Two nodes of two devices: parts of a message arrive at different times. Says what the devices of
node 1 saw.
"""

from __future__ import annotations

import time

import torch

from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.torch_world import TorchWorld

SIZES = (200, 4, 1, 0)

world = TorchWorld(devices=2)
world.connect(2)
clock = RealClock()
comm = connect(world, Scheduler(clock, world.in_order), clock)
polls, seen = 0, []
if world.layout.node_rank == 0:
    world.store.wait(["waits 2", "waits 3"])
    time.sleep(world.layout.device)  # the second parts come a second later
    for size in SIZES:
        comm.send(1, torch.arange(size).bfloat16())
else:
    for _ in SIZES:
        while (message := comm.poll(0)) is None:
            polls += 1
            if polls == 1:
                world.store.set(f"waits {world.process_rank}", "")
        seen.append(message.tolist())
assert comm.num_bytes_sent == (2 * sum(SIZES) if world.layout.node_rank == 0 else 0)
assert comm.close() == []
assert comm.poll(0) is None
(_, _, first, second) = world.gather((polls, seen))
if world.process_rank == 0:
    print(
        "alike" if first == second else "different",
        "after waiting" if first[0] else "at once",
        first[1],
    )
world.close()

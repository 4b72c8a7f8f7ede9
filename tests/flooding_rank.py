"""All ranks but 0 send as fast as they can; 0 kills one after another until gloo says something. The environment names the rank."""

from __future__ import annotations

import os
import signal
import time

import torch

from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.processes import DistributedWorld
from sgp_runner.distributed.rank import connect

world = DistributedWorld()
world.connect(world.size)
clock = RealClock()
comm = connect(world, Scheduler(clock), clock)
processes = world.gather(os.getpid())
if world.process_rank:
    for _ in range(1_000_000):
        comm.send(0, torch.empty(0))
    time.sleep(60)
said = ""
for victim in processes[1:]:
    while comm.mailbox.num_delivered % 1000 < 999:
        clock.advance()
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 0.5
    try:
        while time.monotonic() < deadline:
            comm.poll(1)
            time.sleep(0.01)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        break
print(said, end="", flush=True)
for victim in processes[1:]:
    os.kill(victim, signal.SIGKILL)
os._exit(0)

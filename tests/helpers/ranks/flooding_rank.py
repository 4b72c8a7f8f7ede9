"""All ranks but 0 send as fast as they can; 0 kills one after another until gloo says something.
``WORLD_SIZE`` says how many there are.

They are forks of one process, which has imported everything, because that is the quickest way to
have so many.
"""

from __future__ import annotations

import os
import signal
import time

import torch

from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.torch_world import TorchWorld

others: list[int] = []
for rank in range(1, int(os.environ["WORLD_SIZE"])):
    os.environ["RANK"] = str(rank)
    if not (process := os.fork()):
        break
    others.append(process)
else:
    os.environ["RANK"] = "0"
world = TorchWorld()
world.connect(world.size)
clock = RealClock()
comm = connect(world, Scheduler(clock), clock)
if world.process_rank:
    for _ in range(1_000_000):
        comm.send(0, torch.empty(0))
    time.sleep(60)
said = ""
try:
    for victim in others:
        while comm.mailbox.num_delivered % 1000 < 999:
            clock.advance()
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            comm.poll(1)
            time.sleep(0.01)
except Exception as error:  # also of a victim before, where the machine is busy
    said = f"{type(error).__name__}: {error}"
print(said, end="", flush=True)
for victim in others:
    os.kill(victim, signal.SIGKILL)
os._exit(0)

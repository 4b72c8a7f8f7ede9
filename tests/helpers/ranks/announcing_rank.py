"""Rank 1 announces a message to rank 0 and is killed before it sends it; rank 0 prints its error.

Rank 1 is a fork of rank 0. It stops once it has announced; gloo sends what has been asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))  # of tests/, for helpers
from helpers.arrivals import num_bytes_unread

from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.gloo_transport import HEADER
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.torch_world import TorchWorld

child = os.fork()
os.environ["RANK"] = "0" if child else "1"
world = TorchWorld()
world.connect(2)
if not child:
    announced = dist.isend(torch.zeros(4, dtype=torch.int64), 0, tag=HEADER)
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
before, clock = num_bytes_unread(child), RealClock()
connect(world, Scheduler(clock), clock)
while num_bytes_unread(child) <= before:  # until rank 0 asks for the message
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
try:
    while True:
        clock.advance()
except Exception as error:
    print(f"{type(error).__name__}: {error}", end="", flush=True)
os._exit(0)

"""`real_rank`, in which a step that waits for the GPU is an error.

The first steps may wait: libraries start in them. Recording, between the steps, may wait too.
"""

from __future__ import annotations

import os
import sys

import real_rank
import torch

from sgp_runner.core.worker import Worker
from sgp_runner.distributed.rank import Rank
from sgp_runner.utils.messages import show_messages

FIRST = 2  # steps that may wait
start, end = Rank.start_of_step, Rank.end_of_step


def start_of_step(self: Rank, worker: Worker) -> None:
    start(self, worker)
    if worker.steps_taken > FIRST:
        torch.cuda.set_sync_debug_mode("error")


def end_of_step(self: Rank, worker: Worker) -> None:
    torch.cuda.set_sync_debug_mode("default")
    end(self, worker)


if __name__ == "__main__":
    Rank.start_of_step, Rank.end_of_step = start_of_step, end_of_step  # type: ignore[method-assign]
    show_messages()
    code = real_rank.main()
    sys.stdout.flush()
    os._exit(code)

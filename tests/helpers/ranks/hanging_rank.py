"""Two ranks of a training loop with `Averager`, of which rank 1 hangs.

``hanging_rank.py FOLDER``: for each of `CASES`, rank 0 may wait no longer once rank 1 hangs, and
ends as a script does. Rank R leaves its messages in ``CASE.R``, and rank 0 its exit code on stdout.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from sgp_runner import Averager
from sgp_runner.api import roll_call

LAST = 5
#: Algorithm -> what rank 1 does instead of its step `LAST`, or instead of making an averager.
#: "ahead": it has sent its message of this step before, so rank 0 waits at the end alone.
CASES = {"sgp": "hangs", "ar_sgd": "hangs", "osgp": "ahead", "slowmo": "stops", "diloco": "absent"}


class Two:
    """Pipes by which a rank learns that the other one hangs, has come to its step, or ended."""

    def __init__(self) -> None:
        self.hangs, self.came, self.ended = os.pipe(), os.pipe(), os.pipe()

    def keep(self, rank: int) -> None:
        """Close the ends of the other rank, whose closing or end this one then reads."""
        os.close(self.hangs[1 - rank])
        os.close(self.came[rank])
        os.close(self.ended[rank])

    def wait_until_it_hangs(self) -> None:
        os.read(self.hangs[0], 1)

    def hang(self) -> None:
        os.close(self.hangs[1])
        os.read(self.ended[0], 1)


def main(algo: str, rank: int, other: Two, folder: Path) -> None:
    other.keep(rank)
    os.dup2(os.open(folder / f"{algo}.{rank}", os.O_WRONLY | os.O_CREAT), 2)
    store = dist.FileStore(str(folder / f"{algo}.store"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    case, limit = CASES[algo], float("inf")
    if case == "absent":
        if rank == 1:
            other.hang()
            os._exit(0)
        other.wait_until_it_hangs()
        limit = 0.01
    model = nn.Linear(3, 1)
    averager = Averager(
        algo, model, torch.optim.SGD(model.parameters(), 0.1), timeout_seconds=limit
    )
    for step in range(LAST + 1):
        model(torch.ones(2, 3)).sum().backward()
        if step == LAST and rank == 1:
            if case == "stops":
                os.read(other.came[0], 1)  # once rank 0 has all messages of the step before
                os.close(other.hangs[1])
                os.kill(os.getpid(), signal.SIGSTOP)
            other.hang()
        elif step == LAST:
            os.close(other.came[1])
            other.wait_until_it_hangs()
            if case != "ahead":
                averager.counts.roll_call.limit = 0.01
        averager.step()
    averager.counts.roll_call.limit = 0.01
    averager.finish()


if __name__ == "__main__":
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # imports what both ranks need
    roll_call.ANSWER_SECONDS = 20.0
    for algo in sys.argv[2:] or CASES:
        case = CASES[algo]
        if case in ("stops", "absent"):
            roll_call.ANSWER_SECONDS = 0.1  # rank 1 cannot answer
        other, ranks = Two(), []
        for rank in (0, 1):
            if (child := os.fork()) == 0:
                main(algo, rank, other, Path(sys.argv[1]))
                sys.exit()
            ranks.append(child)
        for end in (*other.hangs, *other.came, *other.ended):
            os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(ranks[0], 0)[1])
        print(algo, code, flush=True)
        if case == "stops":
            os.kill(ranks[1], signal.SIGKILL)
        os.waitpid(ranks[1], 0)

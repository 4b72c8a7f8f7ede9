"""A loop under an elastic torchrun: a rank is lost after the states of all ranks are saved.

``elastic_rank.py FOLDER``: ranks save ``stateR.pt`` after 4 steps; those that find states continue
from them, and the last ones save ``end.pt``: the number of ranks and the model.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from sgp_runner import Averager

HALF, STEPS = 4, 8


def started() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1).double()


def loss(net: nn.Module, rank: int, step: int) -> Tensor:
    random = torch.Generator().manual_seed(10 * step + rank)
    value: Tensor = net(torch.randn(4, 3, generator=random).double()).square().mean()
    return value


def main(folder: Path) -> None:
    if os.environ["WORLD_SIZE"] == "1" and not [*folder.glob("state*.pt")]:
        signal.pause()  # until the other agent joins, and torchrun restarts this rank
    net = started()
    averager = Averager("local_sgd", net, torch.optim.SGD(net.parameters(), 0.1), tau=2)
    states = [torch.load(path, weights_only=False) for path in sorted(folder.glob("state*.pt"))]
    if states:
        averager.load_states(states)
    for step in range(HALF if states else 0, STEPS):
        loss(net, averager.rank, step).backward()
        averager.step()
        if step == HALF - 1:
            torch.save(averager.state_dict(), folder / f"state{averager.rank}.pt")
            averager.runtime.world.gather(None)  # all have saved
            if "LOST" in os.environ and not states:
                os.kill(os.getppid(), signal.SIGKILL)  # its torchrun, which would restart it
                os._exit(1)
    averager.finish()
    torch.save((averager.size, net.state_dict()), folder / "end.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Two nodes of two devices gather messages. Rank 0 says how many bytes each device received.

It also says how many bytes the results of all collectives have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.torch_world import TorchWorld

SIZES = (25600, 5, 0)


class Traffic(TorchDispatchMode):
    """Counts the bytes of the results of collectives, and how many of them came from others."""

    received = held = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.startswith("c10d::"):
            results, inputs = (
                [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
                for tree in args[:2]
            )
            held = sum(t.nbytes for t in results)
            self.held += held
            self.received += held - sum(t.nbytes for t in inputs)
        return func(*args, **kwargs or {})


world = TorchWorld(devices=2)
world.connect(2)
clock = RealClock()
scheduler = Scheduler(clock, world.in_order)
comm, node = connect(world, scheduler, clock), world.layout.node_rank
says = []


async def gather() -> None:
    for size in SIZES:
        messages = [(torch.arange(size) * (rank + 1)).byte() for rank in range(2)]
        with Traffic() as traffic:
            gathered = await comm.all_gather(messages[node])
        equal = [torch.equal(mine, its) for mine, its in zip(gathered, messages, strict=True)]
        says.append((*equal, traffic.received, traffic.held))


scheduler.spawn(gather(), f"rank {node}")
scheduler.run()
assert comm.num_bytes_sent == sum(SIZES)
assert comm.close() == []
everyone = world.gather(says)
if world.process_rank == 0:
    print(everyone[0], all(answer == everyone[0] for answer in everyone))
world.close()

"""A stranger that joins a run as rank 1 and answers with a pickle, which makes a file when it is
read: ``rogue_rank.py NETWORK FILE``.
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(sys.argv[2]),)


if sys.argv[1] == "mpi":
    import mpi4py
    import numpy as np

    mpi4py.rc(thread_level="funneled", finalize=False)
    from mpi4py import MPI

    MPI.COMM_WORLD.Ibarrier().Wait()
    everybody = MPI.COMM_WORLD.Dup()
    everybody.Ibarrier().Wait()
    data = np.frombuffer(pickle.dumps(Malice()), dtype=np.uint8)
    lengths = np.empty(everybody.size, dtype=np.int64)
    everybody.Allgather(np.array([len(data)]), lengths)
    everybody.Allgatherv(
        [data, MPI.BYTE], [np.empty(lengths.sum(), dtype=np.uint8), lengths.tolist(), MPI.BYTE]
    )
    time.sleep(10)
else:
    import torch.distributed as dist

    from sgp_runner.distributed.torch_world import TorchWorld

    world = TorchWorld()
    world.connect(2)
    dist.all_gather_object([None, None], Malice(), group=world.all_ranks)
    time.sleep(1000)  # until it is killed

"""Fifty consecutive runs in one process, simulated or as a real rank, must not leak resources.

Memory is what the process holds alone and what it shares; two real ranks exchange messages
through shared memory. The first runs load libraries, so growth counts from the fifth run on.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result, Table
from benchmarks.ranks import Ranks, in_process, rank_of_run

RUN = (
    *("model=mlp", "model.hidden=[512,512]", "data=synthetic", "data.image_size=32"),
    *("data.size=128", "data.valid_size=16", "batch_size=16", "epochs=1", "logger=none"),
    *("algo=sgp", "resume=never"),
)  # 7 MB of parameters
WARM_UP = 5
UNITS = {"anonymous": "MB", "shared": "MB", "tensors": "MB", "threads": "", "files": ""}
# The C library returns memory in its own time.
GROWTH = {"anonymous": 20, "shared": 1, "tensors": 0, "threads": 0, "files": 0}


def measure(runs: int = 50) -> Iterator[Table]:
    with TemporaryDirectory() as folder:
        overrides = [*RUN, f"results={folder}", "name=run"]
        after = in_process(repeat, partial(simulate, overrides), runs, OMP_NUM_THREADS="1")
        yield table("Simulated runs of 4 nodes", [after])
        with Ranks(2) as ranks:
            real = partial(rank_of_run, [*overrides, "network=gloo", "nodes=2"])
            yield table("Real runs of 2 ranks", ranks.call(repeat, real, runs))


def table(title: str, ranks: list[list[dict[str, int]]]) -> Table:
    """Return the largest counts over the ranks, after some runs and after the last one."""
    results = []
    for what, unit in UNITS.items():
        size = 2**20 if unit else 1
        for number in (WARM_UP, len(ranks[0])):
            most = max(rank[number - 1][what] for rank in ranks) / size
            results.append(Result(f"{what} after run {number}", unit, (most,)))
        growth = max(rank[-1][what] - rank[WARM_UP - 1][what] for rank in ranks) / size
        goal = GROWTH[what]
        results.append(Result(f"growth of {what}", unit, (growth,), goal))
    return Table(title, tuple(results))


def simulate(overrides: list[str]) -> None:
    import sgp_runner

    sgp_runner.run(*overrides, nodes=4, verbose=False)


def repeat(work: Callable[[], object], times: int) -> list[dict[str, int]]:
    """Repeat ``work`` without automatic garbage collection; return the counts after each."""
    gc.disable()
    after = []
    for _ in range(times):
        work()
        after.append(held())
    return after


def held() -> dict[str, int]:
    """Count this process's threads and open files, and the bytes of its tensors and memory."""
    from torch import Tensor
    from torch.nn import Parameter

    status = Path("/proc/self/status").read_text(encoding="ascii")
    pages = {name: 1024 * int(kb) for name, kb in re.findall(r"(Rss\w+):\s+(\d+) kB", status)}
    tensors = [value for value in gc.get_objects() if type(value) in (Tensor, Parameter)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return {
        "tensors": sum(storage.nbytes() for storage in storages.values()),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "anonymous": pages["RssAnon"],
        "shared": pages["RssShmem"],
    }

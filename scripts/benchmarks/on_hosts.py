"""Starting the ranks of a run on hosts of their own, and reading from its records how long a step took."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.hosts import LINK, Hosts, enter
from benchmarks.processors import join

PRELOAD = ["torch.nn.parallel", "sklearn.datasets", "hydra.utils", "sgp_runner.schema", "sgp_runner.rank", "sgp_runner.comm.groups"]
PORTS = count(20_000)
TIMEOUT_SECONDS = 120.0


def on_hosts(hosts: Hosts, ranks: int, log: Path, work: Callable[..., int], *arguments: Any) -> None:
    """Call ``work(*arguments)`` in a process on each of the first hosts, as under torchrun. Raises RuntimeError if one fails."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)  # importing PyTorch would take longer than the runs
    there = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(next(PORTS)), "GLOO_SOCKET_IFNAME": LINK}
    log.parent.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(ranks):
        environment = {**there, "RANK": str(rank), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
        place = (hosts.path(rank), hosts.processors.path(rank))
        process = context.Process(target=on_host, args=(*place, environment, log, work, arguments), daemon=True)
        process.start()
        processes.append(process)
    try:
        for process in processes:
            process.join(TIMEOUT_SECONDS)
            if process.exitcode != 0:
                raise RuntimeError(f"a rank ended with {process.exitcode}; the end of {log}:\n{log.read_text()[-2000:]}")
    finally:
        for process in processes:
            process.kill()
            process.join()


def on_host(
    namespace: str, processors: Path, environment: Mapping[str, str], log: Path, work: Callable[..., int], arguments: Sequence[Any]
) -> None:
    """In the new process."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(file, output)
    code = 1
    try:
        enter(namespace)
        join(processors)
        os.environ.update(environment)
        code = work(*arguments)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still wait for messages must not hold up the exit

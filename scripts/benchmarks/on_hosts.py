"""Ranks of a run, started on virtual hosts or over imitated links."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.hosts import Hosts, enter

PRELOAD = [
    "torch.nn.parallel",
    "sklearn.datasets",
    "hydra.utils",
    "sgp_runner.config.schema",
    "sgp_runner.distributed.failures",
    "sgp_runner.session.start",
    "sgp_runner.distributed.torch_world",
]
PORTS = count(20_000)
TIMEOUT_SECONDS = 120.0
MESSAGES = 8  # sent to measure a rate


class Here:
    """A substitute of `Hosts` without root: links between processes are imitated."""

    interface = "lo"

    def __init__(self, count: int) -> None:
        self.count, self.bits_per_second = count, 0.0

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def path(self, host: int) -> None:
        """No namespace."""

    def shape(self, bits_per_second: float, hosts: Iterable[int] | None = None) -> None:
        """Set the rate of all links."""
        assert hosts is None
        self.bits_per_second = bits_per_second

    def achieved(self, num_bytes: int, count: int) -> float:
        """Mean bits per second when ``count`` ranks send ``num_bytes`` to the next at once."""
        with TemporaryDirectory() as folder:
            out = Path(folder) / "rate"
            on_hosts(
                self,
                count,
                Path(folder) / "log",
                send_around,
                self.bits_per_second,
                num_bytes,
                str(out),
            )
            return float(out.read_text(encoding="utf-8"))


def on_a_core(ranks: int) -> int:
    """How many of so many ranks share a core: consecutive ones, as equally many as possible."""
    return ceil(ranks / len(os.sched_getaffinity(0)))


def on_hosts(
    hosts: Hosts | Here, ranks: int, log: Path, work: Callable[..., int], *arguments: Any
) -> None:
    """Call ``work(*arguments)`` in a process on each of the first hosts, as torchrun does.

    Each process stays on one core: otherwise three of four ranks may meet on one of two cores.
    Raises RuntimeError if one fails.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)  # importing PyTorch would take longer than the runs
    there = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": str(next(PORTS)),
        "GLOO_SOCKET_IFNAME": hosts.interface,
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    processes, cores = [], sorted(os.sched_getaffinity(0))
    for rank in range(ranks):
        environment = {**there, "RANK": str(rank), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
        place = hosts.path(rank), cores[rank // on_a_core(ranks)]
        process = context.Process(
            target=on_host, args=(*place, environment, log, work, arguments), daemon=True
        )
        process.start()
        processes.append(process)
    try:
        for process in processes:
            process.join(TIMEOUT_SECONDS)
            if process.exitcode != 0:
                raise RuntimeError(
                    f"a rank ended with {process.exitcode}; the end of "
                    f"{log}:\n{log.read_text()[-2000:]}"
                )
    finally:
        for process in processes:
            process.kill()
            process.join()


def on_host(
    namespace: str | None,
    core: int,
    environment: Mapping[str, str],
    log: Path,
    work: Callable[..., int],
    arguments: Sequence[Any],
) -> None:
    """Set up a new process on its host, call ``work`` and exit with its result."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(file, output)
    code = 1
    try:
        if namespace is not None:
            enter(namespace)
        os.sched_setaffinity(0, {core})
        os.environ.update(environment)
        code = work(*arguments)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still wait for messages must not hold up the exit


def send_around(bits_per_second: float, num_bytes: int, out: str) -> int:
    """Send ``num_bytes`` to the next rank, receive as many, and write the mean rate on rank 0."""
    import torch

    from sgp_runner.core.scheduler import RealClock, Scheduler
    from sgp_runner.distributed.rank import connect
    from sgp_runner.distributed.torch_world import TorchWorld
    from sgp_runner.distributed.traffic_shaper import Link

    world = TorchWorld(link=Link(bits_per_second))
    world.connect(world.size)
    clock = RealClock()
    scheduler = Scheduler(clock)
    comm, message = (
        connect(world, scheduler, clock),
        torch.zeros(num_bytes // MESSAGES, dtype=torch.uint8),
    )

    async def exchange() -> None:
        await comm.all_reduce(torch.zeros(1))  # all begin together
        start = clock.now
        for _ in range(MESSAGES):
            comm.send((world.process_rank + 1) % world.size, message)
        for _ in range(MESSAGES):
            await comm.recv((world.process_rank - 1) % world.size)
        rate = torch.tensor([8 * MESSAGES * message.numel() / (clock.now - start)])
        world.mean(rate)
        if world.process_rank == 0:
            Path(out).write_text(str(rate.item()), encoding="utf-8")

    scheduler.spawn(exchange(), "exchange")
    scheduler.run()
    comm.close()
    world.close()
    return 0

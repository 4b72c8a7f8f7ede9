"""Processes for benchmarks: ranks started as by torchrun, and single processes."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")
# Importing PyTorch in every process would take longer than short runs.
PRELOAD = [
    "torch.nn.parallel",
    "sklearn.datasets",
    "hydra.utils",
    "sgp_runner.config.schema",
    "sgp_runner.assembly.execution",
]
TIMEOUT_SECONDS = 600.0
ADDRESS = "127.0.0.1"


class Ranks:
    """A context manager that starts ``size`` processes, as torchrun does.

    Each process has one thread. A function passed to `call` may create a process group if it
    destroys the group at its end.
    """

    def __init__(self, size: int) -> None:
        from torch.distributed import TCPStore

        cores = sorted(os.sched_getaffinity(0))
        self.store = TCPStore(
            ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
        )
        shared = {
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
        }
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the forkserver, which imports PyTorch
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pools = []
        for rank in range(size):
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.pools.append(ProcessPoolExecutor(1, context, settle, (environment, cores)))

    def call(self, work: Callable[..., T], *arguments: Any) -> list[T]:
        """Call ``work``, a function of a module, in all processes and return the results.

        Raises the first error of any process, because the other processes may wait forever for the
        failed one.
        """
        answers = [pool.submit(work, *arguments) for pool in self.pools]
        for answer in as_completed(answers, TIMEOUT_SECONDS):
            answer.result()
        return [answer.result() for answer in answers]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:  # a rank may wait for messages that never come
            for process in multiprocessing.active_children():
                process.kill()
        for pool in self.pools:
            pool.shutdown()


class OneRank:
    """A context manager that makes this process a launcher's only rank, as if by `Ranks(1)`."""

    def __init__(self) -> None:
        from torch.distributed import TCPStore

        self.store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
        address = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(self.store.port)}
        use = {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
        self.variables = patch.dict(os.environ, {**ranks, **sizes, **address, **use})

    def call(self, work: Callable[..., T], *arguments: Any) -> list[T]:
        return [work(*arguments)]

    def __enter__(self) -> OneRank:
        self.variables.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.variables.stop()


def rank_of_run(overrides: Sequence[str]) -> Path:
    """Run an experiment as one of its ranks and return its folder."""
    from sgp_runner.assembly.execution import run_experiment
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.utils.memory import collecting_garbage

    experiment = experiment_of(overrides)
    with collecting_garbage():
        run_experiment(experiment)
    return experiment.directory


def settle(environment: Mapping[str, str], cores: Iterable[int]) -> None:
    """Pin a new process to its cores and silence its output."""
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def in_process(work: Callable[..., T], *arguments: Any, **environment: str) -> T:
    """Call ``work`` in a new process, with environment variables set before PyTorch's import."""
    settings = environment, os.sched_getaffinity(0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, settle, settings) as pool:
        return pool.submit(work, *arguments).result()

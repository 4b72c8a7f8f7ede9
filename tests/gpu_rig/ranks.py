"""All ranks of an algorithm in one process, with real values, on the CPU or the pretend GPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from gpu_rig.pretend_gpu import CPU, DEVICE, Log, pretend_gpu, values
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.dry_run import DryRun, mean_of
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.scheduler import Future
from sgp_runner.core.worker import Worker
from sgp_runner.recording.observer import Observer

NODES = 4
STEPS = 4
SHAPES = {
    "embedding.weight": (5, 4),
    "blocks.0.up.weight": (6, 8),
    "blocks.0.up.bias": (8,),
    "blocks.1.up.weight": (8, 6),
    "head.weight": (3, 6),
    "head.bias": (3,),
}
D = sum(map(prod, SHAPES.values()))
START = torch.randn(D + 1, generator=torch.Generator().manual_seed(0)) * 0.1
NOISE = torch.randn(NODES + 1, STEPS, D, generator=torch.Generator().manual_seed(1)) * 0.1


class Ranks(DryRun):
    """The ranks of a dry run, which train: gradients have values, and a worker may record.

    records: what the workers record, every ``every`` steps
    """

    def __init__(self, run: Run, device: torch.device, every: int = 0, bad: float = 0.0) -> None:
        super().__init__(run)
        self.every, self.bad = every, bad
        self.noise = NOISE.to(device)
        self.records: list[dict[str, Any]] = []
        problem: Any = SimpleNamespace(trains=True)
        recorder: Any = SimpleNamespace(write=self.records.append)
        self.observer = Observer(run, problem, recorder)
        for worker in self.workers:
            self.place(worker, device)

    def place(self, worker: Worker, device: torch.device) -> None:
        """Give a worker parameters with values on ``device``."""
        start = START.clone()
        start[-1] = 1
        worker.push_sum = start.to(device)
        worker.params = worker.push_sum[:-1]
        worker.shapes, worker.has_gradients = SHAPES, True
        worker.buffers = worker.optim.buffers(worker.params)
        worker.budget.total = STEPS * (self.size if self.asynchronous else 1)

    def gradient(self, worker: Worker, at: Tensor) -> Tensor:
        """Return that of a quadratic problem with noise; one of rank 0 is ``bad`` in step 2."""
        number = worker.progress.gradients % STEPS
        worker.progress.gradients += 1
        g = at * 0.1 + self.noise[worker.rank, number]
        worker.progress.loss = g.square().sum()
        if self.bad and worker.rank == 0 and number == 2:
            g[30] = self.bad
        return g

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Tensor]:
        future: Future[Tensor] = Future(("its gradient",))
        value = self.gradient(worker, at)
        self.clock.at(self.clock.now + 1, "call", self.scheduler.resolve, future, value)
        return future

    def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Future[Tensor]:
        value = self.gradient(worker, worker.params)
        number = worker.comm.next_collective()
        return self.join(number, worker, "a mean of gradients", value, mean_of)

    def end_of_step(self, worker: Worker) -> None:
        if self.every and worker.steps_taken % self.every == 0:
            self.observer.record_training(worker)


@dataclass
class Trained:
    """The models [D] of all ranks at the end, their optimizers' buffers, and the log of a GPU."""

    models: list[Tensor]
    buffers: list[list[Tensor]]
    records: list[dict[str, Any]]
    log: Log = field(default_factory=Log)


@functools.cache
def base_run() -> Run:
    overrides = [f"nodes={NODES}", "model=mlp", "data=digits", "batch_size=8", "epochs=0.3"]
    return experiment_of([*overrides, "logger=jsonl", "resume=never"]).run


def train(
    algo: Algorithm,
    optim: Optimizer,
    on_gpu: bool,
    nodes: int = NODES,
    every: int = 0,
    bad: float = 0.0,
) -> Trained:
    """Run an algorithm for `STEPS` steps of each rank."""
    algo.check(nodes, optim)
    run = replace(base_run(), algo=algo, optim=optim, nodes=nodes)
    if not on_gpu:
        return finished(Ranks(run, CPU, every, bad))
    with pretend_gpu() as log:
        ranks = Ranks(run, DEVICE, every, bad)
        log.clear()
        trained = finished(ranks)
    trained.log = log
    return trained


def finished(ranks: Ranks) -> Trained:
    workers = [*ranks.workers]
    try:
        ranks.run()
    finally:
        ranks.close()
    return Trained(
        [values(worker.params) for worker in workers],
        [[values(buffer) for buffer in worker.buffers.values()] for worker in workers],
        ranks.records,
    )


def sampled(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return few of ``rows``: all values of the first column, and all pairs of values of others.

    Pairs are of values that two columns have together. None is no value.
    """
    parts = [
        {
            (0, str(row[0])),
            *(
                ((i, str(a)), (j, str(b)))
                for (i, a), (j, b) in itertools.combinations(enumerate(row[1:], start=1), 2)
                if a is not None and b is not None
            ),
        }
        for row in rows
    ]
    missing: set[Any] = set().union(*parts)
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(parts[i] & missing))
        chosen.append(rows[best])
        missing -= parts[best]
    return chosen

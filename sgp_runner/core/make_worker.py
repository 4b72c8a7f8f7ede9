"""Creation of workers with initial parameters, for every runtime."""

from __future__ import annotations

import torch
from torch import Tensor

from sgp_runner.core.budget import Budget
from sgp_runner.core.comm import Comm
from sgp_runner.core.optim import Horizon, Optimizer
from sgp_runner.core.parts import PartShapes
from sgp_runner.core.problem import Problem
from sgp_runner.core.worker import Runtime, Worker


def make_worker(
    problem: Problem,
    optim: Optimizer,
    horizon: Horizon,
    asynchronous: bool,
    rank: int,
    comm: Comm,
    budget: Budget,
    runtime: Runtime,
    model_buffers: list[Tensor] | None = None,
    part: PartShapes | None = None,
) -> Worker:
    """Return worker ``rank`` with initial parameters.

    asynchronous: whether an epoch counts the steps of all nodes
    model_buffers: buffers of the model; None: new buffers
    part: the part of the parameters that this device holds; None: all
    """
    start = problem.start()
    start = start if part is None else start[part.where]
    nodes = horizon.nodes
    worker = Worker(
        rank=rank,
        size=nodes,
        push_sum=torch.cat([start, start.new_full((1,), 1)]),
        shapes=problem.flat.shapes if part is None else part,
        comm=comm,
        optim=optim,
        budget=budget,
        horizon=horizon,
        steps_per_epoch=horizon.steps_per_epoch * (nodes if asynchronous else 1),
        runtime=runtime,
        examples=problem.examples(rank) if rank < nodes else 1.0,
        has_gradients=problem.trains,
    )
    worker.buffers = optim.buffers(worker.params)
    worker.model_buffers = problem.flat.fresh_buffers() if model_buffers is None else model_buffers
    return worker

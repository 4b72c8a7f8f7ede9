"""The problem and the workers of a run, for both backends, the dry run and replays."""

from __future__ import annotations

import torch
from torch import Tensor

from sgp_runner.config.run import Run
from sgp_runner.core import timing_study
from sgp_runner.core.budget import Budget, OwnBudget
from sgp_runner.core.comm import Comm
from sgp_runner.core.optim import Horizon
from sgp_runner.core.parts import PartShapes
from sgp_runner.core.problem import ON_CPU, Compute, Problem, make_problem
from sgp_runner.core.worker import Runtime, Worker
from sgp_runner.models.config import ModelConfig
from sgp_runner.utils.memory import flush_denormals


def build_problem(run: Run, compute: Compute = ON_CPU) -> Problem:
    """Load the data and build the model."""
    flush_denormals()
    if not run.model.trains:
        return timing_problem(run, run.study)
    return make_problem(
        run.model,
        run.data,
        workers=run.nodes,
        batch_size=run.batch_size,
        seed=run.seed,
        dtype=run.torch_dtype,
        compute=compute,
        micro_batch=run.micro_batch,
    )


def timing_problem(
    run: Run, study: timing_study.Study, model: ModelConfig | None = None
) -> Problem:
    """Build a problem without data or gradients for ``model``, by default the model of the run."""
    return timing_study.make_problem(
        model or run.model,
        run.data,
        study,
        epochs=run.epochs,
        seed=run.seed,
        dtype=run.torch_dtype,
        shapes=run.timed_shapes if model is None else None,
    )


def divide_problem(problem: Problem, run: Run) -> Problem:
    """Divide ``problem``, built for another number of nodes, among the nodes of ``run``."""
    if not run.model.trains:
        return timing_problem(run, run.study)
    return problem.among(run.nodes, run.batch_size)


def build_budgets(run: Run, problem: Problem) -> list[OwnBudget]:
    """Return the budgets of all workers in one process, servers last."""
    total = run.total_steps(problem)
    own = [OwnBudget(total) for _ in range(run.nodes + run.algo.servers)]
    return [*own[:1] * run.nodes, *own[run.nodes :]] if run.algo.asynchronous else own


def build_worker(
    run: Run,
    problem: Problem,
    rank: int,
    comm: Comm,
    budget: Budget,
    runtime: Runtime,
    model_buffers: list[Tensor] | None = None,
    part: PartShapes | None = None,
) -> Worker:
    """Build worker ``rank`` with initial parameters.

    model_buffers: buffers of the model; None: new buffers
    part: the part of the parameters that this device holds; None: all
    """
    start = problem.start()
    start = start if part is None else start[part.where]
    per_epoch = problem.sampler.steps_per_epoch
    worker = Worker(
        rank=rank,
        size=run.nodes,
        push_sum=torch.cat([start, start.new_full((1,), 1)]),
        shapes=problem.flat.shapes if part is None else part,
        comm=comm,
        optim=run.optim,
        budget=budget,
        horizon=Horizon(run.epochs, per_epoch, run.nodes, run.nodes * run.batch_size),
        steps_per_epoch=per_epoch * (run.nodes if run.algo.asynchronous else 1),
        runtime=runtime,
        examples=problem.examples(rank) if rank < run.nodes else 1.0,
        has_gradients=problem.trains,
    )
    worker.buffers = run.optim.buffers(worker.params)
    worker.model_buffers = problem.flat.fresh_buffers() if model_buffers is None else model_buffers
    return worker

"""The problem and the workers of a run, for both backends, the dry run and replays."""

from __future__ import annotations

import os

from torch import Tensor

from sgp_runner.config.run import Run
from sgp_runner.core import timing_study
from sgp_runner.core.budget import Budget
from sgp_runner.core.comm import Comm
from sgp_runner.core.make_worker import make_worker
from sgp_runner.core.parts import PartShapes
from sgp_runner.core.problem import ON_CPU, Compute, Problem, make_problem
from sgp_runner.core.worker import Runtime, Worker
from sgp_runner.models.config import ModelConfig
from sgp_runner.utils.memory import flush_denormals

# PyTorch's variable of the memory of a GPU, and its later name.
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def build_problem(run: Run, compute: Compute = ON_CPU) -> Problem:
    """Load the data and build the model.

    Unless the user has configured it, GPU memory uses expandable segments, which avoid
    fragmentation by blocks of different sizes (PyTorch, CUDA semantics, expandable_segments).
    """
    flush_denormals()
    if compute.device != "cpu" and not any(map(os.environ.get, ALLOCATOR)):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"  # read at the first allocation
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
    """Build a problem without data or gradients for ``model``, by default the run's model."""
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
    """Divide ``problem``, built for a different number of nodes, among the nodes of ``run``."""
    if not run.model.trains:
        return timing_problem(run, run.study)
    return problem.subset(run.nodes, run.batch_size)


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
    """Build worker ``rank`` of a run; for the arguments see `make_worker`."""
    horizon, shared = run.horizon(problem), run.algo.asynchronous
    return make_worker(
        problem, run.optim, horizon, shared, rank, comm, budget, runtime, model_buffers, part
    )

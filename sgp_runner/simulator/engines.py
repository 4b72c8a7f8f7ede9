"""The choice of an engine and of the cores that it uses.

Rounding must not depend on the load of the machine or its number of cores, so the choice of engine
depends only on the model. Measurements choose the number of workers per call of vmap and whether
other processes help; neither changes the results by a bit.
"""

from __future__ import annotations

import os

from sgp_runner.core.problem import LARGE, Compute, Problem
from sgp_runner.simulator.engine import Engine, Loop, NoGradients, Vmap
from sgp_runner.simulator.parallel import Parallel
from sgp_runner.utils.cores import asked_cores, present_cores
from sgp_runner.utils.devices import use_gpu
from sgp_runner.utils.memory import keep_freed_memory

# Up to this size vmap is faster on a core: 3 times for an MLP of 5,000 parameters, 1.4 for a
# Transformer of 246,000, 1.1 for an MLP of 301,000. Beyond it the loop is faster. For language
# models of any size the loop is 1.2 times faster: with their long samples, a gradient fills a core.
VMAP_PARAMETERS = 300_000
MAX_WIDTH = 2**16  # more workers than a run has


def prepare_process(problem: Problem) -> None:
    """Configure the threads and memory allocation of this process for simulating ``problem``."""
    import torch

    use_gpu(problem.compute.device, problem.compute.autocast)
    repeat_to_the_bit(problem.compute)
    parameters = sum(problem.flat.layers)
    torch.set_num_threads(cores_for(parameters) if reads_ahead(problem) else 1)
    if parameters >= LARGE:
        keep_freed_memory()


def repeat_to_the_bit(compute: Compute) -> None:
    """Make a GPU bitwise reproducible if ``compute`` asks for it; a CPU always is."""
    import torch

    wanted = compute.deterministic and compute.device != "cpu"
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS as it starts
        torch.backends.cudnn.allow_tf32 = False
    if torch.are_deterministic_algorithms_enabled() != wanted:
        torch.use_deterministic_algorithms(wanted)
        # It would fill every message and result with NaN before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def reads_ahead(problem: Problem) -> bool:
    """Return whether decoder processes read the data, which only one process can use."""
    return problem.dataset.train.ahead > 0


def cores_for(parameters: int) -> int:
    """Return the number of cores for each simulation of a sweep.

    A small model gets one core, because several runs at a time use the cores better.
    """
    return (asked_cores() or present_cores()) if parameters >= LARGE else 1


def make_engine(problem: Problem, choice: str, width: int) -> Engine:
    """Return the engine for ``choice``: ``loop``, ``vmap``, or ``auto``.

    ``auto`` chooses vmap for small models that support it, except language models, although these
    are faster with it on a CPU.
    """
    if not problem.trains:
        return NoGradients()
    whole = problem.micro_batch is None
    if choice == "vmap" or (choice == "auto" and whole and gains_from_vmap(problem)):
        return Vmap(problem, min(width, MAX_WIDTH))
    if problem.compute.device != "cpu":
        return Loop(problem)  # a process that uses a GPU cannot be forked
    count = asked_cores() or present_cores()
    if count > 1 and not reads_ahead(problem) and hasattr(os, "fork"):
        return Parallel(problem, count)
    return Loop(problem)


def gains_from_vmap(problem: Problem) -> bool:
    small = sum(problem.flat.layers) <= VMAP_PARAMETERS
    return problem.vectorizes and small and problem.dataset.task.name != "language"

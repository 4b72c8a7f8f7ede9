"""The choice of an engine and of the cores that it uses.

Rounding must depend neither on the load of the machine nor on its number of cores, so the model
alone decides which engine computes. Measurements only decide how many workers share one call of
vmap and whether other processes help, which does not change a bit.
"""

from __future__ import annotations

import os

from sgp_runner.core.problem import LARGE, Problem
from sgp_runner.simulator.engine import Engine, Loop, NoGradients, Vmap
from sgp_runner.simulator.parallel import Parallel
from sgp_runner.utils.cores import asked_cores, present_cores
from sgp_runner.utils.memory import keep_freed_memory

# Up to this size vmap is faster on a core: 3 times for an MLP of 5,000 parameters, 1.4 for a
# Transformer of 246,000, 1.1 for an MLP of 301,000. Beyond it the loop is faster, and so it is for
# language models of any size, 1.2 times: their samples are so long that one gradient fills a core.
VMAP_PARAMETERS = 300_000
MAX_WIDTH = 2**16  # more workers than a run has


def prepare_process(problem: Problem) -> None:
    """Set the threads of this process, and how it keeps memory, for a simulation of ``problem``."""
    import torch

    parameters = sum(problem.flat.layers)
    torch.set_num_threads(cores_for(parameters) if reads_ahead(problem) else 1)
    if parameters >= LARGE:
        keep_freed_memory()


def reads_ahead(problem: Problem) -> bool:
    """Return whether decoder processes read the data; only one process can use them."""
    return problem.dataset.train.ahead > 0


def cores_for(parameters: int) -> int:
    """Cores of a simulation, of a model with so many parameters, in a sweep.

    One for small models: several runs at a time use the cores better.
    """
    return (asked_cores() or present_cores()) if parameters >= LARGE else 1


def make_engine(problem: Problem, choice: str, width: int) -> Engine:
    """Return the engine for ``choice``: ``loop``, ``vmap``, or ``auto``.

    ``auto`` takes vmap for the models that gain from it on a CPU, which are small.
    """
    if not problem.trains:
        return NoGradients()
    if choice == "vmap" or (choice == "auto" and gains_from_vmap(problem)):
        return Vmap(problem, min(width, MAX_WIDTH))
    count = asked_cores() or present_cores()
    if count > 1 and not reads_ahead(problem) and hasattr(os, "fork"):
        return Parallel(problem, count)
    return Loop(problem)


def gains_from_vmap(problem: Problem) -> bool:
    small = sum(problem.flat.layers) <= VMAP_PARAMETERS
    return problem.vectorizes and small and problem.dataset.task.name != "language"

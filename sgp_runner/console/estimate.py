"""Progress of a run, and estimates of the memory and disk space that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sgp_runner.config.run import Run
from sgp_runner.config.size import ITEM, kept_by_optimizer
from sgp_runner.core.problem import Problem
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import counted, num_bytes

RECORD_BYTES = 300  # size of one record of a worker
LARGE = 500_000  # parameters from which a gradient in bfloat16 is worth a sentence
BFLOAT16 = ("avx512_bf16", "amx_bf16")  # units of a processor, by PyTorch's names


@dataclass(frozen=True)
class Work:
    """The progress of a run in gradients or steps, or of a sweep in runs."""

    done: int
    total: int
    unit: Literal["gradient", "step", "run"] = "gradient"

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total)


def vector_bytes(run: Run, problem: Problem) -> int:
    return sum(problem.flat.layers) * ITEM[run.dtype]


def bytes_of_vectors(run: Run, problem: Problem) -> int:
    """Return the memory that the vectors of a process need.

    The process holds the model and its gradient. Except in a timing study, each node of the process
    adds parameters, optimizer state and a message, or a device's shard of these.
    """
    nodes = run.nodes if run.network.clock == "simulated" else 1
    devices = run.gpus_per_node if getattr(run.network, "shard", "none") == "state" else 1
    vectors = nodes * (2 + kept_by_optimizer(run)) if problem.trains else 0
    return vector_bytes(run, problem) * (2 * devices + vectors) // devices


def gpu_memory(run: Run, problem: Problem, free: int) -> str:
    """Describe the memory that a simulation needs on a GPU with ``free`` free bytes.

    Raises ConfigError if the vectors of the simulation alone need more.
    """
    needed = bytes_of_vectors(run, problem)
    vectors = f"{num_bytes(needed)} for parameters, optimizer state and messages"
    if needed > free:
        raise ConfigError(
            "nodes",
            f"{counted(run.nodes, 'node')} of model={run.model.name} need {vectors}, but the GPU "
            f"has {num_bytes(free)} free: use fewer nodes, or network.device=cpu.",
        )
    return f"Of {num_bytes(free)} free on the GPU, this takes {vectors}; activations come on top."


def bfloat16_hint(run: Run, problem: Problem, capabilities: Mapping[str, object]) -> str | None:
    """Return a hint to use bfloat16 if a float32 model is large and the processor supports it.

    capabilities: the processor's capabilities, as returned by `torch.cpu.get_capabilities`
    """
    plain = run.dtype == "float32" and getattr(run.network, "autocast", None) == "none"
    large = problem.trains and sum(problem.flat.layers) >= LARGE
    if plain and large and any(capabilities.get(name) for name in BFLOAT16):
        return (
            "This processor computes in bfloat16: network.autocast=bf16 can make a model of this "
            "size faster, and rounds its gradients."
        )
    return None


def disk_bytes(run: Run, problem: Problem, seconds: float) -> int:
    """Return the peak disk space of records and checkpoints of a run that takes ``seconds``.

    One checkpoint is always included, because a signal may request it.
    """
    steps, checkpoint = run.steps(problem), run.checkpoint
    records = run.nodes * (steps / run.log_every + 2 * run.epochs / run.eval_every) * RECORD_BYTES
    saved = vector_bytes(run, problem) * run.nodes * (1 + kept_by_optimizer(run))
    often = checkpoint.every_steps is not None or (
        checkpoint.every_minutes is not None and seconds > 60 * checkpoint.every_minutes
    )
    return round(records) + saved * (checkpoint.keep + 1 if often else 1)

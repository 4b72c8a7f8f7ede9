"""Parts of ``scripts/gpu_check.sh run``, the most important first.

Parts that measure compute in the process that runs them; parts that run tests start pytest. The
tests of the parts use `Sizes` small enough for the pretend GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Part:
    """A question and the function that answers it, which is imported on first use.

    The function records observations in a dictionary, may write to a folder, and returns the
    answer.

    seconds: time limit. gpus: number of GPUs that it needs
    """

    name: str
    question: str
    function: str
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 1

    def perform(self, seen: dict[str, Any], out: Path) -> str:
        module, _, name = self.function.partition(":")
        answer: str = getattr(import_module(module), name)(seen, out, **self.arguments)
        return answer


MACHINE, TRAINING = "gpu_parts.for_machine", "gpu_parts.for_training"
PIECES, TESTS = "gpu_parts.for_pieces", "gpu_parts.for_tests"
SIM = {"file": "tests/simulator/test_one_gpu.py"}
NCCL = {"file": "tests/distributed/test_nccl.py"}
PARTS = {
    part.name: part
    for part in (
        Part(
            "machine",
            "Do PyTorch, NCCL and the package start on this GPU?",
            f"{MACHINE}:machine",
            25,
            gpus=0,
        ),
        Part(
            "speed",
            "Does a step of ResNet-50 take at most 1.02 times as long as in a plain loop?",
            f"{TRAINING}:speed",
            60,
        ),
        Part(
            "gpt",
            "Does a step of a GPT take at most 1.02 times as long?",
            f"{TRAINING}:language",
            30,
        ),
        Part("profile", "Where does the time of a step go?", f"{TRAINING}:profile", 25),
        Part(
            "sim",
            "Do simulated runs on a GPU agree with the CPU, repeat and resume?",
            f"{TESTS}:tests",
            105,
            {**SIM, "expression": "agrees or repeats or resumes"},
        ),
        Part(
            "gloo",
            "Do ranks that share a GPU reach the simulator's result?",
            f"{TESTS}:tests",
            30,
            {**SIM, "expression": "share"},
        ),
        Part("osgp", "Does OSGP finish on a GPU with a single queue?", f"{TESTS}:osgp", 20),
        Part(
            "syncs",
            "Do 12 algorithms take steps without waiting for the GPU?",
            f"{TRAINING}:syncs",
            35,
        ),
        Part("codecs", "How much time and memory do codecs need?", f"{PIECES}:codecs", 35),
        Part("workers", "How many simulated workers per second?", f"{PIECES}:workers", 35),
        Part("compile", "What does torch.compile cost and save?", f"{TRAINING}:compiled", 45),
        Part(
            "snapshot",
            "How long does a checkpoint stop a run, and does it resume?",
            f"{TRAINING}:snapshot",
            35,
        ),
        Part(
            "nccl", "Do GPUs over NCCL reach the simulator's result?", f"{TESTS}:tests", 120, NCCL
        ),
        Part(
            "sanitizer",
            "Do streams pass PyTorch's CUDA sanitizer without a data race?",
            f"{TESTS}:tests",
            60,
            {**NCCL, "expression": "synchronous and sgp", "sanitizer": True},
        ),
    )
}

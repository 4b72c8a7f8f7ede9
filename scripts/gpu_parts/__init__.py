"""Parts of ``scripts/gpu_check.sh run``, the most wanted first.

The parts of numbers compute in the process that performs them. Those that run tests start pytest.
`Sizes` are so small in the tests of the parts that a pretend GPU computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Part:
    """A question, and the function that answers it, which is imported when it is called.

    It notes what it sees in a dictionary, may write to a folder, and returns the answer.

    seconds: time limit. gpus: how many it needs
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
            "Is a step of ResNet-50 at most 1.02 times a plain loop's?",
            f"{TRAINING}:speed",
            60,
        ),
        Part("gpt", "Is a step of a GPT at most 1.02 times?", f"{TRAINING}:language", 30),
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
            "Do ranks that share a GPU end as the simulator does?",
            f"{TESTS}:tests",
            30,
            {**SIM, "expression": "share"},
        ),
        Part("osgp", "Does OSGP end where a GPU has one queue?", f"{TESTS}:osgp", 20),
        Part("syncs", "Does no step of 12 algorithms wait for the GPU?", f"{TRAINING}:syncs", 35),
        Part("codecs", "What time and memory do codecs take?", f"{PIECES}:codecs", 35),
        Part("workers", "How many simulated workers per second?", f"{PIECES}:workers", 35),
        Part("compile", "What does torch.compile cost and save?", f"{TRAINING}:compiled", 45),
        Part(
            "snapshot",
            "How long does a checkpoint stop a run, and does it resume?",
            f"{TRAINING}:snapshot",
            35,
        ),
        Part("nccl", "Do GPUs over NCCL end as the simulator does?", f"{TESTS}:tests", 120, NCCL),
        Part(
            "sanitizer",
            "Does PyTorch's CUDA sanitizer find no race of streams?",
            f"{TESTS}:tests",
            60,
            {**NCCL, "expression": "synchronous and sgp", "sanitizer": True},
        ),
    )
}

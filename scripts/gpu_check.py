#!/usr/bin/env python
"""Steps of ``scripts/gpu_check.sh run``, which prepares the environment: one log, one JSON.

    scripts/gpu_check.py OUT

Each step is a command that answers a question. Steps that need GPUs are skipped where there are too
few. A step has its own time limit; all of them together have eight minutes. The JSON is written
after every step, so that the answers remain if the machine is taken away.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 480.0
RUN = (sys.executable, "-m", "sgp_runner", "logger=jsonl", "resume=never")
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
OSGP = ("algo=osgp", "model=mlp", "epochs=1", "network.gossip=leader")
STEPS_OF_RESNET = 6
BATCH = 32


@dataclass(frozen=True)
class Step:
    """A command and the question that its exit code answers.

    gpus: how many GPUs it needs. seconds: its time limit. result: a file of numbers that it writes
    """

    name: str
    question: str
    command: Sequence[str]
    gpus: int = 1
    seconds: float = 120
    variables: Mapping[str, str] = field(default_factory=dict)
    result: Path | None = None


def steps(gpus: int, results: Path) -> list[Step]:
    """Return the steps; with less than four GPUs, OSGP's devices are processes on one card.

    NCCL refuses two ranks on one GPU, so there the nodes exchange messages over gloo.
    """
    here = f"results={results}"
    one_queue = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    osgp = ("network=nccl", "nodes=2", "gpus_per_node=2")
    if gpus < 4:
        osgp = ("network=gloo", "network.device=cuda", "nodes=4")
    leader = OSGP if gpus >= 4 else OSGP[:-1]
    samples = STEPS_OF_RESNET * BATCH * 8
    resnet = (
        *("algo=sgp", "model=resnet50", "data=synthetic", f"data.size={samples}"),
        *("data.valid_size=8", f"batch_size={BATCH}", "epochs=1", "nodes=8", "log_every=1"),
    )
    return [
        Step("check", "Has the machine what a run needs?", check_command(gpus), 0, 60),
        Step(
            "smoke",
            "Does the package run with this PyTorch?",
            (*RUN, "algo=sgp", "model=mlp", "network=gloo", "nodes=2", "epochs=0.1", here),
            0,
            90,
        ),
        Step(
            "tests",
            "Do GPUs end with the parameters of the simulator?",
            (*PYTEST, "-m", "gpu", "tests/distributed"),
            seconds=150,
        ),
        Step(
            "sanitizer",
            "Does PyTorch's CUDA sanitizer find no race of streams?",
            (*PYTEST, "-m", "gpu and sanitizer", "tests/distributed"),
            variables={"TORCH_CUDA_SANITIZER": "1"},
            seconds=90,
        ),
        Step(
            "syncs",
            "Does no step of training wait for the GPU?",
            (*PYTEST, "-m", "gpu and no_sync", "tests/distributed"),
            seconds=60,
        ),
        Step(
            "osgp",
            "Does OSGP end with four processes, where each GPU has one queue?",
            (*RUN, *leader, *osgp, here, "name=osgp"),
            seconds=60,
            variables=one_queue,
        ),
        Step(
            "resnet50",
            "Does one card train eight simulated workers of ResNet-50?",
            (*RUN, *resnet, "network=sim", "network.device=cuda", here, "name=resnet50"),
            seconds=90,
            result=results / "runs/resnet50/summary.json",
        ),
        Step(
            "bench",
            "How fast is a step of ResNet-50 against a plain loop of PyTorch?",
            (sys.executable, "scripts/bench.py", "gpu"),
            seconds=180,
            result=ROOT / "results/benchmarks/gpu.json",
        ),
    ]


def check_command(gpus: int) -> tuple[str, ...]:
    overrides = ("network=nccl", f"nodes={gpus}") if gpus else ("network=gloo", "nodes=2")
    return (sys.executable, "-m", "sgp_runner", "check", "logger=jsonl", *overrides)


def perform(step: Step, seconds: float, log: Path) -> dict[str, object]:
    """Run a step for at most ``seconds``, append its output to the log and return the answer."""
    began = time.monotonic()
    started = time.time()
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n=== {step.name}: {' '.join(step.command)}\n")
        out.flush()
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, **step.variables},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = f"stopped after {seconds:.0f} s"
    # Pytest ends with 5 if no test was selected, which answers nothing.
    answer = {0: "yes", 5: "skipped: no such test"}.get(code, "no")  # type: ignore[call-overload]
    took = round(time.monotonic() - began, 1)
    result: dict[str, object] = {"answer": answer, "exit": code, "seconds": took}
    if step.result is not None and step.result.exists() and step.result.stat().st_mtime >= started:
        result["result"] = json.loads(step.result.read_text(encoding="utf-8"))
    return result


def main(arguments: Sequence[str]) -> int:
    """Run all steps; return 1 if any answer is no."""
    import torch

    from sgp_runner.utils.provenance import environment, gpu, gpu_versions

    began = time.monotonic()
    out = Path(arguments[0]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    log, path = out / "gpu_check.log", out / "gpu_check.json"
    log.write_text("", encoding="utf-8")
    gpus = torch.cuda.device_count()
    facts: dict[str, object] = {
        "gpus": [gpu(f"cuda:{number}") for number in range(gpus)],
        "versions": gpu_versions(),
        "environment": environment(),
    }
    answers: dict[str, dict[str, object]] = {}
    for step in steps(gpus, out / "results"):
        left = TOTAL_SECONDS - (time.monotonic() - began)
        answer: dict[str, object]
        if gpus < step.gpus:
            answer = {"answer": "skipped: no GPU"}
        elif left < 10:
            answer = {"answer": "skipped: no time left"}
        else:
            answer = perform(step, min(step.seconds, left), log)
        answers[step.name] = {"question": step.question, **answer}
        print(f"{step.name:<10} {answer['answer']:<22} {step.question}", flush=True)
        text = json.dumps({**facts, "answers": answers}, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
    print(f"{path} and {log}")
    return int(any(reply["answer"] == "no" for reply in answers.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python
"""Answers of ``scripts/gpu_check.sh run``, which prepares the environment.

    scripts/gpu_check.py OUT [PART ...]

The parts (`gpu_parts`) run in one process, the most important first. After each, a line of JSON is
appended to ``OUT/gpu_check.jsonl``, so that the answers remain if the machine is taken away. A part
has its own time limit. A part that does not finish, or crashes its process, is answered with "no",
and another process continues with the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpu_parts import PARTS, Part

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 480.0
GRACE_SECONDS = 15.0  # between the limit of a part and the end of its process
START_SECONDS = 60.0  # more for the first part of a process, which imports PyTorch
LEAST_SECONDS = 2.0  # left for a part
LOST_GPU = 3  # exit code
ANSWERS = "gpu_check.jsonl"
WORK = "--work"
PROGRAM = __file__


class OutOfTime(Exception):
    """A part has exceeded its time limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the main thread if the block takes longer than ``seconds``."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(part: Part, gpus: int, out: Path, seconds: float) -> dict[str, object]:
    """Run a part for at most ``seconds``; return its line.

    Its ``seen`` contains the part's observations, up to the error if there is one.
    """
    seen: dict[str, object] = {}
    line: dict[str, object] = {"part": part.name, "question": part.question}
    began = time.monotonic()
    print(f"\n=== {part.name}: {part.question}", flush=True)
    try:
        with limited(seconds):
            said = part.perform(seen, out) if gpus >= part.gpus else "no GPU"
    except Exception as error:
        traceback.print_exc()
        said = "no"
        line["error"] = f"{type(error).__name__}: {error}"[:2000]
    took = round(time.monotonic() - began, 1)
    return {**line, "answer": said, "seconds": took, "seen": seen}


def write(out: Path, line: Mapping[str, object]) -> None:
    """Append a line to the answers and flush it to disk."""
    with (out / ANSWERS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(out: Path) -> list[dict[str, object]]:
    path = out / ANSWERS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def work(out: Path, names: Sequence[str], end: float) -> int:
    """Answer the parts in ``names`` until the time ``end``, in this process.

    After a CUDA error a process cannot use the GPU any more, so it returns.
    """
    import torch

    gpus = torch.cuda.device_count()
    for name in names:
        left = end - time.time()
        if left < LEAST_SECONDS:
            return 0
        line = answer(PARTS[name], gpus, out, min(PARTS[name].seconds, left))
        write(out, line)
        if "CUDA error" in str(line.get("error")):
            return LOST_GPU
    return 0


def watch(process: subprocess.Popen[bytes], out: Path, names: Sequence[str], end: float) -> int:
    """Wait for a process that answers ``names`` and show its answers; return their number.

    Kills the process if a part takes too long.
    """
    before, done = len(read(out)), 0
    since, extra, ended = time.time(), START_SECONDS, False
    while not ended:
        ended = process.poll() is not None
        for line in read(out)[before + done :]:
            show(line)
            done, since, extra = done + 1, time.time(), 0.0
        limit = PARTS[names[min(done, len(names) - 1)]].seconds + GRACE_SECONDS + extra
        if not ended and time.time() > min(since + limit, end + GRACE_SECONDS):
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.1)
    return done


def check(out: Path, names: Sequence[str]) -> int:
    """Answer the parts in ``names``; return 1 if any answer is "no"."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (ANSWERS, "gpu_check.log"):
        (out / name).unlink(missing_ok=True)
    end, left = time.time() + TOTAL_SECONDS, [*names]
    with (out / "gpu_check.log").open("wb") as log:
        while left and time.time() < end - LEAST_SECONDS:
            command = (sys.executable, PROGRAM, str(out), WORK, str(end), *left)
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            del left[: watch(process, out, left, end)]
            if left and process.returncode not in (0, LOST_GPU) and time.time() < end:
                ended = f"its process ended with {process.returncode}"
                conclude(out, left.pop(0), "no", ended)
    for name in left:
        conclude(out, name, "no time left")
    print(f"{out / ANSWERS} and {out / 'gpu_check.log'}")
    return int(any(line["answer"] == "no" for line in read(out)))


def conclude(out: Path, name: str, said: str, error: str | None = None) -> None:
    """Write the answer for a part that could not write it itself."""
    line = {"part": name, "question": PARTS[name].question, "answer": said, "error": error}
    write(out, {**line, "seconds": None, "seen": {}})
    show(line)


def show(line: Mapping[str, object]) -> None:
    print(f"{line['part']:<10} {line['answer']:<13} {line['question']}", flush=True)


def main(arguments: Sequence[str]) -> int:
    out, *names = arguments
    folder = Path(out).absolute()
    if names[:1] == [WORK]:
        return work(folder, names[2:], float(names[1]))
    if unknown := [name for name in names if name not in PARTS]:
        print(f"gpu_check.py: there is no {unknown[0]}: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    return check(folder, names or [*PARTS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

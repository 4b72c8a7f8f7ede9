"""A complete large run, as a user starts it.

The section takes more than five minutes on two cores, so it is measured only on request. The run is
timed once, from its command to the next prompt. Its memory is the sum over all its processes,
sampled every few seconds; shared memory counts once. Before and after the run, a plain PyTorch loop
on all cores trains the same number of models. The loop reuses freed memory, as the run does, and
evaluates nothing. The time to copy 256 MiB shows the speed of memory before and after the run.
"""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cores import COPY, PLAIN, copy_seconds, surroundings
from benchmarks.measure import Goal, Result, Table, seconds
from benchmarks.processes import in_process
from benchmarks.simulator import make_run, plain
from benchmarks.start_up import PROGRAM

ONLY_IF_NAMED = True
WORDS = ("algo=osgp", "model=resnet50", "nodes=32")
STEPS = (1, 3)  # of the plain loop; the difference of the two times excludes the creation of models
LOOK_SECONDS = 5.0
GIB = 2**30


def measure(words: Sequence[str] = WORDS, pause: float = LOOK_SECONDS) -> Iterator[Table]:
    loop, copy = [in_process(plain_gradient, words)], [copy_seconds()]
    run = whole(words, pause)
    loop.append(in_process(plain_gradient, words))
    copy.append(copy_seconds())
    each = run["wall"] / run["gradients"]
    yield Table(
        "A large run",
        (
            Result("wall time", "s", (run["wall"],), Goal("at most", 270)),
            Result(
                "of its processor time, in the system", "%", (run["system"],), Goal("at most", 5)
            ),
            Result("peak memory", "GB", (run["bytes"] / 1e9,), Goal("at most", 10.5)),
            Result("a gradient, all included", "s", (each,)),
            Result(f"{PLAIN}, a gradient", "s", tuple(loop)),
            Result(COPY, "s", tuple(copy)),
            Result(
                "a gradient over the plain loop's",
                "x",
                tuple(each / seconds for seconds in loop),
                Goal("at most", 1.1),
            ),
        ),
        f"`sgp-run {' '.join(words)}`, {run['gradients']:.0f} gradients.",
    )


def whole(words: Sequence[str], pause: float) -> dict[str, float]:
    """Execute the run; return its seconds, gradients, peak memory and percentage of system time."""
    peak, before = 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        line = [str(PROGRAM), *words, f"results={folder}", "name=run"]
        start = time.monotonic()
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, env=surroundings()) as process:
            while process.poll() is None:
                peak = max(peak, memory(process.pid))
                try:
                    process.wait(pause)
                except subprocess.TimeoutExpired:
                    continue
        wall = time.monotonic() - start
        if process.returncode:
            raise RuntimeError(f"sgp-run ended with {process.returncode}")
        summary = json.loads(Path(folder, "runs", "run", "summary.json").read_text("utf-8"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    system = after.ru_stime - before.ru_stime
    processor = after.ru_utime - before.ru_utime + system
    return {
        "wall": wall,
        "gradients": summary["steps"] * summary["nodes"],
        "bytes": peak,
        "system": 100 * system / processor,
    }


def memory(process: int) -> int:
    """Return the memory of a process and its children; shared memory counts once."""
    folder = Path("/proc", str(process))
    try:
        lines = (folder / "smaps_rollup").read_text("ascii").splitlines()
        children = (folder / "task" / str(process) / "children").read_text("ascii").split()
    except OSError:  # the process has ended
        return 0
    pss = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return pss + sum(memory(int(child)) for child in children)


def plain_gradient(words: Sequence[str]) -> float:
    """Return the seconds of a gradient and its step in a plain loop, run in this process."""
    from sgp_runner.utils.memory import keep_freed_memory

    keep_freed_memory()
    run, problem = make_run(*words)
    plain(run, problem, 1)()  # the first calls of PyTorch take longer
    few, many = (seconds(plain(run, problem, steps))() for steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0]) / run.nodes

"""Timing studies: SGP without gradients, by the number of nodes.

Each study runs in its own process, so that its memory can be measured. Times are processor times of
the whole run, including its checks and records but not the import of PyTorch. Processor times vary
less than wall times on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio
from benchmarks.processes import in_process

STEPS = {256: 200, 1024: 200, 4096: 200, 16_384: 50, 65_536: 20}  # by number of nodes
GOALS = {  # by number of nodes: seconds of the run, microseconds per step of a node, GiB
    4096: (Goal("less than", 17), Goal("at most", 20), None),
    65_536: (Goal("less than", 30), None, Goal("at most", 2)),
}
WORDS = ("model=timing_only", "algo=sgp", "epochs=4000", "data.size=100000000")


def measure(repeats: int = REPEATS, steps: Mapping[int, int] = STEPS) -> Iterator[Table]:
    words = {n: (*WORDS, f"nodes={n}", f"model.sample_steps={k}") for n, k in steps.items()}
    turns = interleaved({str(n): lambda n=n: apart(*words[n]) for n in steps}, repeats)
    each = {
        n: tuple(1e6 * run["seconds"] / n / k for run in turns[str(n)]) for n, k in steps.items()
    }
    results = []
    for n, k in steps.items():
        whole, one, memory = GOALS.get(n, (None, None, None))
        seconds = tuple(run["seconds"] for run in turns[str(n)])
        gib = tuple(run["bytes"] / 2**30 for run in turns[str(n)])
        results += [
            Result(f"{n} nodes, {k} steps", "s", seconds, whole),
            Result(f"{n} nodes, a step of one", "us", each[n], one),
            Result(f"{n} nodes, memory", "GiB", gib, memory),
        ]
    few, many = min(steps), max(steps)
    growth = ratio(f"a step of one of {many} nodes over one of {few}", each[many], each[few])
    yield Table("Timing studies", (*results, growth))


def apart(*words: str) -> dict[str, float]:
    """Run an experiment in a new process and return its processor time and peak memory."""
    with TemporaryDirectory() as folder:
        return in_process(alone, [f"results={folder}", "logger=jsonl", *words], OMP_NUM_THREADS="1")


def alone(words: Sequence[str]) -> dict[str, float]:
    import torch

    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.session.execution import perform

    torch.set_num_threads(1)
    experiment = experiment_of(words)
    start = time.process_time()
    perform(experiment)
    return {"seconds": time.process_time() - start, "bytes": peak_bytes()}


def peak_bytes() -> int:
    """Return this program's peak memory; getrusage would also count its parent process."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])

"""Memory of a simulated worker during the training of a large model.

The memory of a worker is the growth of peak memory from few to many workers, divided by the number
of added workers. In a simulation of a large model, the next vector reuses freed memory, so the
system need not clear it again. The measured memory includes gaps that are too small for a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import REPEATS, Result, Table, interleaved
from benchmarks.ranks import in_process
from sgp_runner.assembly.build import build_problem
from sgp_runner.config.overrides import experiment_of

# A model with 9.2 million parameters.
WIDE = ("model=mlp", "model.hidden=[3000,3000]", "batch_size=8", "data.partition=iid")
# Vectors per worker: parameters, momentum, and one message if the algorithm sends messages.
KEPT = {"algo=ar_sgd": 2, "algo=d_psgd": 3, "algo=sgp": 3, "algo=osgp": 3}


def measure(repeats: int = REPEATS, few_and_many: tuple[int, int] = (4, 12)) -> Iterator[Table]:
    few, many = few_and_many
    vector = 4 * sum(build_problem(experiment_of([*WIDE, f"nodes={few}"]).run).flat.layers)
    results = []
    for algo, vectors in KEPT.items():
        overrides = (*WIDE, algo, "epochs=0.3", "eval_every=99")
        turns = interleaved(
            {str(n): partial(apart, *overrides, f"nodes={n}") for n in few_and_many}, repeats
        )
        grown = (
            (b - a) / (many - few) for a, b in zip(turns[str(few)], turns[str(many)], strict=True)
        )
        what = f"{algo}: a worker over {vectors} times its parameters"
        results.append(
            Result(
                what,
                "x",
                tuple(growth / (vectors * vector) for growth in grown),
                1.1,
            )
        )
    text = (
        f"Parameters ({vector / 2**20:.0f} MiB), momentum, and where there are any one message in "
        f"flight; {few} and {many} workers."
    )
    yield Table("Peak memory of a worker", tuple(results), text)


def apart(*overrides: str) -> int:
    """Run an experiment in a new process and return its peak memory in bytes."""
    with TemporaryDirectory() as folder:
        return in_process(
            alone, [f"results={folder}", "logger=jsonl", *overrides], OMP_NUM_THREADS="1"
        )


def alone(overrides: Sequence[str]) -> int:
    import torch

    from sgp_runner.assembly.execution import run_experiment

    torch.set_num_threads(1)
    run_experiment(experiment_of(overrides))
    # getrusage would also count the parent process.
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])

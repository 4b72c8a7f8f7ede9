"""Memory of a simulated worker during the training of a large model.

The memory of a worker is the growth of peak memory from few to many workers, divided by the number
of added workers. In a simulation of a large model, the next vector reuses freed memory, so the
system need not clear it again. The measured memory includes gaps that are too small for a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved
from benchmarks.simulator import make_run
from benchmarks.timing_studies import apart

# A model with 9.2 million parameters.
WIDE = ("model=mlp", "model.hidden=[3000,3000]", "batch_size=8", "data.partition=iid")
# Vectors per worker: parameters, momentum, and one message if the algorithm sends messages.
KEPT = {"algo=ar_sgd": 2, "algo=d_psgd": 3, "algo=sgp": 3, "algo=osgp": 3}


def measure(repeats: int = REPEATS, few_and_many: tuple[int, int] = (4, 12)) -> Iterator[Table]:
    few, many = few_and_many
    _, problem = make_run(*WIDE, "algo=sgp", f"nodes={few}")
    vector = 4 * sum(problem.flat.layers)
    results = []
    for algo, vectors in KEPT.items():
        words = (*WIDE, algo, "epochs=0.3", "eval_every=99")
        turns = interleaved(
            {str(n): partial(apart, *words, f"nodes={n}") for n in few_and_many}, repeats
        )
        grown = (
            (b["bytes"] - a["bytes"]) / (many - few)
            for a, b in zip(turns[str(few)], turns[str(many)], strict=True)
        )
        what = f"{algo}: a worker over {vectors} times its parameters"
        results.append(
            Result(
                what, "x", tuple(each / (vectors * vector) for each in grown), Goal("at most", 1.1)
            )
        )
    text = (
        f"Parameters ({vector / 2**20:.0f} MiB), momentum, and where there are any one message in "
        f"flight; {few} and {many} workers."
    )
    yield Table("Peak memory of a worker", tuple(results), text)

"""Wall time of simulated training on one core and on several cores.

The compared runs take turns. Each runs in its own process on one core, two cores, and so on up to
all cores. For comparison, a plain PyTorch loop on one core trains the same number of models on the
same batches. The time to copy 256 MiB on one core shows how fast the memory is during these turns.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio, seconds
from benchmarks.processes import in_process, process_on
from benchmarks.simulator import LEARNING, make_run, plain, simulated
from benchmarks.start_up import PROGRAM

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem

LEARN = (*LEARNING, "nodes=32", "epochs=8")
SMALL = ("algo=sgp", "model=resnet8", "data=digits", "nodes=8", "epochs=10")
LARGE = ("algo=sgp", "model=resnet50", "data=digits", "nodes=4", "epochs=0.05")
PLAIN, COPY = "a plain PyTorch loop", "a copy of 256 MiB"
OURS, THREADS = "simulated SGP", "PyTorch's threads"
PASSIVE = "PyTorch's threads, passive"
COPIED = 2**28  # bytes
MAX_CORES = 16
# Goals by number of cores, relative to the plain loop on one core. The ideal for two cores is 0.5.
GOALS = {2: Goal("at most", 0.58)}
BESIDE = Goal("at most", 2.2)  # with a third process on two cores, two thirds of the time remain


def measure(
    repeats: int = REPEATS,
    learn: Sequence[str] = LEARN,
    small: Sequence[str] = SMALL,
    large: Sequence[str] = LARGE,
) -> Iterator[Table]:
    yield learning(repeats, tuple(learn))
    yield one_run(repeats, small)
    yield beside(repeats, tuple(large))


def numbers_of_cores() -> list[int]:
    """Return the numbers of cores to measure: powers of two up to the number of available cores."""
    from sgp_runner.utils.cores import present_cores

    most = min(present_cores(), MAX_CORES)
    return [count for count in (2**power for power in range(most.bit_length())) if count <= most]


def asking(
    pool: ProcessPoolExecutor, work: Callable[..., float], *arguments: object
) -> Callable[[], float]:
    """Return a function that calls ``work`` in another process."""
    return lambda: pool.submit(work, *arguments).result()


@cache
def made(words: tuple[str, ...]) -> tuple[Run, Problem]:
    return make_run(*words)


def simulated_seconds(words: tuple[str, ...]) -> float:
    from sgp_runner.simulator.engines import prepare_process

    run, problem = made(words)
    prepare_process(problem)
    gc.collect()  # frees the workers of the previous turn, which are in reference cycles
    return seconds(simulated(run, problem, "auto"))()


def plain_seconds(words: tuple[str, ...]) -> float:
    return seconds(plain(*made(words)))()


def copy_seconds() -> float:
    import torch

    torch.set_num_threads(1)
    source = torch.ones(COPIED, dtype=torch.uint8)  # zeros could all share one page
    to = source.clone()
    return seconds(lambda: to.copy_(source))()


def learning(repeats: int, words: tuple[str, ...]) -> Table:
    """Compare simulated SGP on different numbers of cores with a PyTorch loop on one core."""
    with ExitStack() as stack:
        pools = {count: stack.enter_context(process_on(count)) for count in numbers_of_cores()}
        alone = stack.enter_context(process_on(1))
        turns = interleaved(
            {
                PLAIN: asking(alone, plain_seconds, words),
                COPY: asking(alone, copy_seconds),
                **{
                    str(count): asking(pool, simulated_seconds, words)
                    for count, pool in pools.items()
                },
            },
            repeats,
        )
    times = {count: turns[str(count)] for count in pools}
    run, problem = made(words)
    over = (
        ratio(f"{on(count)} over a plain loop on one", values, turns[PLAIN], GOALS.get(count))
        for count, values in times.items()
    )
    return Table(
        "Learning by cores",
        (
            *(Result(f"simulated SGP, {on(count)}", "s", times[count]) for count in times),
            *beside_it(turns),
            *over,
        ),
        f"resnet8, {run.nodes} workers, {run.steps(problem)} steps of each.",
    )


def on(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def beside_it(turns: Mapping[str, tuple[float, ...]]) -> tuple[Result, Result]:
    """Return the results of the plain loop and of the memory copy, measured in the same turns."""
    return Result(PLAIN, "s", turns[PLAIN]), Result(COPY, "s", turns[COPY])


def one_run(repeats: int, words: Sequence[str]) -> Table:
    """Time a small run, from its command to the next prompt, with and without W&B."""
    turns = interleaved(
        {
            "sgp-run": seconds(partial(command, *words)),
            "logger=jsonl": seconds(partial(command, *words, "logger=jsonl")),
            PLAIN: seconds(partial(in_process, plain_program, words)),
            COPY: copy_seconds,
        },
        repeats,
    )
    results = (
        Result("sgp-run, with W&B offline", "s", turns["sgp-run"], Goal("at most", 5)),
        Result("sgp-run logger=jsonl", "s", turns["logger=jsonl"]),
        *beside_it(turns),
        ratio("sgp-run over a plain loop", turns["sgp-run"], turns[PLAIN]),
    )
    text = f"`sgp-run {' '.join(words)}`. The plain loop is a program too, and evaluates nothing."
    return Table("A small run, from prompt to prompt", results, text)


def command(*words: str) -> None:
    """Start ``sgp-run`` on all cores, with results in a new folder."""
    with TemporaryDirectory() as folder:
        line = [str(PROGRAM), f"results={folder}", *words]
        subprocess.run(line, check=True, capture_output=True, env=surroundings())


def surroundings() -> dict[str, str]:
    """Return environment variables for a run that uses all cores and W&B offline."""
    unlimited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**unlimited, "WANDB_MODE": "offline"}


def plain_program(words: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)
    plain(*make_run(*words))()


def beside(repeats: int, words: tuple[str, ...]) -> Table:
    """Time gradients of a large model, with and without a second program that occupies a core."""
    count = numbers_of_cores()[-1]
    with ExitStack() as stack:
        pool = {
            name: stack.enter_context(process_on(cores, **environment))
            for name, cores, environment in (
                (OURS, count, {}),
                (THREADS, count, {}),
                (PASSIVE, count, {"OMP_WAIT_POLICY": "passive"}),
                (PLAIN, 1, {}),
            )
        }
        works = {
            name: asking(pool[name], simulated_seconds if name == OURS else plain_seconds, words)
            for name in pool
        }
        busy = {
            f"{name}, busy": partial(while_busy, works[name]) for name in (OURS, THREADS, PASSIVE)
        }
        turns = interleaved({**works, **busy, COPY: asking(pool[PLAIN], copy_seconds)}, repeats)
    results = []
    for name in (OURS, THREADS, PASSIVE):
        quiet, loud = turns[name], turns[f"{name}, busy"]
        results += [
            Result(f"{name}", "s", quiet),
            Result(f"{name}, beside a busy program", "s", loud),
            ratio(f"{name}: busy over quiet", loud, quiet, BESIDE if name == OURS else None),
        ]
    run, problem = made(words)
    gradients = run.nodes * run.steps(problem)
    text = (
        f"{gradients} gradients of resnet50 on {on(count)}, quiet and beside a loop that never "
        "ends. `sgp-run` computes with a process of one thread on each core. PyTorch divides every "
        "layer among threads that wait for each other: actively, unless `OMP_WAIT_POLICY=passive`."
    )
    return Table("Beside a busy program", (*results, *beside_it(turns)), text)


def while_busy(work: Callable[[], float]) -> float:
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return work()
    finally:
        loop.kill()
        loop.wait()

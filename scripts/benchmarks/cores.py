"""Wall time of simulated learning, on one core and on more.

Runs that are compared take turns, each in a process of its own that may use one core, two, and so
on up to all. A plain loop of PyTorch trains as many models on the same batches, on one core. The
time of a copy of 256 MiB, also on one core, shows how fast memory was meanwhile.
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
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio, seconds
from benchmarks.processes import in_process, process_on
from benchmarks.simulator import LEARNING, make_run, plain, simulated
from benchmarks.start_up import PROGRAM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem

RESULTS = Path(__file__).resolve().parents[2] / "results" / "benchmarks"
LEARN = (*LEARNING, "nodes=32", "epochs=8")
SMALL = ("algo=sgp", "model=resnet8", "data=digits", "nodes=8", "epochs=10")
LARGE = ("algo=sgp", "model=resnet50", "data=digits", "nodes=4", "epochs=0.05")
PLAIN, COPY = "a plain PyTorch loop", "a copy of 256 MiB"
OURS, THREADS = "simulated SGP", "PyTorch's threads"
PASSIVE = "PyTorch's threads, passive"
COPIED = 2**28  # bytes
MOST = 16  # cores, measured or by the model
# By cores, over the plain loop on one. A process of each core would take 0.5 on two.
GOALS = {2: Goal("at most", 0.58)}
BESIDE = Goal("at most", 2.2)  # a third program on two cores leaves two thirds of them
# The size of a figure, as of those of the claims: a phone shows 5.4 inches 390 px wide.
SIZE, FONT = (5.4, 3.6), 11.0
INK, DARK, PALE, MEASURED = "#222222", "#555555", "#8a8a8a", "#0072b2"


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
    """The numbers of cores that are measured: powers of two up to those present."""
    from sgp_runner.utils.cores import present_cores

    most = min(present_cores(), MOST)
    return [count for count in (2**power for power in range(most.bit_length())) if count <= most]


def asking(
    pool: ProcessPoolExecutor, work: Callable[..., float], *arguments: object
) -> Callable[[], float]:
    """A function that calls ``work`` in another process."""
    return lambda: pool.submit(work, *arguments).result()


@cache
def made(words: tuple[str, ...]) -> tuple[Run, Problem]:
    return make_run(*words)


def simulated_seconds(words: tuple[str, ...]) -> float:
    from sgp_runner.simulator.engines import prepare_process

    run, problem = made(words)
    prepare_process(problem)
    gc.collect()  # workers of the turn before, which refer to each other
    return seconds(simulated(run, problem, "auto"))()


def plain_seconds(words: tuple[str, ...]) -> float:
    return seconds(plain(*made(words)))()


def copy_seconds() -> float:
    import torch

    torch.set_num_threads(1)
    source = torch.ones(COPIED, dtype=torch.uint8)  # zeros would be one page, read again and again
    to = source.clone()
    return seconds(lambda: to.copy_(source))()


def learning(repeats: int, words: tuple[str, ...]) -> Table:
    """Simulated SGP on one core and on more, against a loop over as many PyTorch models."""
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
    picture = plot(times, median(turns[PLAIN]))
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
        f"resnet8, {run.nodes} workers, {run.steps(problem)} steps of each. Numbers of cores that "
        "this machine does not have are not measured: the picture shows a model of them, a serial "
        "part and one that the cores share.\n\n"
        f"![seconds of simulated SGP by cores]({picture.name})",
    )


def on(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def beside_it(turns: Mapping[str, tuple[float, ...]]) -> tuple[Result, Result]:
    """The plain loop and the copy of the same turns."""
    return Result(PLAIN, "s", turns[PLAIN]), Result(COPY, "s", turns[COPY])


def parts(seconds_by_cores: Mapping[int, float]) -> tuple[float, float]:
    """The serial seconds, and those that cores share, which explain the times best."""
    shared, serial = linear_regression(
        [1 / count for count in seconds_by_cores], [*seconds_by_cores.values()]
    )
    return serial, shared


def plot(times: Mapping[int, Sequence[float]], plain_loop: float) -> Path:
    """Plot the seconds of a run by cores: measured ones, and beyond them those of the model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    path = RESULTS / "cores.svg"
    middle = {count: median(values) for count, values in times.items()}
    around = [
        [middle[count] - min(values) for count, values in times.items()],
        [max(values) - middle[count] for count, values in times.items()],
    ]
    with rc_context({"font.size": FONT, "text.color": INK, "svg.hashsalt": path.name}):
        figure = Figure(figsize=SIZE, layout="constrained", facecolor="white")
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.axhline(plain_loop, color=PALE, linestyle=":", zorder=0)
        axes.text(
            MOST, plain_loop, "a plain PyTorch loop, 1 core", color=DARK, ha="right", va="bottom"
        )
        if len(middle) > 1:
            serial, shared = parts(middle)
            ticks = [2**power for power in range(MOST.bit_length())]
            beyond = [count for count in ticks if count >= max(middle)]
            modelled = [serial + shared / count for count in beyond]
            axes.plot(beyond, modelled, "o--", color=PALE, markerfacecolor="white")
            label = f"model, not measured:\n{serial:.2g} s + {shared:.2g} s / cores"
            name(axes, label, beyond[len(beyond) // 4], modelled[len(beyond) // 4], DARK)
            axes.set_xticks(ticks, list(map(str, ticks)))
        axes.errorbar([*middle], [*middle.values()], around, fmt="o-", color=MEASURED, capsize=3)
        first = min(middle)
        name(axes, "measured", first, middle[first], MEASURED)
        axes.minorticks_off()
        axes.set_ylim(0)
        axes.set_xlabel("cores")
        axes.set_title("seconds of simulated SGP", fontsize=FONT, loc="left")
        for side in ("right", "top"):
            axes.spines[side].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def name(axes: Axes, text: str, x: float, y: float, colour: str) -> None:
    """Write ``text`` above and to the right of a point of a falling curve."""
    axes.annotate(text, (x, y), (8, 4), textcoords="offset points", color=colour)


def one_run(repeats: int, words: Sequence[str]) -> Table:
    """A small run from the prompt to the prompt, with and without W&B."""
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
    """Make a run of ``sgp-run`` on all cores in a new folder."""
    with TemporaryDirectory() as folder:
        line = [str(PROGRAM), f"results={folder}", *words]
        subprocess.run(line, check=True, capture_output=True, env=surroundings())


def surroundings() -> dict[str, str]:
    """The environment of programs: all cores, and no server of W&B."""
    unlimited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**unlimited, "WANDB_MODE": "offline"}


def plain_program(words: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)
    plain(*make_run(*words))()


def beside(repeats: int, words: tuple[str, ...]) -> Table:
    """Gradients of a large model beside a program that keeps a core busy, and without one."""
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

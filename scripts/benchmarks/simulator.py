"""Overhead of the simulator beside the gradients that it computes.

Everything runs in one thread, and times are its processor time, which a busy machine stretches less
than wall time. Timing studies are processes of their own, so that their memory can be measured;
their time is that of the whole run with its records. Memory per worker is the growth of peak memory
from one number of workers to another, divided by the difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem

RESULTS = Path(__file__).resolve().parents[2] / "results" / "benchmarks"
WORKERS, SLEEPS = 256, 400
LEARNING = ("model=resnet8", "batch_size=32", "algo=sgp")
ENGINES = {
    "mlp": ("model=mlp", "batch_size=16"),
    "transformer": ("model=transformer", "batch_size=16"),
}
# A model with 9.2 million parameters.
WIDE = ("model=mlp", "model.hidden=[3000,3000]", "batch_size=8", "data.partition=iid")
# The vectors that a worker keeps: parameters, momentum, and a message where there are any.
KEPT = {"algo=ar_sgd": 2, "algo=d_psgd": 3, "algo=sgp": 3, "algo=osgp": 3}


def measure(
    repeats: int = REPEATS,
    nodes: Sequence[int] = (256, 512, 1024, 2048, 4096),
    steps: int = 200,
    learners: int = 32,
    workers: int = 64,
    few_and_many: tuple[int, int] = (4, 12),
) -> Iterator[Table]:
    import torch

    torch.set_num_threads(1)
    yield kernel(repeats)
    yield studies(repeats, nodes, steps)
    yield learning(repeats, learners)
    yield engines(repeats, workers)
    yield memory(repeats, few_and_many)


def processor_seconds(work: Callable[[], object]) -> Callable[[], float]:
    """A function that calls ``work`` and returns the processor seconds that it took."""

    def timed() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return timed


def kernel(repeats: int) -> Table:
    """The time of a blocking operation of coroutines that only wait for the clock."""
    microseconds = interleaved(
        {"wait": lambda: 1e6 * processor_seconds(sleeping)() / (WORKERS * SLEEPS)}, repeats
    )["wait"]
    return Table(
        "The kernel",
        (
            Result(
                f"a blocking operation, {WORKERS} workers", "us", microseconds, Goal("at most", 3)
            ),
        ),
    )


def sleeping() -> None:
    from sgp_runner.core.scheduler import Call, Future, Scheduler, VirtualClock

    clock = VirtualClock(None)
    scheduler = Scheduler(clock)

    async def sleeper(rank: int) -> None:
        for _ in range(SLEEPS):
            wait: Future[None] = Future()
            clock.at(clock.now + 1 + rank / WORKERS, Call(partial(scheduler.resolve, wait, None)))
            await wait

    for rank in range(WORKERS):
        scheduler.spawn(sleeper(rank), f"sleeper {rank}")
    scheduler.run()


def studies(repeats: int, nodes: Sequence[int], steps: int) -> Table:
    """The time and memory of SGP without gradients, by number of workers."""
    words = ("model=timing_only", "algo=sgp", "epochs=4000", f"model.sample_steps={steps}")
    turns = interleaved({str(n): lambda n=n: apart(f"nodes={n}", *words) for n in nodes}, repeats)
    results = []
    for n in nodes:
        times = tuple(one["seconds"] for one in turns[str(n)])
        per_step = tuple(1e6 * time / n / steps for time in times)
        most = n == nodes[-1]
        results += [
            Result(
                f"{n} nodes, {steps} steps", "s", times, Goal("less than", 60) if most else None
            ),
            Result(f"{n} nodes, a step of one", "us", per_step),
        ]
        if most:
            results.append(
                Result(
                    f"{n} nodes, memory",
                    "GiB",
                    tuple(one["bytes"] / 2**30 for one in turns[str(n)]),
                    Goal("at most", 2),
                )
            )
    growth = ratio(
        f"a step at {nodes[-1]} nodes over one at {nodes[0]}",
        (one["seconds"] / nodes[-1] for one in turns[str(nodes[-1])]),
        (one["seconds"] / nodes[0] for one in turns[str(nodes[0])]),
    )
    plot(nodes, [sorted(one["seconds"] for one in turns[str(n)]) for n in nodes], steps)
    text = "Growth with the number of nodes: [simulator.svg](simulator.svg)."
    return Table("Timing studies", (*results, growth), text)


def plot(nodes: Sequence[int], times: Sequence[Sequence[float]], steps: int) -> None:
    """Plot seconds against nodes, with the line through the origin and the last point."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "simulator"
    import matplotlib.pyplot as plt

    middle = [each[len(each) // 2] for each in times]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    around = [
        [m - t[0] for m, t in zip(middle, times, strict=True)],
        [t[-1] - m for m, t in zip(middle, times, strict=True)],
    ]
    axes.errorbar(nodes, middle, around, label="measured: median, least and greatest")
    axes.plot([0, nodes[-1]], [0, middle[-1]], "--", label="proportional to nodes")
    axes.set(xlabel="nodes", ylabel=f"seconds for {steps} steps", xlim=(0, None), ylim=(0, None))
    axes.legend()
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "simulator.svg", metadata={"Date": None})
    plt.close(figure)


def apart(*words: str) -> dict[str, float]:
    """Processor time and peak memory of a run in a process of its own."""
    with TemporaryDirectory() as folder:
        program = "import sys; from benchmarks.simulator import alone; alone(sys.argv[1:])"
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, "-c", program, f"results={folder}", "logger=jsonl", *words]
        output = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        ).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def alone(words: Sequence[str]) -> None:
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.session.execution import perform

    experiment = experiment_of(words)
    start = time.process_time()
    perform(experiment)
    spent = time.process_time() - start
    print(json.dumps({"seconds": spent, "bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Peak memory of this program; getrusage would include that of its parent process."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def make_run(*words: str) -> tuple[Run, Problem]:
    from sgp_runner.config.overrides import experiment_of

    run = experiment_of(["logger=jsonl", *words]).run
    return run, run.make_problem()


def learning(repeats: int, nodes: int) -> Table:
    """Simulated SGP against a loop over as many PyTorch models on the same batches."""
    run, problem = make_run(*LEARNING, f"nodes={nodes}", "epochs=2")
    turns = interleaved(
        {
            "ours": processor_seconds(simulated(run, problem)),
            "plain": processor_seconds(plain(run, problem)),
        },
        repeats,
    )
    over = ratio(
        "the simulator over a plain loop", turns["ours"], turns["plain"], Goal("at most", 1.15)
    )
    both = (
        Result("simulated SGP", "s", turns["ours"]),
        Result("a plain PyTorch loop", "s", turns["plain"]),
    )
    return Table(
        "Learning", (*both, over), f"resnet8, {nodes} workers, {run.steps(problem)} steps of each."
    )


def simulated(run: Run, problem: Problem, engine: str = "loop") -> Callable[[], None]:
    def train() -> None:
        from sgp_runner.simulator.backend import simulate
        from sgp_runner.simulator.engine import make_engine

        simulation, workers = simulate(run, problem, make_engine(problem, engine, 32))
        for worker in workers:
            simulation.start(worker, run.algo.run(worker))
        simulation.run()

    return train


def plain(run: Run, problem: Problem) -> Callable[[], None]:
    """A function that trains models without communication, with PyTorch alone."""
    import copy

    import torch

    def train() -> None:
        models = [copy.deepcopy(problem.flat.module).train() for _ in range(run.nodes)]
        optimizers = [
            torch.optim.SGD(
                model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
            )
            for model in models
        ]
        for step in range(run.steps(problem)):
            for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                inputs, targets = problem.batch(rank, step)
                optimizer.zero_grad()
                problem.dataset.task.loss(model(*inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    return train


def engines(repeats: int, nodes: int) -> Table:
    """Runs without evaluation that differ in the engine alone."""
    results = []
    for name, words in ENGINES.items():
        run, problem = make_run(
            *words,
            "algo=sgp",
            f"nodes={nodes}",
            "epochs=1" if name == "transformer" else "epochs=4",
        )
        turns = interleaved(
            {
                engine: processor_seconds(simulated(run, problem, engine))
                for engine in ("loop", "auto")
            },
            repeats,
        )
        results.append(
            ratio(
                f"{name}: the loop over what auto chooses",
                turns["loop"],
                turns["auto"],
                Goal("at least", 1.5),
            )
        )
    return Table("Engines", tuple(results), f"{nodes} workers, 16 samples each.")


def memory(repeats: int, few_and_many: tuple[int, int]) -> Table:
    """Peak memory per worker while a large model trains."""
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
    return Table("Memory", tuple(results), text)

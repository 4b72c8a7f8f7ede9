"""Overhead of the simulator beside the gradients that it computes.

Everything runs in one thread, and times are its processor time, which a busy machine stretches less
than wall time. Memory per worker is the growth of peak memory from one number of workers to
another, divided by the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio
from benchmarks.timing_studies import apart

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem

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
    learners: int = 32,
    workers: int = 64,
    few_and_many: tuple[int, int] = (4, 12),
) -> Iterator[Table]:
    import torch

    torch.set_num_threads(1)
    yield kernel(repeats)
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

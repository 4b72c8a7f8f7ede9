"""Overhead of the simulator on top of the gradients that it computes.

Everything runs in one thread. Times are processor times, which vary less than wall times on a busy
machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio
from sgp_runner.config.overrides import experiment_of
from sgp_runner.elastic.build import build_problem
from sgp_runner.utils.cores import KEY

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem

WORKERS, SLEEPS = 256, 400
LEARNING = ("model=resnet8", "batch_size=32", "algo=sgp")
ENGINES = {
    "mlp": ("model=mlp", "batch_size=16"),
    "transformer": ("model=transformer", "batch_size=16"),
}
# Cases for vmap: models, batch sizes, and the largest number of workers per call.
VMAPPED, SAMPLES, WIDTH = ("transformer", "gpt"), (2, 4, 8, 16, 32), 16
SETTLING = 4  # rounds in which vmap tries numbers of workers per call


def measure(
    repeats: int = REPEATS,
    learners: int = 32,
    workers: int = 64,
    samples: Sequence[int] = SAMPLES,
) -> Iterator[Table]:
    import torch

    torch.set_num_threads(1)
    with mock.patch.dict(os.environ, {KEY: "1"}):  # otherwise the loop uses other processes
        yield kernel(repeats)
        yield learning(repeats, learners)
        yield engines(repeats, workers)
        yield where_vmap_pays(repeats, samples)


def processor_seconds(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls ``work`` and returns the processor seconds of the call."""

    def timed() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return timed


def kernel(repeats: int) -> Table:
    """Measure the time per operation of coroutines that only wait for the clock."""
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
    from sgp_runner.core.scheduler import Future, Scheduler, VirtualClock

    clock = VirtualClock()
    scheduler = Scheduler(clock)

    async def sleeper(rank: int) -> None:
        for _ in range(SLEEPS):
            wait: Future[None] = Future()
            clock.at(clock.now + 1 + rank / WORKERS, "call", scheduler.resolve, wait, None)
            await wait

    for rank in range(WORKERS):
        scheduler.spawn(sleeper(rank), f"sleeper {rank}")
    scheduler.run()


def make_run(*words: str) -> tuple[Run, Problem]:
    run = experiment_of(["logger=jsonl", *words]).run
    return run, build_problem(run)


def learning(repeats: int, nodes: int) -> Table:
    """Compare simulated SGP with a loop over the same number of PyTorch models and batches."""
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
        from sgp_runner.simulator.engines import make_engine
        from sgp_runner.simulator.times import simulate

        computes = make_engine(problem, engine, 32)
        simulation, workers = simulate(run, problem, computes)
        for worker in workers:
            simulation.start(worker, run.algo.run(worker))
        try:
            simulation.run()
        finally:
            computes.close()

    return train


def plain(run: Run, problem: Problem) -> Callable[[], None]:
    """Return a function that trains separate models with PyTorch alone."""
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
    """Compare runs that differ only in the engine. The runs do not evaluate."""
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


def where_vmap_pays(repeats: int, samples: Sequence[int]) -> Table:
    """Compare the loop with vmap for gradients of `WIDTH` workers, by batch size."""
    results = []
    for name in VMAPPED:
        for count in samples:
            ways = gradients_of(name, count, WIDTH)
            for _ in range(SETTLING):
                ways["vmap"]()
            turns = interleaved(
                {way: processor_seconds(work) for way, work in ways.items()}, repeats
            )
            results.append(
                ratio(f"{name}, {count} samples: the loop over vmap", turns["loop"], turns["vmap"])
            )
    text = (
        f"Gradients of {WIDTH} workers. A call of vmap takes the place of one for each worker, "
        "which pays where calls are short: with few samples."
    )
    return Table("Where vmap pays", tuple(results), text)


def gradients_of(
    model: str, samples: int, workers: int, device: str = "cpu"
) -> dict[str, Callable[[], object]]:
    """Return, by engine, a function that computes one gradient of each worker."""
    from sgp_runner.core.problem import Compute
    from sgp_runner.simulator.engine import Engine, Gradient, Loop, Vmap

    words = (f"model={model}", f"batch_size={samples}", f"nodes={workers}", "algo=sgp")
    problem = build_problem(experiment_of(words).run, Compute(device))
    params = [problem.start() for _ in range(workers)]
    buffers = [problem.flat.fresh_buffers() for _ in range(workers)]

    def compute(engine: Engine) -> None:
        gradients = [Gradient(rank, 0, params[rank], buffers[rank]) for rank in range(workers)]
        for gradient in gradients:
            engine.start(gradient)
        for gradient in gradients:
            engine.finish(gradient)

    return {
        "loop": partial(compute, Loop(problem)),
        "vmap": partial(compute, Vmap(problem, workers)),
    }

"""One GPU: overhead of the runner in a step of ResNet-50, and throughput relative to a bound.

One process trains on synthetic ImageNet with bf16 and channels-last. A plain PyTorch loop with the
same model, data, batches and SGD with momentum is timed in the same way. The bound is the number of
images per second at the card's published dense bf16 rate, with 3 x 4.09 billion multiply-adds per
image (the backward pass takes twice as many as the forward pass). No program comes near the bound,
because memory limits some convolutions of ResNet-50.

A second measurement counts simulated workers per second: gradients of small models, computed one by
one or all in one call of vmap. Each worker has its own parameters and its own batch, which is
copied from the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks import rivals
from benchmarks.measure import REPEATS, Result, Skipped, Table, interleaved, ratio
from benchmarks.ranks import Ranks
from benchmarks.step import run, train
from sgp_runner.assembly.build import build_problem
from sgp_runner.config.overrides import experiment_of
from sgp_runner.utils.devices import published_rate

OURS = {"AR-SGD": "algo=ar_sgd", "SGP": "algo=sgp"}
# Operations per image of 224 x 224 pixels; torchvision's table lists 4.09 G multiply-adds.
FLOPS = 3 * 2 * 4.09e9


def measure(repeats: int = REPEATS, steps: int = 50, batch_size: int = 128) -> Iterator[Table]:
    import torch

    if not torch.cuda.is_available():
        raise Skipped(
            "This machine has no CUDA device that PyTorch can use, so nothing was measured here."
        )
    overrides = settings(steps, batch_size)
    with (
        TemporaryDirectory() as folder,
        Ranks(1) as our_rank,
        Ranks(1) as their_rank,
    ):
        turns: dict[str, Callable[[], Mapping[str, float]]] = {
            name: partial(run, our_rank, [*overrides, algo, f"results={folder}", "name=run"], steps)
            for name, algo in OURS.items()
        }
        turns["plain PyTorch"] = partial(train, their_rank, rivals.plain, overrides, steps)
        outcomes = interleaved(turns, repeats)
    times = {name: tuple(turn["seconds"] for turn in outcome) for name, outcome in outcomes.items()}
    yield Table(
        "Time of a step",
        tuple(
            Result(name, "ms", tuple(1000 * seconds for seconds in values))
            for name, values in times.items()
        ),
    )
    goal = 1.02
    yield Table(
        "Against plain PyTorch",
        tuple(ratio(name, times[name], times["plain PyTorch"], goal) for name in OURS),
    )
    yield throughput(
        torch.cuda.get_device_name(),
        {name: tuple(batch_size / seconds for seconds in values) for name, values in times.items()},
    )
    yield simulated_workers("cuda:0", repeats)


def settings(steps: int, batch_size: int) -> list[str]:
    """Return the settings of one epoch of ``2 * steps`` steps on one node."""
    return [
        *("model=resnet50", "data=synthetic", f"data.size={2 * steps * batch_size}"),
        *("data.valid_size=4", "epochs=1", "nodes=1", "network=nccl", "network.autocast=bf16"),
        *("network.channels_last=true", f"batch_size={batch_size}", f"log_every={steps}"),
        *("optim.schedule=constant", "optim.lr=0.01", "resume=never", "logger=jsonl"),
    ]


def throughput(card: str, images: Mapping[str, tuple[float, ...]]) -> Table:
    """Return a table of images per second, also as a percentage of the bound."""
    results = [Result(name, "images/s", values) for name, values in images.items()]
    published = published_rate(card)
    if published is None:
        return Table(
            "Throughput", tuple(results), f"There is no published rate for the {card} here."
        )
    rate, source = published
    results += [
        Result(
            f"{name}, of the bound",
            "%",
            tuple(100 * speed * FLOPS / rate for speed in values),
        )
        for name, values in images.items()
    ]
    return Table(
        "Throughput",
        tuple(results),
        f"{card}: {rate / 1e12:g} Tflop/s ({source}), at most {rate / FLOPS:.0f} images/s.",
    )


def simulated_workers(
    device: str, repeats: int, workers: int = 64, batch_size: int = 16, rounds: int = 20
) -> Table:
    """Return a table of simulated workers per second, timed over ``rounds`` steps."""
    results = []
    for model in ("mlp", "transformer"):
        ways = gradients_of(model, batch_size, workers, device)
        turns = {
            f"{model}, one by one": timed(ways["loop"], device, rounds),
            f"{model}, vmap": timed(ways["vmap"], device, rounds),
        }
        seconds = interleaved(turns, repeats)
        results += [
            Result(name, "workers/s", tuple(workers / duration for duration in values))
            for name, values in seconds.items()
        ]
    return Table(
        "Simulated workers", tuple(results), f"{workers} workers with {batch_size} samples each."
    )


def timed(work: Callable[[], object], device: str, rounds: int) -> Callable[[], float]:
    """Return a function that runs ``rounds`` steps of ``work`` and returns the seconds per step."""

    def measure() -> float:
        rivals.settle(device)
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        rivals.settle(device)
        return (time.perf_counter() - start) / rounds

    return measure


def gradients_of(
    model: str, samples: int, workers: int, device: str = "cpu"
) -> dict[str, Callable[[], object]]:
    """Return, by engine, a function that computes one gradient of each worker."""
    from sgp_runner.core.problem import Compute
    from sgp_runner.simulator.engine import Engine, Gradient, Loop, Vmap

    overrides = (f"model={model}", f"batch_size={samples}", f"nodes={workers}", "algo=sgp")
    problem = build_problem(experiment_of(overrides).run, Compute(device))
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

"""One GPU: the overhead of the runner in a step of ResNet-50, and the distance to the card's bound.

Synthetic ImageNet, bf16 and channels-last, one process. The plain loop is PyTorch's: the same
model, data and batches, SGD with momentum, timed as ours is. The bound counts 3 x 4.09 billion
multiply-adds for an image (forward, and twice that backward) at the card's published dense bf16
rate; convolutions of ResNet-50 are partly bound by memory, so no program comes near it.

Simulated workers per second are gradients of small models, each with its own parameters and batch,
which is read from the host: one by one, all in one call of vmap, and that call as a CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import rivals
from benchmarks.hosts import Here
from benchmarks.measure import REPEATS, Goal, Result, Skipped, Table, interleaved, ratio
from benchmarks.processes import Ranks
from benchmarks.step import run, train
from sgp_runner.elastic.build import build_problem

if TYPE_CHECKING:
    from torch import Tensor

OURS = {"AR-SGD": "algo=ar_sgd", "SGP": "algo=sgp"}
# Operations for an image of 224 x 224 pixels; torchvision's table says 4.09 G multiply-adds.
FLOPS = 3 * 2 * 4.09e9
# Published dense bf16 operations per second with their source, by a part of torch's name of the
# card; the first match counts. Rates with sparsity, which are twice as high, are halved.
CARDS = {
    "H100 PCIe": (756.5e12, "NVIDIA H100 datasheet, PCIe"),
    "H100 NVL": (835.5e12, "NVIDIA H100 datasheet, NVL"),
    "H100": (989.4e12, "NVIDIA H100 datasheet, SXM"),
    "H200 NVL": (835.5e12, "NVIDIA H200 datasheet, NVL"),
    "H200": (989.4e12, "NVIDIA H200 datasheet, SXM"),
    "A100": (312e12, "NVIDIA A100 datasheet"),
    "V100": (125e12, "NVIDIA V100 datasheet, fp16, as it has no bf16"),
}


def measure(repeats: int = REPEATS, steps: int = 50, batch_size: int = 128) -> Iterator[Table]:
    import torch

    if not torch.cuda.is_available():
        raise Skipped(
            "This machine has no CUDA device that PyTorch can use, so nothing was measured here."
        )
    words = settings(steps, batch_size)
    with (
        TemporaryDirectory() as folder,
        Ranks(1, Here()) as our_rank,
        Ranks(1, Here()) as their_rank,
    ):
        turns: dict[str, Callable[[], Mapping[str, float]]] = {
            name: partial(run, our_rank, [*words, algo, f"results={folder}", "name=run"], steps)
            for name, algo in OURS.items()
        }
        turns["plain PyTorch"] = partial(train, their_rank, rivals.plain, words, steps)
        outcomes = interleaved(turns, repeats)
    times = {name: tuple(turn["seconds"] for turn in outcome) for name, outcome in outcomes.items()}
    yield Table(
        "Time of a step",
        tuple(
            Result(name, "ms", tuple(1000 * each for each in values))
            for name, values in times.items()
        ),
    )
    goal = Goal("at most", 1.02)
    yield Table(
        "Against plain PyTorch",
        tuple(ratio(name, times[name], times["plain PyTorch"], goal) for name in OURS),
    )
    yield throughput(
        torch.cuda.get_device_name(),
        {name: tuple(batch_size / each for each in values) for name, values in times.items()},
    )
    yield simulated_workers("cuda:0", repeats)


def settings(steps: int, batch_size: int) -> list[str]:
    """Settings of one epoch of twice ``steps`` on one node."""
    words = [
        "model=resnet50",
        "data=synthetic",
        f"data.size={2 * steps * batch_size}",
        "data.valid_size=4",
        "epochs=1",
        "nodes=1",
    ]
    words += [
        "network=nccl",
        "network.autocast=bf16",
        "network.channels_last=true",
        f"batch_size={batch_size}",
        f"log_every={steps}",
    ]
    return [*words, "optim.schedule=constant", "optim.lr=0.01", "resume=never", "logger=jsonl"]


def throughput(card: str, images: Mapping[str, tuple[float, ...]]) -> Table:
    """Images per second, and their share of what the card's arithmetic allows."""
    results = [Result(name, "images/s", values) for name, values in images.items()]
    known = next((rate for name, rate in CARDS.items() if name in card), None)
    if known is None:
        return Table(
            "Throughput", tuple(results), f"There is no published rate for the {card} here."
        )
    rate, source = known
    results += [
        Result(f"{name}, of the bound", "%", tuple(100 * each * FLOPS / rate for each in values))
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
    """Simulated workers per second, timed over ``rounds`` steps; without CUDA graphs on a CPU."""
    results = []
    for model in ("mlp", "transformer"):
        turns = {
            f"{model}, {how}": timed(work, device, rounds)
            for how, work in ways(model, device, workers, batch_size).items()
        }
        seconds = interleaved(turns, repeats)
        results += [
            Result(name, "workers/s", tuple(workers / each for each in values))
            for name, values in seconds.items()
        ]
    return Table(
        "Simulated workers", tuple(results), f"{workers} workers with {batch_size} samples each."
    )


def ways(
    model: str, device: str, workers: int, batch_size: int
) -> dict[str, Callable[[int], object]]:
    """Functions that compute all workers' gradients of a step, by name."""
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.problem import Compute
    from sgp_runner.simulator.engine import Gradient, Vmap

    run = experiment_of(
        [f"model={model}", f"batch_size={batch_size}", f"nodes={workers}", "logger=jsonl"]
    ).run
    problem = build_problem(run, Compute(device))
    params = [problem.start() for _ in range(workers)]
    buffers = [problem.flat.fresh_buffers() for _ in range(workers)]
    vmap = Vmap(problem, workers)
    problem.flat.module.train()

    def stacked(step: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        return vmap.stacked(
            [Gradient(rank, step, params[rank], buffers[rank]) for rank in range(workers)]
        )

    def one_by_one(step: int) -> object:
        return [
            problem.gradient(params[rank], buffers[rank], rank, step) for rank in range(workers)
        ]

    found: dict[str, Callable[[int], object]] = {
        "one by one": one_by_one,
        "vmap": lambda step: vmap.call(*stacked(step)),
    }
    if device != "cpu":
        found["vmap as a CUDA graph"] = as_graph(vmap.call, stacked)
    return found


def as_graph(
    call: Callable[..., tuple[Tensor, Tensor]], stacked: Callable[[int], tuple[Any, ...]]
) -> Callable[[int], object]:
    """Capture ``call`` as a CUDA graph that is replayed on the output of ``stacked``.

    Raises RuntimeError if the graph computes something else.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    kept = stacked(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # allocations of the first calls must not be captured
        for _ in range(3):
            expected, _ = call(*kept)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, losses = call(*kept)

    def replay(step: int) -> object:
        for old, new in zip(tree_leaves(kept), tree_leaves(stacked(step)), strict=True):
            old.copy_(new)
        graph.replay()
        return values, losses

    replay(0)
    if not torch.allclose(values, expected, rtol=1e-3, atol=1e-5):
        raise RuntimeError("a CUDA graph of vmap does not compute what vmap does")
    return replay


def timed(work: Callable[[int], object], device: str, rounds: int) -> Callable[[], float]:
    """A function that runs ``rounds`` steps of ``work`` and returns the seconds per step."""

    def measure() -> float:
        rivals.settle(device)
        start = time.perf_counter()
        for step in range(rounds):
            work(step)
        rivals.settle(device)
        return (time.perf_counter() - start) / rounds

    return measure

"""One GPU: overhead of the runner in a step of ResNet-50, and throughput relative to a bound.

One process trains on synthetic ImageNet with bf16 and channels-last. A plain PyTorch loop with the
same model, data, batches and SGD with momentum is timed in the same way. The bound is the number of
images per second at the card's published dense bf16 rate, with 3 x 4.09 billion multiply-adds per
image (the backward pass takes twice as many as the forward pass). No program comes near the bound,
because memory limits some convolutions of ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks import rivals
from benchmarks.measure import REPEATS, Result, Skipped, Table, interleaved, ratio
from benchmarks.ranks import Ranks
from benchmarks.step import run, train
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
    yield Table(
        "Against plain PyTorch",
        tuple(ratio(name, times[name], times["plain PyTorch"], 1.02) for name in OURS),
    )
    yield throughput(
        torch.cuda.get_device_name(),
        {name: tuple(batch_size / seconds for seconds in values) for name, values in times.items()},
    )


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

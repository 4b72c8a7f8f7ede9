"""One GPU: overhead of the runner in a step of ResNet-50, and throughput relative to a bound.

This process trains on synthetic ImageNet with bf16, in both memory formats. A plain PyTorch loop
with the same model and SGD with momentum is timed in the same way. All read the same eight batches,
which stay on the GPU: noise takes the host longer to make than a step takes. The bound is the
number of images per second at the card's published dense bf16 rate, with 3 x 4.09 billion
multiply-adds per image (the backward pass takes twice as many as the forward pass). No program
comes near the bound, because memory limits some convolutions of ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks import rivals
from benchmarks.measure import REPEATS, Result, Skipped, Table, interleaved, ratio
from benchmarks.ranks import OneRank
from benchmarks.step import run, train
from sgp_runner.utils.devices import published_rate

OURS = {"AR-SGD": "algo=ar_sgd", "SGP": "algo=sgp"}
PLAIN = "plain PyTorch"
LAYOUTS = {"channels last": True, "NCHW": False}
# Operations per image of 224 x 224 pixels; torchvision's table lists 4.09 G multiply-adds.
FLOPS = 3 * 2 * 4.09e9


def measure(repeats: int = REPEATS, steps: int = 50, batch_size: int = 128) -> Iterator[Table]:
    import torch

    if not torch.cuda.is_available():
        raise Skipped(
            "This machine has no CUDA device that PyTorch can use, so nothing was measured here."
        )
    images: dict[str, tuple[float, ...]] = {}
    for layout, channels_last in LAYOUTS.items():
        overrides = settings(steps, batch_size, channels_last)
        times = step_times(overrides, repeats, steps)
        yield from tables(f", {layout}", times)
        images |= {
            f"{name}, {layout}": tuple(batch_size / seconds for seconds in values)
            for name, values in times.items()
        }
    yield throughput(torch.cuda.get_device_name(), images)


def step_times(overrides: Sequence[str], repeats: int, steps: int) -> dict[str, tuple[float, ...]]:
    """Return the seconds per step of our algorithms and of the plain loop."""
    with TemporaryDirectory() as folder, OneRank() as rank, rivals.Resident().read():
        turns: dict[str, Callable[[], Mapping[str, float]]] = {
            name: partial(run, rank, [*overrides, algo, f"results={folder}", "name=run"], steps)
            for name, algo in OURS.items()
        }
        turns[PLAIN] = partial(train, rank, rivals.plain, [*overrides], steps)
        outcomes = interleaved(turns, repeats)
    return {name: tuple(turn["seconds"] for turn in outcome) for name, outcome in outcomes.items()}


def tables(what: str, times: Mapping[str, Sequence[float]]) -> Iterator[Table]:
    """Yield the tables of the times returned by `step_times`."""
    yield Table(
        f"Time of a step{what}",
        tuple(
            Result(name, "ms", tuple(1000 * seconds for seconds in values))
            for name, values in times.items()
        ),
    )
    yield Table(
        f"Against plain PyTorch{what}",
        tuple(ratio(name, times[name], times[PLAIN], 1.02) for name in OURS),
    )


def settings(steps: int, batch_size: int, channels_last: bool = True) -> list[str]:
    """Return the settings of one epoch of ``2 * steps`` steps on one node."""
    return [
        *("model=resnet50", "data=synthetic", f"data.size={2 * steps * batch_size}"),
        *("data.valid_size=4", f"batch_size={batch_size}"),
        *(f"network.channels_last={str(channels_last).lower()}", *on_one_node(steps)),
        *("optim.schedule=constant", "optim.lr=0.01"),
    ]


def on_one_node(steps: int) -> list[str]:
    """Return settings of a run of ``2 * steps`` steps, recorded halfway and at the end."""
    return [
        *("nodes=1", "network=nccl", "network.autocast=bf16", "epochs=1", f"log_every={steps}"),
        *("resume=never", "logger=jsonl"),
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

"""Problem sizes of the parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Models, batches and counts of the parts.

    images, language: settings of the two models, without their steps
    steps, repeats: timed steps per run, and number of repeats
    codec: numbers in a vector. widths: simulated workers per call of vmap
    many: numbers of workers with the larger model
    state: settings of the model and network for the checkpoint test
    """

    images: tuple[str, ...] = ("model=resnet50", "data=synthetic")
    batch_size: int = 128
    language: tuple[str, ...] = (
        *("model=gpt", "model.layers=12", "model.width=768", "model.heads=12"),
        *("data.block=1024", "data.valid_size=1"),
    )
    language_batch: int = 16
    steps: int = 20
    repeats: int = 2
    codec: tuple[int, ...] = (25_000_000, 250_000_000)
    rows: int = 1024
    widths: tuple[int, ...] = (8, 32, 128)
    many: tuple[int, ...] = (8, 32)
    state: tuple[str, ...] = (
        *("model=gpt", "model.layers=24", "model.width=1536", "model.heads=16"),
        *("data.block=64", "data.valid_size=1", "network=nccl", "network.autocast=bf16"),
    )


REAL = Sizes()

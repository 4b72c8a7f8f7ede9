"""The device that computes gradients: the CPU or a GPU of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from sgp_runner.utils.errors import ConfigError, RankFailed

AUTO = "auto"
# Published dense bf16 operations per second, with sums in float32, and their source, by a regular
# expression for torch's name of the card; the first match counts. Rates with sparsity, which are
# twice as high, are halved.
CARDS = {
    "GB200": (2500e12, "NVIDIA GB200 NVL72 datasheet, a GPU"),
    "B200": (2250e12, "NVIDIA Blackwell datasheet, HGX B200, a GPU"),
    "H100 PCIe": (756.5e12, "NVIDIA H100 datasheet, PCIe"),
    "H100 NVL": (835.5e12, "NVIDIA H100 datasheet, NVL"),
    "H100": (989.4e12, "NVIDIA H100 datasheet, SXM"),
    "H200 NVL": (835.5e12, "NVIDIA H200 datasheet, NVL"),
    "H200": (989.4e12, "NVIDIA H200 datasheet, SXM"),
    "A100": (312e12, "NVIDIA A100 datasheet"),
    "A10G": (70e12, "NVIDIA A10G datasheet"),
    "A10$": (125e12, "NVIDIA A10 datasheet"),
    "L40S": (362.05e12, "NVIDIA L40S datasheet"),
    "RTX 5090$": (209.5e12, "NVIDIA RTX Blackwell GPU Architecture whitepaper"),
    "RTX 4090$": (165.2e12, "NVIDIA Ada GPU Architecture whitepaper"),
    "V100": (125e12, "NVIDIA V100 datasheet, fp16, as it has no bf16"),
}
T = TypeVar("T")


def settled(network: T, dtype: str) -> T:
    """Return ``network`` with each ``auto`` resolved for this machine.

    The device is a GPU if there is one. On a GPU, the forward pass of a float32 model uses
    bfloat16. Convolutions use the channels-last layout if tensor cores compute them in 16 bits, as
    tensor cores expect this layout (NVIDIA, Convolutional Layers User's Guide, section 2.1).
    """
    changes: dict[str, Any] = {}
    device = device_of(network)
    if device == AUTO:
        changes["device"] = device = "cuda" if count_gpus() else "cpu"
    on_gpu, autocast = device != "cpu", getattr(network, "autocast", "none")
    if autocast == AUTO:
        changes["autocast"] = autocast = "bf16" if on_gpu and dtype == "float32" else "none"
    if getattr(network, "channels_last", None) == AUTO:
        changes["channels_last"] = on_gpu and autocast != "none"
    return replace(network, **changes) if changes else network  # type: ignore[type-var]


def device_of(network: object) -> str:
    """Return the device on which ``network`` computes gradients."""
    return getattr(network, "device", "cpu")


def check_device(device: str, autocast: str, dtype: str) -> None:
    """Raise ConfigError for an unknown device, or if ``autocast`` does not apply to ``dtype``."""
    if not re.fullmatch(r"cpu|auto|cuda(:\d{1,3})?", device):
        raise ConfigError(
            "network.device", f"'{device}' is not a device: use cpu, cuda, cuda:1 or auto."
        )
    if autocast not in ("none", AUTO) and dtype != "float32":
        raise ConfigError(
            "network.autocast",
            "applies only to float32: "
            f"use dtype=float32, or network.autocast=none with dtype={dtype}.",
        )


def check_present(device: str) -> None:
    """Raise ConfigError if this machine does not have the ``device``."""
    if device == "cpu":
        return
    have, number = count_gpus(), int(device.partition(":")[2] or 0)
    if not have:
        raise ConfigError(
            "network.device",
            f"{device} needs a GPU, and PyTorch finds none on this machine: "
            "use network.device=cpu.",
        )
    if number >= have:
        last = f"cuda:{have - 1}"
        raise ConfigError("network.device", f"there is no {device}: the last GPU here is {last}.")


def use_gpu(device: str, autocast: str) -> None:
    """Make ``device``, if it is a GPU, the current device of this thread.

    Code that does not specify a GPU then uses this one. Raises ConfigError if bfloat16 is requested
    but the GPU lacks hardware for it; PyTorch would emulate it many times slower.
    """
    if not device.startswith("cuda"):
        return
    import torch

    torch.cuda.set_device(device)
    if autocast == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            "network.autocast",
            f"the {torch.cuda.get_device_name(device)} does not support bfloat16 in hardware: use "
            "network.autocast=none, or fp16 with network=gloo or nccl.",
        )


def check_own_gpus(gpus: Sequence[str | None]) -> None:
    """Raise RankFailed if two ranks share a GPU, which NCCL rejects without naming the ranks.

    gpus: UUID of each rank's GPU; None on a CPU
    """
    for rank, gpu in enumerate(gpus):
        if gpu is not None and (first := gpus.index(gpu)) < rank:
            raise RankFailed(
                f"ranks {first} and {rank} share GPU {gpu}, but NCCL needs one GPU per rank: let "
                "the launcher bind one to each rank (srun --gpus-per-task=1), or start fewer ranks."
            )


@contextmanager
def naming_deterministic() -> Iterator[None]:
    """Convert errors about operations without a deterministic algorithm to ConfigError."""
    try:
        yield
    except Exception as error:
        what = re.search(r"(\w+) does not have a deterministic implementation", str(error))
        if what is None:
            raise
        raise ConfigError(
            "network.deterministic",
            f"{what[1]} has no deterministic algorithm on a GPU: use network.deterministic=false.",
        ) from error


def count_gpus() -> int:
    """Return the number of GPUs that PyTorch can use here."""
    import torch

    return torch.cuda.device_count()


def free_bytes(device: str) -> int:
    """Return the free memory of a GPU."""
    import torch

    return torch.cuda.mem_get_info(torch.device(device))[0]


def published_rate(card: str) -> tuple[float, str] | None:
    """Return the dense bf16 operations per second of a card, and the source; None if unknown.

    card: PyTorch's name of the card
    """
    return next((rate for name, rate in CARDS.items() if re.search(name, card)), None)


def peak_flops(device: str, half: bool) -> float | None:
    """Return the published operations per second of a device; None if they are unknown.

    half: whether it multiplies 16-bit numbers; for other types the rate depends on the operation
    """
    if device == "cpu" or not half:
        return None
    import torch

    rate = published_rate(torch.cuda.get_device_name(device))
    return None if rate is None else rate[0]

"""The parts of ``scripts/gpu_check.sh`` on the pretend GPU, with small sizes:
``pretend_check.py OUT [PART ...]``.

PyTorch's warnings of waits are imitated. Times are those of a CPU, memory is not counted, and
nothing is compiled. Checkpoints need tensors with memory, which those of the pretend GPU have not.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "scripts")]

import torch
import torch.distributed as dist
from gpu_rig import judged
from gpu_rig.judged import Judged, pretend_cuda
from gpu_rig.pretend_gpu import Log, PretendTensor
from gpu_rig.pretend_network import Network, pretend_distributed
from gpu_rig.streams import Context, Gpu
from torch.utils._pytree import tree_leaves

import gpu_check
from gpu_parts import PARTS, for_training
from gpu_parts.sizes import Sizes

TINY = Sizes(
    images=("model=resnet8", "data=synthetic", "data.image_size=8", "data.num_classes=10"),
    batch_size=4,
    language=("model=gpt", "model.width=16", "model.heads=2", "data.block=8", "data.valid_size=1"),
    language_batch=2,
    steps=2,
    repeats=1,
    codec=(4096,),
    rows=16,
    widths=(2,),
    many=(2,),
)
CARD = SimpleNamespace(
    name="Pretend H200", total_memory=2**37, major=9, minor=0, uuid="GPU-0", multi_processor_count=1
)
MEMORY = SimpleNamespace(numbers=lambda tensor, cuts=False: {1}, recorded=set())
NUMBERS = (  # parts that compute in this process
    *("machine", "speed", "gpt", "profile", "syncs", "codecs", "workers", "compile"),
)


class Mode:
    """The mode in which PyTorch says that the host waits."""

    def __init__(self) -> None:
        self.now: int | str = "default"

    def set(self, mode: int | str) -> None:
        self.now = mode


class Warned(Counter[tuple[str, str]]):
    """Waits of the host, which warn in the mode for it."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode

    def __setitem__(self, key: tuple[str, str], count: int) -> None:
        super().__setitem__(key, count)
        if self.mode.now == "warn":
            warnings.warn(for_training.WAITS, stacklevel=2)


def unjudged(gpu: Gpu, func: object, args: object, kwargs: object, out: object) -> None:
    """Allocate tensors in plain memory, which no race is checked on, ten times as fast."""
    for t in tree_leaves(out):
        if isinstance(t, PretendTensor) and not hasattr(t, "block"):
            t.block = MEMORY


@contextmanager
def one_pretend_gpu() -> Iterator[Log]:
    """Let this process have one pretend GPU, alone in its network; yield its log."""
    mode, gpu = Mode(), Gpu(0)
    log = Log(syncs=Warned(mode))
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda device=None: CARD.name,
        "get_device_properties": lambda device=None: CARD,
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda device=None: (2**36, 2**37),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 1,
        "reset_peak_memory_stats": lambda device=None: None,
        "set_sync_debug_mode": mode.set,
    }
    with (
        mock.patch.multiple(judged, Log=lambda: log, report=unjudged),
        mock.patch.object(torch, "compile", lambda module: module),
        pretend_cuda(),
        mock.patch.multiple(torch.cuda, **cuda),
        pretend_distributed(Network(1), dist.HashStore()),
        mock.patch.multiple(Context, create=True, gpu=gpu, stream=gpu.default),  # of all threads
        Judged(log),
    ):
        yield log


def parts() -> dict[str, gpu_check.Part]:
    """Return the parts that compute in this process, with small sizes."""
    return {
        name: replace(PARTS[name], arguments={} if name == "machine" else {"sizes": TINY})
        for name in NUMBERS
    }


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with one_pretend_gpu():
        for name in names or NUMBERS:
            line = gpu_check.answer(parts()[name], 1, out, 600)
            gpu_check.write(out, line)
            gpu_check.show(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

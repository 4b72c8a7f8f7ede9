"""PyTorch's operations on pretend GPUs, whose accesses are judged (`streams`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from gpu_rig.pretend_gpu import DEVICE, Log, Pretence, PretendTensor, execute, kind_of, values
from gpu_rig.streams import HERE, Event, Gpu, Stream, address, on_stream, own_gpu, synchronize
from torch import Tensor
from torch.cuda._sanitizer import ArgumentHandler
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda:0")
START = threading.Thread.start
WITHOUT_KERNEL = re.compile("aten::(new_)?empty(_like|_strided)?$")


class Judged(Pretence):
    """Runs operations on the GPU of the calling thread, and reports their accesses.

    The device ``cuda`` is that GPU. Memory is zero before it is written.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == CUDA.type:
            kwargs["device"] = DEVICE
        pins = kwargs.pop("pin_memory", None)
        out = execute(func, args, kwargs, self.log)
        if pins:
            own_gpu().pin(out)
        report(own_gpu(), func, args, kwargs, out)
        return out


class Accesses(ArgumentHandler):
    """Collects the blocks that an operation reads and writes, instead of addresses."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def _handle_argument(
        self,
        value: Any,
        is_write: bool,
        metadata_only: bool,
        name: str | None = None,
        is_output: bool = False,
    ) -> None:
        if isinstance(value, Tensor) and (block := block_of(self.gpu, value)) is not None:
            if is_write:
                self.dataptrs_written |= block.numbers(values(value))
            elif not metadata_only:
                self.dataptrs_read |= block.numbers(values(value))


def block_of(gpu: Gpu, tensor: Tensor) -> Any:
    """Return the memory of a tensor; None for memory that only the host can access.

    Nor has a constant that the package has kept since another test any memory that is judged.
    """
    if isinstance(tensor, PretendTensor):
        return getattr(tensor, "block", None)
    return gpu.pinned_block(tensor)


def report(gpu: Gpu, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Report an operation that has been run on the values."""
    inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    give_blocks(gpu, inputs, outputs)
    kind = kind_of(func)
    if not kind.launches:
        return
    if WITHOUT_KERNEL.match(func._schema.name):
        values(out).zero_()
        return
    ends = copied(func, args, out)
    waits = kind.sync is not None
    if ends is not None:
        waits = not kwargs.get("non_blocking", len(args) > 2 and args[2])
        if not waits and ends[1] is not args[0] and not isinstance(out, PretendTensor):
            gpu.pin(out)  # as PyTorch does, so that the host need not wait
        waits = waits or block_of(gpu, ends[1]) is None
    accesses = Accesses(gpu)
    accesses.parse_inputs(func._schema, args, kwargs, is_factory=False)
    accesses.parse_outputs(func._schema, out, is_factory=False)
    written = accesses.dataptrs_written
    read = accesses.dataptrs_read - written
    if any(isinstance(t, PretendTensor) for t in (*inputs, *outputs)):
        gpu.launch(HERE.stream.number, read, written, str(func))
    elif read | written:
        gpu.host_access(read, written, str(func))
    if waits:
        gpu.synchronize(HERE.stream)


def give_blocks(gpu: Gpu, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """Give outputs on the GPU the memory of the input that they share it with, or new memory."""
    on_gpu = [t for t in inputs if isinstance(t, PretendTensor) and hasattr(t, "block")]
    known = {address(t.inner): t.block for t in on_gpu}
    for t in outputs:
        if isinstance(t, PretendTensor) and not hasattr(t, "block"):
            t.block = known.get(address(t.inner)) or gpu.allocate()


def copied(func: Any, args: Any, out: Any) -> tuple[Tensor, Tensor] | None:
    """Return source and target of a copy between host and GPU; None for other operations."""
    if not kind_of(func).copies:
        return None
    source, target = (args[1], args[0]) if func._schema.name == "aten::copy_" else (args[0], out)
    crosses = isinstance(source, PretendTensor) != isinstance(target, PretendTensor)
    return (source, target) if crosses else None


def pin_memory(tensor: Tensor, device: object = None) -> Tensor:
    copy = tensor.clone()
    own_gpu().pin(copy)
    return copy


def record_stream(tensor: PretendTensor, stream: Stream) -> None:
    tensor.block.recorded.add(stream.number)


@contextmanager
def running(gpu: Gpu) -> Iterator[None]:
    """Run the calling thread on ``gpu``, and the threads that it starts."""
    with gpu.current(), Judged(Log()):
        yield


def start(thread: threading.Thread) -> None:
    """Start a thread on the GPU of the thread that starts it."""
    gpu, run = HERE.gpu, thread.run

    def run_on_gpu() -> None:
        assert gpu is not None
        with running(gpu):
            run()

    if gpu is not None:
        thread.run = run_on_gpu  # type: ignore[method-assign]
    START(thread)


@contextmanager
def pretend_cuda() -> Iterator[None]:
    """Let `torch.cuda` and threads work on pretend GPUs."""
    cuda = {
        "Stream": Stream,
        "Event": Event,
        "stream": on_stream,
        "current_stream": lambda device=None: HERE.stream,
        "default_stream": lambda device=None: own_gpu().default,
        "synchronize": synchronize,
        "set_device": lambda device: None,
        "get_device_properties": lambda device=None: own_gpu(),
        "_lazy_init": lambda: None,
    }
    with (
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.object(Tensor, "pin_memory", pin_memory),
        mock.patch.object(PretendTensor, "record_stream", record_stream),
        mock.patch.object(threading.Thread, "start", start),
    ):
        yield

"""Streams, events and memory of pretend GPUs, where PyTorch's CUDA sanitizer judges every access.

Each process of a run is a thread with its own GPU. The sanitizer receives the streams, events,
kernels and host waits that `torch.cuda` would report. It also receives what it cannot see:

* **Reused memory.** PyTorch's allocator hands a freed block to the next tensor of the stream that
  allocated it. A freed block therefore counts as written to when that stream next allocates. An
  earlier access by another stream is in order if the allocating stream has waited for it, or if
  `record_stream` named the other stream before the block was freed.
* **Pinned memory.** A host access is in order once the host has waited for the device's accesses,
  and later kernels follow it. Freed pinned memory is safe, because PyTorch's copies record an event
  with it.

An access is to all of a block until a call of a network takes a part of it: the block is cut there.
Without such a cut two streams must not use parts of one tensor without order.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from itertools import count
from traceback import StackSummary
from typing import TypeAlias

from torch import Tensor
from torch.cuda._sanitizer import DEFAULT_STREAM_ID, EventHandler, UnsynchronizedAccessError

HOST, REUSE = -1, -2  # pretend streams for accesses that no kernel makes
PACKAGE = "/sgp_runner/"
State: TypeAlias = dict[int, int]  # the last access of each stream that one has waited for


class Context(threading.local):
    """The GPU of this thread, and its current stream."""

    gpu: Gpu | None = None
    stream: Stream


HERE = Context()


def own_gpu() -> Gpu:
    assert HERE.gpu is not None, "this thread belongs to no process of the rig"
    return HERE.gpu


class Block:
    """Memory of one or more tensors; ``recorded`` are the streams of `record_stream`.

    pieces: number of each piece, which is judged alone, by the byte at which it begins
    """

    def __init__(self, gpu: Gpu, stream: int) -> None:
        self.gpu, self.recorded = gpu, set[int]()
        self.pieces = {0: next(gpu.numbers)}
        gpu.judge._handle_memory_allocation(self.pieces[0])
        weakref.finalize(self, gpu.freed, self.pieces, stream, self.recorded)

    def cut(self, byte: int) -> None:
        """Let a piece begin here, which was accessed as the one that it has been a part of."""
        if byte not in self.pieces:
            of = self.pieces[max(begin for begin in self.pieces if begin < byte)]
            self.pieces[byte] = next(self.gpu.numbers)
            accesses = self.gpu.judge.tensors_accessed.accesses
            accesses[self.pieces[byte]] = copy(accesses[of])
            accesses[self.pieces[byte]].reads = [*accesses[of].reads]

    def numbers(self, tensor: Tensor, cuts: bool = False) -> set[int]:
        """Return the numbers of the pieces in which ``tensor``, on the host, has its values."""
        begin, end = extent(tensor)
        with self.gpu.lock:  # threads that end a call of gloo cut too
            if cuts:
                self.cut(begin)
                self.cut(end)
            ends = [*sorted(self.pieces)[1:], max(end, *self.pieces)]
            return {
                self.pieces[first]
                for first, after in zip(sorted(self.pieces), ends, strict=True)
                if first < end and begin < after
            }


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes of its memory between which a tensor has its values."""
    begin = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
    return begin * tensor.element_size(), (begin + length) * tensor.element_size()


class Gpu:
    """The GPU of one process, which counts ``accesses`` and ``races`` by the kernels involved."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.judge = EventHandler()
        self.lock = threading.RLock()
        self.numbers = count(1)
        self.accesses: Counter[str] = Counter()
        self.races: Counter[str] = Counter()
        # Freed blocks by the stream that allocated them, with what `record_stream` waits for.
        self.pools: defaultdict[int, list[tuple[list[int], list[dict[int, int]]]]] = defaultdict(
            list
        )
        # Blocks of pinned memory by address, with the tensor, which keeps the address taken.
        self.pinned: dict[int, tuple[Block, Tensor]] = {}
        self.default = Stream.of(self, DEFAULT_STREAM_ID)

    @property
    def uuid(self) -> str:
        return f"GPU-{self.process}"

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the GPU of the calling thread."""
        HERE.gpu, HERE.stream = self, self.default
        try:
            yield
        finally:
            HERE.gpu = None

    @property
    def states(self) -> dict[int, State]:
        return self.judge.syncs.current_sync_states

    def launch(self, stream: int, read: set[int], written: set[int], kernel: str) -> None:
        """Judge a kernel that reads and writes blocks, given by number."""
        with self.lock:
            self.accesses[kernel] += 1
            self.judged(stream, read, written, kernel)

    def judged(self, stream: int, read: set[int], written: set[int], kernel: str) -> None:
        names: dict[int, list[str]] = {number: [] for number in read | written}
        for race in self.judge._handle_kernel_launch(stream, read, written, set(), kernel, names):  # type: ignore[arg-type]
            assert isinstance(race, UnsynchronizedAccessError)
            pair = race.previous_access, race.current_access
            self.races[
                ", then ".join(f"{access.operator}{place(access.stack_trace)}" for access in pair)
            ] += 1

    def host_access(self, read: set[int], written: set[int], what: str) -> None:
        """Judge an access of pinned memory by the host, which later kernels follow."""
        with self.lock:
            waited = self.judge.syncs.host_sync_state
            self.states[HOST] = dict(waited)
            self.launch(HOST, read, written, f"host {what}")
            waited[HOST] = self.judge.seq_num
            for state in self.states.values():
                state[HOST] = self.judge.seq_num

    def allocate(self) -> Block:
        """Allocate memory on the current stream, where all blocks in its pool could be reused."""
        stream = HERE.stream.number
        with self.lock:
            freed, self.pools[stream] = self.pools[stream], []
            for numbers, recorded in freed:
                self.states[REUSE] = merged(
                    self.states[stream], self.judge.syncs.host_sync_state, *recorded
                )
                self.judged(REUSE, set(), {*numbers}, "reuse of its memory")
                del self.states[REUSE]
                for number in numbers:
                    self.judge._handle_memory_deallocation(number)
            return Block(self, stream)

    def freed(self, pieces: dict[int, int], stream: int, recorded: set[int]) -> None:
        waits = [dict(self.states[number]) for number in recorded]
        self.pools[stream].append(([*pieces.values()], waits))

    def pin(self, tensor: Tensor) -> Block:
        """Make the memory of a tensor on the host pinned."""
        block = Block(self, HOST)
        self.pinned[address(tensor)] = block, tensor
        tensor.is_pretend_pinned = True  # type: ignore[attr-defined]
        return block

    def pinned_block(self, tensor: Tensor) -> Block | None:
        return self.pinned.get(address(tensor), (None,))[0]

    def synchronize(self, stream: Stream) -> None:
        with self.lock:
            self.judge._handle_stream_synchronization(stream.number)


def merged(*states: dict[int, int]) -> dict[int, int]:
    return {key: max(other.get(key, -1) for other in states) for state in states for key in state}


def place(stack: StackSummary) -> str:
    """Return the innermost line of the package in a stack trace."""
    for frame in reversed(stack):
        if PACKAGE in frame.filename:
            return f" at {frame.filename.rpartition(PACKAGE)[2]} {frame.name}"
    return ""


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, *_: object, **__: object) -> None:
        self.gpu = own_gpu()
        with self.gpu.lock:
            self.number = next(self.gpu.numbers)
            self.gpu.judge._handle_event_creation(self.number)

    def record(self, stream: Stream | None = None) -> None:
        with self.gpu.lock:
            self.gpu.judge._handle_event_record(self.number, (stream or HERE.stream).number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or HERE.stream).wait_event(self)

    def query(self) -> bool:
        """Return True, as kernels take no time; the host is ordered by `synchronize` alone."""
        return True

    def elapsed_time(self, end: Event) -> float:
        return 0.0

    def synchronize(self) -> None:
        with self.gpu.lock:
            self.gpu.judge._handle_event_synchronization(self.number)


class Stream:
    """`torch.cuda.Stream`."""

    def __init__(self, device: object = None) -> None:
        self.gpu, self.device = own_gpu(), device
        with self.gpu.lock:
            self.number = next(self.gpu.numbers)
            self.gpu.judge._handle_stream_creation(self.number)

    @classmethod
    def of(cls, gpu: Gpu, number: int) -> Stream:
        """Return a stream that exists from the start."""
        stream = cls.__new__(cls)
        stream.gpu, stream.number, stream.device = gpu, number, None
        return stream

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        with self.gpu.lock:
            self.gpu.judge._handle_event_wait(event.number, self.number)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.gpu.synchronize(self)


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """`torch.cuda.stream`."""
    before = HERE.stream
    HERE.stream = stream or before
    try:
        yield
    finally:
        HERE.stream = before


def synchronize(device: object = None) -> None:
    """`torch.cuda.synchronize`."""
    gpu = own_gpu()
    with gpu.lock:
        gpu.judge._handle_device_synchronization()

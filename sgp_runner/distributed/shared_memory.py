"""Messages in memory shared by the processes of one machine, instead of copies over TCP.

Each process writes its messages into a file in memory (`os.memfd_create`). The file is in no
folder, so it needs no space in ``/dev/shm`` and vanishes with the last process that has it open.
Other processes open it through ``/proc``, which requires the same user and a shared process
namespace, as in one container. They recognise it by a random name.

The file consists of slots. Each begins with one byte per process, which is 1 while that process has
yet to read the message. Headers are sent as for all messages, and contain the position of the slot.
The receiver reads the message in place, and clears its byte when no tensor uses it any longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from secrets import token_hex
from threading import Lock
from weakref import finalize

import torch
from torch import Tensor

from sgp_runner.distributed.json_collectives import STRANGER_HINT
from sgp_runner.utils.errors import RankFailed
from sgp_runner.utils.messages import logger

SMALLEST = 2**12  # bytes of a message; shorter ones are as quick over TCP
MAX_SLOTS = 32  # of one process; further messages go over TCP
AHEAD = 4  # the file is mapped to this many times the length of its slots
NOWHERE = -1  # instead of the offset of a slot


@dataclass
class Slot:
    """A slot in the file of this process.

    offset, num_bytes: position and size of the message; its marks precede it
    held: whether a tensor of this process uses it
    """

    offset: int
    num_bytes: int
    held: bool = False


class SharedMemory:
    """The file of this process, and those of other processes on this machine.

    readers: the processes that have opened this process's file. Raises OSError on a system without
        in-memory files (memfd).
    """

    def __init__(self, process: int, size: int) -> None:
        self.process, self.head = process, whole_pages(size)
        self.size = size
        self.name = f"sgp-run-{token_hex(16)}"
        self.file = self.keep_open(os.memfd_create(self.name))
        os.fchmod(self.file, 0o600)
        self.readers: set[int] = set()
        self.slots: list[Slot] = []
        self.end = 0  # of the last slot
        self.used: dict[int, Slot] = {}  # by the address of the tensor that uses it
        self.lock = Lock()  # shared by the threads that make and send messages
        self.files: dict[int, int] = {}  # of other processes
        self.mappings: dict[int, mmap] = {}  # of the files of all processes

    def keep_open(self, file: int) -> int:
        """Return ``file``, which is closed together with this object."""
        finalize(self, os.close, file)
        return file

    @property
    def address(self) -> list[object]:
        """Return the process, file and name with which others open this process's file."""
        return [os.getpid(), self.file, self.name]

    def open(self, addresses: Sequence[object]) -> list[int]:
        """Open the files at ``addresses``, by process; return the processes on this machine."""
        for process, address in enumerate(addresses):
            match address:
                case [int(pid), int(file), str(name)] if process != self.process:
                    path = f"/proc/{pid}/fd/{file}"
                    with suppress(OSError):
                        if os.readlink(path) == f"/memfd:{name} (deleted)":
                            self.files[process] = self.keep_open(os.open(path, os.O_RDWR))
        return [*self.files]

    # Messages of this process.

    def empty_like(self, tensor: Tensor) -> Tensor | None:
        """Return memory for a message like ``tensor``; None if there is no shared memory for it."""
        message = self.empty(tensor.numel(), tensor.dtype)
        return None if message is None else message.view(tensor.shape)

    def empty(self, length: int, dtype: torch.dtype) -> Tensor | None:
        """Return memory for a message [length]; None if there is no shared memory for it."""
        num_bytes = length * dtype.itemsize
        if num_bytes < SMALLEST or (slot := self.acquire(num_bytes)) is None:
            return None
        message = tensor_in(
            self.mappings[self.process],
            slot.offset,
            length,
            dtype,
            lambda: self.release(message_at, slot),
        )
        message_at = message.data_ptr()
        self.used[message_at] = slot
        return message

    def release(self, message_at: int, slot: Slot) -> None:
        del self.used[message_at]
        slot.held = False

    def share(self, message: Tensor, process: int) -> int:
        """Return the offset of ``message`` [m], copying it unless it is already in a slot.

        The offset is `NOWHERE` if ``process`` must receive the message by another channel.
        """
        if process not in self.readers or message.nbytes < SMALLEST:
            return NOWHERE
        slot = self.used.get(message.data_ptr())
        if slot is not None and not self.unread(slot)[process]:
            self.mark(slot, process)
            return slot.offset
        if (slot := self.acquire(message.nbytes)) is None:
            return NOWHERE
        to = tensor_in(self.mappings[self.process], slot.offset, message.numel(), message.dtype)
        to.copy_(message)
        self.mark(slot, process)
        slot.held = False
        return slot.offset

    def unread(self, slot: Slot) -> bytes:
        """Return the marks of a slot, by process."""
        begin = slot.offset - self.head
        return self.mappings[self.process][begin : begin + self.size]

    def mark(self, slot: Slot, process: int) -> None:
        self.mappings[self.process][slot.offset - self.head + process] = 1

    def take_back(self, message: Tensor) -> None:
        """Free the slot of a message [m] that has not been announced to any process."""
        begin = self.used[message.data_ptr()].offset - self.head
        self.mappings[self.process][begin : begin + self.size] = bytes(self.size)

    def acquire(self, num_bytes: int) -> Slot | None:
        """Return the smallest unused slot that is long enough."""
        with self.lock:
            slots = [slot for slot in self.slots if slot.num_bytes >= num_bytes and not slot.held]
            free = [slot for slot in slots if not any(self.unread(slot))]
            slot = min(free, key=lambda slot: slot.num_bytes) if free else self.add(num_bytes)
            if slot is not None:
                slot.held = True
            return slot

    def add(self, num_bytes: int) -> Slot | None:
        """Grow the file by one slot. If memory is exhausted, warn once and stop sharing."""
        if len(self.slots) == MAX_SLOTS or not self.readers:
            return None
        slot = Slot(self.end + self.head, whole_pages(num_bytes))
        end = slot.offset + slot.num_bytes
        try:
            os.posix_fallocate(self.file, self.end, end - self.end)
            if self.process not in self.mappings or len(self.mappings[self.process]) < end:
                os.ftruncate(self.file, AHEAD * end)
                self.mappings[self.process] = mmap(self.file, 0)
        except OSError as error:
            self.readers.clear()
            logger.warning(
                f"rank {self.process} has no memory to share ({error.strerror}): its messages go "
                "over TCP, as with network.shared_memory=false."
            )
            return None
        self.slots.append(slot)
        self.end = end
        return slot

    # Messages of other processes.

    def message(self, process: int, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """Return the message [length] from ``process`` at ``offset`` in its file.

        Raises RankFailed if there is none.
        """
        end = offset + length * dtype.itemsize
        file = self.files.get(process)
        if file is None or not self.head <= offset < end <= os.fstat(file).st_size:
            raise RankFailed(
                f"process {process} announced a message of {length} numbers at {offset} in shared "
                f"memory, where there is none: {STRANGER_HINT}"
            )
        mapping = self.mappings.get(process)
        if mapping is None or len(mapping) < end:
            mapping = self.mappings[process] = mmap(file, 0)
        mark = offset - self.head + self.process

        def clear() -> None:
            mapping[mark] = 0

        return tensor_in(mapping, offset, length, dtype, clear)


def whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGESIZE) * PAGESIZE


def tensor_in(
    mapping: mmap,
    offset: int,
    length: int,
    dtype: torch.dtype,
    gone: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the tensor [length] at ``offset``; call ``gone`` when its memory is no longer used."""
    memory = memoryview(mapping)[offset : offset + length * dtype.itemsize]
    finalize(memory, gone).atexit = False
    return torch.frombuffer(memory, dtype=dtype)

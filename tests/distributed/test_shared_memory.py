"""Messages in the memory of one machine: which go there, and when a slot is free again."""

from __future__ import annotations

import gc
import os
import stat

import pytest
import torch

from sgp_runner.distributed import shared_memory
from sgp_runner.distributed.shared_memory import MAX_SLOTS, NOWHERE, SMALLEST, SharedMemory
from sgp_runner.utils.errors import RankFailed

LONG = SMALLEST // 8  # numbers of float64


def pair() -> tuple[SharedMemory, SharedMemory]:
    """Two processes' memory, opened by each other."""
    both = SharedMemory(0, 2), SharedMemory(1, 2)
    addresses = [side.address for side in both]
    for memory, other in (both, both[::-1]):
        assert memory.open(addresses) == [other.process]
        memory.readers = {other.process}
    return both


def numbers(length: int = LONG) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float64)


def test_a_message_is_read_where_it_was_written_and_its_slot_is_used_again() -> None:
    sender, receiver = pair()
    message = sender.empty_like(numbers())
    assert message is not None
    message.copy_(numbers())
    where = sender.share(message, 1)
    received = receiver.message(0, where, LONG, torch.float64)
    message[3] = -1.0  # a sender must not; here it shows that there is one copy
    assert received[:5].tolist() == [0.0, 1.0, 2.0, -1.0, 4.0]
    del message
    assert sender.share(numbers(), 1) != where
    part = received[7:9]
    del received
    assert sender.share(numbers(), 1) != where  # a view keeps it
    assert part.tolist() == [7.0, 8.0]
    del part
    gc.collect()
    assert sender.share(numbers(LONG + 1), 1) != where  # too long for it
    assert sender.share(numbers(), 1) == where


def test_a_message_elsewhere_is_copied_and_one_to_the_same_process_twice_too() -> None:
    sender, receiver = pair()
    message = sender.empty_like(numbers())
    assert message is not None
    message.fill_(2.0)
    first, second = sender.share(message, 1), sender.share(message, 1)
    assert first != second
    for where in (first, second):
        assert receiver.message(0, where, LONG, torch.float64).unique().tolist() == [2.0]
    assert receiver.share(receiver.message(0, first, LONG, torch.float64), 0) != NOWHERE


def test_short_messages_strangers_and_a_full_file_take_another_way() -> None:
    sender, receiver = pair()
    assert sender.share(numbers(LONG - 1), 1) == NOWHERE
    assert sender.empty_like(numbers(LONG - 1)) is None
    assert sender.share(numbers(), 5) == NOWHERE
    places = [sender.share(numbers(), 1) for _ in range(MAX_SLOTS + 1)]
    assert places[-1] == NOWHERE and len(set(places)) == MAX_SLOTS + 1
    del receiver


def test_only_what_another_process_has_written_is_read() -> None:
    sender, receiver = pair()
    where = sender.share(numbers(), 1)
    end = os.fstat(sender.file).st_size
    for process, offset, length in ((0, 0, 1), (0, -4096, 1), (0, where, 0), (1, where, 1)):
        with pytest.raises(RankFailed, match=r"shared memory, where there is none: is it a rank"):
            receiver.message(process, offset, length, torch.float64)
    with pytest.raises(RankFailed, match=rf"^process 0 announced a message of {end} numbers at "):
        receiver.message(0, where, end, torch.float64)


def test_a_file_is_private_has_no_place_in_a_folder_and_is_recognised_by_its_name() -> None:
    before = set(os.listdir("/dev/shm"))
    memory, other = SharedMemory(0, 3), SharedMemory(1, 3)
    assert set(os.listdir("/dev/shm")) == before
    assert stat.S_IMODE(os.fstat(memory.file).st_mode) == 0o600
    pid, file, name = memory.address
    wrong = [[pid, file, f"{name}x"], [pid, 2**20, name], [str(pid), file, name], None, "memory"]
    for address in wrong:
        assert other.open([address, None, None]) == []
    assert other.open([memory.address, other.address, None]) == [0]


def test_the_end_of_shared_memory_is_one_sentence_and_messages_take_tcp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sender, _ = pair()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    assert sender.share(numbers(), 1) == NOWHERE
    assert sender.empty_like(numbers()) is None
    assert capsys.readouterr().err == (
        "warning: rank 0 has no memory to share (No space left on device): its messages go over "
        "TCP, as with network.shared_memory=false.\n"
    )

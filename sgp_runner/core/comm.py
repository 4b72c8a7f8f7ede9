"""Communication between workers: `Comm`, which algorithms use, and a `Transport` per network.

A message is one contiguous tensor. `Comm.send` transfers ownership: the sender never writes to the
tensor again, and a receiver only reads it. Messages with the same tag between two workers arrive in
the order in which they were sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Future

if TYPE_CHECKING:
    from torch import Tensor


class Transport(ABC):
    """Sends the messages of one worker and puts arriving messages into its `Mailbox`.

    Methods that are not abstract are optional hooks.
    """

    __slots__ = ()

    @abstractmethod
    def send(self, dst: int, tag: int, message: Tensor) -> int:
        """Start sending ``message``, which the caller no longer owns; return the bytes to count."""

    @abstractmethod
    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        """Start the all-reduce that is this worker's collective ``number``.

        Return its future and the bytes to count as sent.
        """

    @abstractmethod
    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        """Start the all-gather that is this worker's collective ``number``, like `all_reduce`."""

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        """Return a tensor like ``tensor`` that can be sent to ``peers`` without a copy."""
        return tensor.new_empty(tensor.shape)

    def before_receiving(self, src: int | None) -> None:
        """Put arrived messages into the mailbox before a receive from ``src`` (None: any rank)."""

    def may_poll(self, arrived: bool) -> bool:
        """Return whether a poll may return its message, which has ``arrived`` or not."""
        return arrived

    def check_any_source(self) -> None:
        """Raise RuntimeError if the network cannot receive from any source."""

    def convert(self, message: Tensor) -> Tensor:
        """Convert ``message`` to the tensor that the receiving worker sees."""
        return message

    def flush(self) -> None:
        """Start all delayed exchanges before any other operation of the network or device."""

    def quiesce(self) -> None:
        """Finish receiving messages before a checkpoint, while all ranks are between two steps."""

    def end_of_step(self) -> None:
        """Handle the end of a step."""

    def close(self) -> None:
        """Wait until the messages of all ranks have arrived."""


class Comm:
    """The communication of one worker.

    num_bytes_sent, num_sent: bytes and messages sent so far. collectives: number of collectives
        started.
    """

    __slots__ = (
        "before",
        "collectives",
        "convert",
        "mailbox",
        "num_bytes_sent",
        "num_sent",
        "transport",
    )

    def __init__(self, mailbox: Mailbox, transport: Transport) -> None:
        self.mailbox, self.transport = mailbox, transport
        # None if the network does not define the hook; this saves a call for each message.
        cls = type(transport)
        self.convert = None if cls.convert is Transport.convert else transport.convert
        hook = cls.before_receiving
        self.before = None if hook is Transport.before_receiving else transport.before_receiving
        self.num_bytes_sent = self.num_sent = self.collectives = 0

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        """Send ``message`` to ``dst`` without waiting; the sender must not write to it again."""
        self.num_sent += 1
        self.num_bytes_sent += self.transport.send(dst, tag, message)

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        """Return a tensor like ``tensor``, to be filled and then sent to ``peers``."""
        return self.transport.empty_like(tensor, peers)

    def recv(self, src: int, tag: int = 0) -> Future[Tensor]:
        """Receive the next message from ``src``."""
        if self.before is not None:
            self.before(src)
        return self.mailbox.recv(src, tag, self.convert)

    def recv_any(self, tag: int = 0) -> Future[tuple[int, Tensor]]:
        """Receive the message that arrived first, with its sender."""
        self.transport.check_any_source()
        self.transport.before_receiving(None)
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        """Return the next message from ``src`` if one has arrived, else None."""
        self.transport.before_receiving(src)
        if not self.transport.may_poll(self.mailbox.has(src, tag)):
            return None
        message = self.mailbox.poll(src, tag)
        assert message is not None
        return self.transport.convert(message)

    def poll_any(self, tag: int = 0) -> tuple[int, Tensor] | None:
        """Return the message that arrived first, with its sender, if one has arrived, else None."""
        self.transport.check_any_source()
        self.transport.before_receiving(None)
        return self.mailbox.poll_any(tag)

    def all_reduce(self, tensor: Tensor) -> Future[Tensor]:
        """Return the mean of ``tensor`` over all workers, in a new tensor.

        Starts immediately; the caller must not use ``tensor`` afterwards. Several collectives may
        be pending. All workers must start the same collectives in the same order, but may await
        them in any order.
        """
        mean, num_bytes = self.transport.all_reduce(self.next_collective(), tensor)
        self.num_bytes_sent += num_bytes
        return mean

    def all_gather(self, tensor: Tensor) -> Future[list[Tensor]]:
        """Gather the tensors of all workers, read-only, in rank order; otherwise like `all_reduce`.

        The tensors must have the same length and type on all workers.
        """
        tensors, num_bytes = self.transport.all_gather(self.next_collective(), tensor)
        self.num_bytes_sent += num_bytes
        return tensors

    def next_collective(self) -> int:
        """Return the number of the next collective of this worker and increment the counter."""
        self.collectives += 1
        return self.collectives - 1

    def close(self) -> list[tuple[int, int, int]]:
        """Wait for the messages of all ranks; return (sender, tag, count) of unread messages."""
        self.transport.close()
        return self.mailbox.unread()

    def state_dict(self) -> dict[str, Any]:
        """Return the unread messages and the number of collectives started."""
        return {"mailbox": self.mailbox.state_dict(), "collectives": self.collectives}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state before the worker starts."""
        self.mailbox.load_state_dict(state["mailbox"])
        self.collectives = state["collectives"]


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors, added in their order."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total.div_(len(tensors))


def copied(result: Any) -> Any:
    """Copy the mean of an all-reduce, or the list of an all-gather, whose tensors are read-only."""
    return list(result) if isinstance(result, list) else result.clone()


def all_reduce_bytes(tensor: Tensor, size: int) -> int:
    """Return the bytes that each of ``size`` workers sends in a bandwidth-optimal all-reduce."""
    return round(2 * (size - 1) / size * tensor.numel() * tensor.element_size())


def all_gather_bytes(tensor: Tensor, size: int) -> int:
    """Return the bytes that each of ``size`` workers sends in a ring all-gather."""
    return (size - 1) * tensor.numel() * tensor.element_size()

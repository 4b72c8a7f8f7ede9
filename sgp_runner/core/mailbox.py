"""The mailbox of a worker: arrived messages and the coroutines that wait for messages."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

from sgp_runner.core.scheduler import Future, Scheduler

if TYPE_CHECKING:
    from torch import Tensor

ANY_SOURCE = -1


class Mailbox:
    """A first-in, first-out queue of messages per sender and tag.

    num_delivered: messages that have arrived.
    """

    __slots__ = ("arrivals", "num_delivered", "order", "queues", "scheduler", "waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.num_delivered = 0
        self.arrivals = count()
        # (src, tag) -> (arrival number, message, version)
        self.queues: dict[tuple[int, int], deque[tuple[int, Tensor, int]]] = {}
        # tag that was received from any sender -> arrival number -> src, in the order of arrival
        self.order: dict[int, OrderedDict[int, int]] = {}
        self.waiting: dict[tuple[int, int], Future[Any]] = {}

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        self.num_delivered += 1
        waiting = self.waiting
        if (future := waiting.pop((src, tag), None)) is not None:
            self.scheduler.resolve(future, message)
        elif (future := waiting.pop((ANY_SOURCE, tag), None)) is not None:
            self.scheduler.resolve(future, (src, message))
        else:
            self.keep(src, tag, message)

    def keep(self, src: int, tag: int, message: Tensor) -> None:
        number = next(self.arrivals)
        self.queues.setdefault((src, tag), deque()).append((number, message, message._version))
        if tag in self.order:
            self.order[tag][number] = src

    def has(self, src: int, tag: int) -> bool:
        return (src, tag) in self.queues

    def poll(self, src: int, tag: int) -> Tensor | None:
        queue = self.queues.get((src, tag))
        if queue is None:
            return None
        number, message, version = queue.popleft()
        if tag in self.order:
            del self.order[tag][number]
        if not queue:
            del self.queues[src, tag]
        if message._version != version:
            raise WrittenAfterSend(f"a message from rank {src} (tag {tag})")
        return message

    def recv(
        self, src: int, tag: int, finish: Callable[[Tensor], Tensor] | None = None
    ) -> Future[Tensor]:
        """Return a future of the next message; ``finish`` maps it when it is awaited."""
        future = self.scheduler.future(("message", src, tag), finish)
        message = self.poll(src, tag) if self.queues else None
        if message is None:
            self.wait(future, (src, tag))
        else:
            self.scheduler.resolve(future, message)
        return future

    def poll_any(self, tag: int) -> tuple[int, Tensor] | None:
        """Return the message that arrived first and its sender; None if there is none."""
        if tag not in self.order:
            arrived = (
                (n, src) for (src, t), kept in self.queues.items() if t == tag for n, *_ in kept
            )
            self.order[tag] = OrderedDict(sorted(arrived))
        src = next(iter(self.order[tag].values()), None)
        if src is None:
            return None
        message = self.poll(src, tag)
        assert message is not None
        return src, message

    def recv_any(self, tag: int) -> Future[tuple[int, Tensor]]:
        future: Future[tuple[int, Tensor]] = self.scheduler.future(("any message", tag))
        first = self.poll_any(tag)
        if first is None:
            self.wait(future, (ANY_SOURCE, tag))
        else:
            self.scheduler.resolve(future, first)
        return future

    def wait(self, future: Future[Any], key: tuple[int, int]) -> None:
        """Register ``future`` for the next message whose (sender, tag) is ``key``."""
        if self.waiting.setdefault(key, future) is not future:
            raise RuntimeError(
                "two activities of one worker wait for the same message "
                f"(from {key[0]}, tag {key[1]})"
            )

    def unread(self) -> list[tuple[int, int, int]]:
        """Return (sender, tag, count) of messages that have not been received."""
        return [(src, tag, len(queue)) for (src, tag), queue in sorted(self.queues.items())]

    def state_dict(self) -> list[tuple[int, int, Tensor]]:
        """Return (sender, tag, message) of unread messages, in the order of arrival."""
        arrived = [
            (number, src, tag, message)
            for (src, tag), queue in self.queues.items()
            for number, message, _ in queue
        ]
        return [
            (src, tag, message)
            for _, src, tag, message in sorted(arrived, key=lambda entry: entry[0])
        ]

    def load_state_dict(self, state: Iterable[tuple[int, int, Tensor]]) -> None:
        """Load saved messages into an empty mailbox."""
        for src, tag, message in state:
            self.keep(src, tag, message)


class WrittenAfterSend(RuntimeError):
    """Raised when the tensor ``what`` is written to after being handed over."""

    def __init__(self, what: str) -> None:
        RuntimeError.__init__(self, f"{what} was written to after being handed over; pass a clone.")


def check_unwritten(tensor: Tensor, version: int, what: str) -> None:
    if tensor._version != version:
        raise WrittenAfterSend(what)

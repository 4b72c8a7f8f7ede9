"""Messages that have arrived at one worker, and the coroutines that wait for one."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

from sgp_runner.fabric import check_unwritten
from sgp_runner.scheduler import Scheduler, Wait

if TYPE_CHECKING:
    from torch import Tensor

ANYBODY = -1


class Mailbox:
    """First come, first served per sender and tag."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrivals = count()
        self.queues: dict[tuple[int, int], deque[tuple[int, Tensor, int]]] = {}  # (src, tag) -> (arrival number, message, version)
        self.waiting: dict[tuple[int, int], Wait[Any]] = {}

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        waiting = self.waiting
        if (wait := waiting.pop((src, tag), None)) is not None:
            self.scheduler.resolve(wait, message)
        elif (wait := waiting.pop((ANYBODY, tag), None)) is not None:
            self.scheduler.resolve(wait, (src, message))
        else:
            self.queues.setdefault((src, tag), deque()).append((next(self.arrivals), message, message._version))

    def has(self, src: int, tag: int) -> bool:
        return (src, tag) in self.queues

    def poll(self, src: int, tag: int) -> Tensor | None:
        queue = self.queues.get((src, tag))
        if queue is None:
            return None
        _, message, version = queue.popleft()
        if not queue:
            del self.queues[src, tag]
        check_unwritten(message, version, f"a message from rank {src} (tag {tag})")
        return message

    def recv(self, src: int, tag: int) -> Wait[Tensor]:
        wait: Wait[Tensor] = Wait(("message", src, tag))
        message = self.poll(src, tag)
        return self.settle(wait, (src, tag), message)

    def recv_any(self, tag: int) -> Wait[tuple[int, Tensor]]:
        wait: Wait[tuple[int, Tensor]] = Wait(("any message", tag))
        first = min(((queue[0][0], src) for (src, t), queue in self.queues.items() if t == tag), default=None)
        if first is None:
            return self.settle(wait, (ANYBODY, tag), None)
        message = self.poll(first[1], tag)
        assert message is not None
        return self.settle(wait, (ANYBODY, tag), (first[1], message))

    def settle(self, wait: Wait[Any], key: tuple[int, int], value: Any) -> Wait[Any]:
        """Resolve ``wait`` at once when there is a ``value``, else let it wait for ``key``."""
        if value is not None:
            self.scheduler.resolve(wait, value)
        elif key in self.waiting:
            raise RuntimeError(f"two activities of one worker wait for the same message (from {key[0]}, tag {key[1]})")
        else:
            self.waiting[key] = wait
        return wait

    def contents(self) -> list[tuple[int, int, Tensor]]:
        """(sender, tag, message) of what has arrived and nobody received, in the order of arrival."""
        arrived = [(number, src, tag, message) for (src, tag), queue in self.queues.items() for number, message, _ in queue]
        return [(src, tag, message) for _, src, tag, message in sorted(arrived, key=lambda each: each[0])]

    def unread(self) -> list[tuple[int, int, int]]:
        """(sender, tag, count) of messages that nobody received."""
        return [(src, tag, len(queue)) for (src, tag), queue in sorted(self.queues.items())]

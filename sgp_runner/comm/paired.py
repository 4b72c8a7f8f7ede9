"""`Comm` over a group that can only pair sends with receives, as NCCL: no receive from anybody, no polling, and an order to keep.

In one stream a send waits until the other side has come to its receive, and the other way round, so all ranks must start their transfers
in orders that fit together. An *exchange* is what a rank sends between two other calls, with as many messages that come in: in gossip over
any graph of this package a node receives as many messages in a round as it sends. All of it is started as one batch
(``batch_isend_irecv``), in which order does not matter, and batches are started in the order of their exchanges. Ranks make the same calls
in every step, so an exchange has the same number everywhere, made of the step and its place in the step, and holds the same messages at
both ends: nobody waits in a circle.

Who sends what is told by headers on another channel, between the hosts: a header with the number of the exchange, length, type and tag goes
ahead of each message. A host may wait for a header, that is, until the other host has come as far; it never waits for its own device. On
CUDA a batch runs on a stream of its own and depends only on what its messages depend on, so it overlaps with the gradients.

`poll` starts what can be started and answers None: a message counts as arrived when it is waited for. For Overlap SGP this means that
every message is folded in exactly ``tau`` steps late, the latest that the algorithm allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sgp_runner.comm import all_reduce_bytes
from sgp_runner.comm.distributed import DTYPES, start_mean
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.scheduler import Wait, resolved
from sgp_runner.waits import waiting_for

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.comm.distributed import DistributedComm
    from sgp_runner.place import Part

MOST = 2**20  # exchanges in one step


@dataclass
class Exchange:
    """What goes out and comes in together.

    written: when the messages are complete, on CUDA.
    """

    number: int
    outgoing: list[tuple[int, Tensor]] = field(default_factory=list)  # (dst, message)
    headers: list[tuple[int, Tensor]] = field(default_factory=list)  # (src, [length, type, tag]) of what will come in
    waiting: Wait[tuple[int, Tensor]] | None = None  # for the next header
    written: torch.cuda.Event | None = None
    works: list[dist.Work] = field(default_factory=list)

    def finish(self) -> None:
        """What follows comes after the transfers; on CUDA in the order of the present stream, without waiting here."""
        with waiting_for("waits for the messages of an exchange"):
            for work in self.works:
                work.wait()
        self.works.clear()
        self.outgoing.clear()


class PairedComm:
    """The communication of this process. ``headers``: whole messages between hosts; ``group``: moves ``part`` of every message."""

    lockstep = True

    def __init__(self, headers: DistributedComm, group: dist.ProcessGroup, part: Part, device: torch.device) -> None:
        self.headers, self.group, self.part, self.device = headers, group, part, device
        self.clock, self.place = headers.clock, headers.place
        self.mailbox = Mailbox(headers.mailbox.scheduler)
        self.exchanges: dict[int, Exchange] = {}  # by the identity of a message that came in with it
        self.num_bytes_sent = self.num_sent = self.num_delivered = 0
        self.steps = 0
        self.in_step = 0  # exchanges of this step
        self.open: Exchange | None = None  # still taking messages
        self.pending: deque[Exchange] = deque()  # complete, not started
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.num_bytes_sent += message.numel() * message.element_size()
        self.num_sent += 1
        if self.open is None:
            self.open = Exchange(self.steps * MOST + self.in_step)
            self.in_step += 1
        header = torch.tensor([message.numel(), DTYPES.index(message.dtype), tag])
        self.headers.send(dst, header, self.open.number)
        self.open.outgoing.append((dst, message))
        if self.stream is not None:
            self.open.written = torch.cuda.current_stream(self.device).record_event()

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        self.complete()
        while (message := self.mailbox.poll(src, tag)) is None:
            if not self.pending:
                raise RuntimeError(f"no message from rank {src} can come: on this network a node receives as many as it sends")
            self.start_next(wait=True)
        self.finish(message)
        return resolved(message)

    def recv_any(self, tag: int = 0) -> Awaitable[tuple[int, Tensor]]:
        raise RuntimeError("nothing can be received from anybody on a group that pairs sends with receives")

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        self.complete()
        while self.pending and self.start_next(wait=False):
            pass
        return None

    def has(self, src: int, tag: int = 0) -> bool:
        return False

    def all_reduce(self, tensor: Tensor) -> Awaitable[Tensor]:
        self.flush()
        self.num_bytes_sent += all_reduce_bytes(tensor, self.place.nodes)
        return start_mean(tensor, self.group)

    def flush(self) -> None:
        """Start everything: whatever uses the group next comes after all exchanges before it, on every rank."""
        self.complete()
        while self.pending:
            self.start_next(wait=True)

    def rest(self) -> None:
        self.flush()
        for _, _, message in self.mailbox.contents():
            self.finish(message)

    def finish(self, message: Tensor) -> None:
        """What follows may read ``message``."""
        exchange = self.exchanges.pop(id(message), None)
        if exchange is not None:
            exchange.finish()
            if message.is_cuda:
                message.record_stream(torch.cuda.current_stream(self.device))

    def end_of_step(self) -> None:
        self.complete()
        self.steps += 1
        self.in_step = 0

    def close(self) -> list[tuple[int, int, int]]:
        self.flush()
        return self.headers.close() + self.mailbox.unread()

    def complete(self) -> None:
        """The open exchange takes no more messages."""
        if self.open is not None:
            self.pending.append(self.open)
            self.open = None

    def start_next(self, wait: bool) -> bool:
        """Start the oldest exchange once its headers are there; False if they are not and we do not ``wait``."""
        exchange = self.pending[0]
        while len(exchange.headers) < len(exchange.outgoing):
            exchange.waiting = exchange.waiting or self.headers.recv_any(exchange.number)
            if wait:
                self.clock.run_until(exchange.waiting)
            else:
                self.clock.catch_up()
            if not exchange.waiting.done:
                return False
            exchange.headers.append(exchange.waiting.value)
            exchange.waiting = None
        self.pending.popleft()
        self.start(exchange)
        return True

    def start(self, exchange: Exchange) -> None:
        with self.side_stream(exchange):
            batch = [self.transfer(dist.isend, dst, message.view(-1)) for dst, message in exchange.outgoing]
            incoming = []
            for src, header in exchange.headers:
                length, dtype, tag = header.tolist()
                message = torch.empty(length, dtype=DTYPES[dtype], device=self.device)
                batch.append(self.transfer(dist.irecv, src, message))
                incoming.append((src, tag, message))
            batch = [transfer for transfer in batch if transfer.tensor.numel()]
            exchange.works = dist.batch_isend_irecv(batch) if batch else []
        for src, tag, message in incoming:
            self.exchanges[id(message)] = exchange
            self.num_delivered += 1
            self.mailbox.deliver(src, tag, message)

    def transfer(self, verb: Callable[..., object], rank: int, message: Tensor) -> dist.P2POp:
        """To or from ``rank``, of this process's part of the message."""
        return dist.P2POp(verb, message[self.part.of(message.numel())], self.place.process_of(rank), self.group)

    def side_stream(self, exchange: Exchange) -> AbstractContextManager[object]:
        if self.stream is None:
            return nullcontext()
        assert exchange.written is not None
        self.stream.wait_event(exchange.written)
        return torch.cuda.stream(self.stream)

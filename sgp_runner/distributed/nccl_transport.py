"""`Transport` over a group such as NCCL, which pairs sends with receives and cannot poll.

In a stream, a send waits until the other side has reached its receive and vice versa, so all ranks
must start their transfers in compatible orders. An *exchange* comprises the messages that a rank
sends between two other calls and as many incoming ones: in gossip over any graph of this package, a
node receives as many messages per round as it sends. An exchange is started as one batch
(``batch_isend_irecv``), in which order does not matter. Ranks make the same calls in every step, so
an exchange has the same number everywhere, composed of the step and its index in the step, and
holds the same messages at both ends: no circular wait can form. The calls must therefore not depend
on when messages arrive. The scheduler guarantees that by waking coroutines in the order in which
they asked for what they await (``in_order``).

An exchange starts at the next call that is not a send: a receive, a poll, a collective, a gradient,
or the end of the step. A rank's order of calls to all its groups thus depends on the program alone,
and the devices of a node agree on it. That matters if a GPU runs one call at a time: if one device
started an exchange before averaging a gradient within its node, and another device after it, nodes
could deadlock in a cycle. Messages are always in transit during the next gradient.

Headers on another channel, between the hosts, announce the messages: a header with the number of
the exchange, length, type and tag precedes each message. To start an exchange, a host waits for its
headers, that is, until the hosts of its peers have reached the same point; it never waits for its
own device. On CUDA, a batch runs on a separate stream and depends only on the same work as its
messages, so it overlaps with the gradients.

`poll` returns None: a message counts as arrived when it is awaited. For Overlap SGP, this means
that every message is folded in exactly ``tau`` steps late, the latest that the algorithm allows.
Devices may be that far apart; hosts are never further apart than one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.comm import Transport
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Future
from sgp_runner.distributed.gloo_transport import DTYPES, GlooTransport
from sgp_runner.distributed.torch_collectives import TorchCollectives
from sgp_runner.utils.shard import Shard
from sgp_runner.utils.waits import waiting_for

MAX_EXCHANGES = 2**20  # in one step


@dataclass
class TransferBatch:
    """Messages that are sent and received together.

    outgoing: (dst, message)
    headers: (src, [length, type, tag]) of incoming messages
    written: event after which the messages are complete, on CUDA
    """

    number: int
    outgoing: list[tuple[int, Tensor]] = field(default_factory=list)
    headers: list[tuple[int, Tensor]] = field(default_factory=list)
    written: torch.cuda.Event | None = None
    works: list[dist.Work] = field(default_factory=list)

    def finish(self) -> None:
        """Order later work after the transfers; on CUDA, only the current stream waits."""
        with waiting_for("waits for the messages of an exchange"):
            for work in self.works:
                work.wait()
        self.works.clear()
        self.outgoing.clear()


class NcclTransport(Transport):
    """Transport of this process.

    make_headers: makes a transport of whole messages between hosts, given its delivery callback
    collectives: on the group that moves ``part`` of every message
    """

    def __init__(
        self,
        make_headers: Callable[[Callable[[int, int, Tensor], None]], GlooTransport],
        mailbox: Mailbox,
        collectives: TorchCollectives,
        part: Shard,
        device: torch.device,
    ) -> None:
        self.headers = make_headers(self.header_arrived)
        self.mailbox, self.collectives, self.part, self.device = mailbox, collectives, part, device
        self.clock, self.layout = self.headers.clock, self.headers.layout
        self.group = collectives.group
        self.arrived: dict[int, list[tuple[int, Tensor]]] = {}  # headers by number of exchange
        self.exchanges: dict[int, TransferBatch] = {}  # by id() of their incoming messages
        self.steps = 0
        self.in_step = 0  # exchanges of this step
        self.open: TransferBatch | None = None  # still taking messages
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        if self.open is None:
            self.open = TransferBatch(self.steps * MAX_EXCHANGES + self.in_step)
            self.in_step += 1
        header = torch.tensor([message.numel(), DTYPES.index(message.dtype), tag])
        self.headers.send(dst, self.open.number, header)
        self.open.outgoing.append((dst, message))
        if self.stream is not None:
            self.open.written = torch.cuda.current_stream(self.device).record_event()
        return message.numel() * message.element_size()

    def header_arrived(self, src: int, number: int, header: Tensor) -> None:
        self.arrived.setdefault(number, []).append((src, header))

    def before_receiving(self, src: int | None) -> None:
        self.flush()
        self.clock.catch_up()

    def may_poll(self, arrived: bool) -> bool:
        return False

    def check_any_source(self) -> None:
        raise RuntimeError("a group that pairs sends with receives cannot receive from any source")

    def convert(self, message: Tensor) -> Tensor:
        """Return ``message`` once later work may read it."""
        exchange = self.exchanges.pop(id(message), None)
        if exchange is not None:
            with self.clock.meter.waiting(self.device):
                exchange.finish()
            if message.is_cuda:
                message.record_stream(torch.cuda.current_stream(self.device))
        return message

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        self.flush()
        return self.collectives.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        self.flush()
        return self.collectives.all_gather(number, tensor)

    def flush(self) -> None:
        """Start the open exchange after all its headers have arrived."""
        exchange, self.open = self.open, None
        if exchange is None:
            return
        number, count = exchange.number, len(exchange.outgoing)
        with waiting_for("waits for the headers of an exchange"):
            self.clock.run_until(lambda: len(self.arrived.get(number, ())) == count)
        exchange.headers = sorted(self.arrived.pop(number), key=itemgetter(0))
        self.start(exchange)

    def quiesce(self) -> None:
        self.flush()
        for _, _, message in self.mailbox.state_dict():
            self.convert(message)

    def end_of_step(self) -> None:
        self.flush()
        self.steps += 1
        self.in_step = 0

    def close(self) -> None:
        self.flush()
        self.headers.close()
        del self.group

    def start(self, exchange: TransferBatch) -> None:
        with self.side_stream(exchange):
            batch = [
                self.transfer(dist.isend, dst, message.view(-1))
                for dst, message in exchange.outgoing
            ]
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
            self.mailbox.deliver(src, tag, message)

    def transfer(self, verb: Callable[..., object], rank: int, message: Tensor) -> dist.P2POp:
        """Return the operation that moves this process's part of a message to or from ``rank``."""
        return dist.P2POp(
            verb, message[self.part.of(message.numel())], self.layout.process_of(rank), self.group
        )

    def side_stream(self, exchange: TransferBatch) -> AbstractContextManager[object]:
        if self.stream is None:
            return nullcontext()
        assert exchange.written is not None
        self.stream.wait_event(exchange.written)
        return torch.cuda.stream(self.stream)

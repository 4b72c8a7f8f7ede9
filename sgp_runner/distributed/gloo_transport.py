"""`Transport` over torch.distributed's gloo: real messages between real processes.

A sending thread processes a queue, so that `send` never blocks. Two receiving threads receive
headers and messages from any source and post them to the scheduler's thread, because gloo's
receives cannot be polled. A header has the tag, length and type of a message. If both processes
share memory, it also has the position of the message, and nothing else is sent. At the end, each
rank sends a goodbye to all others, so that a rank knows when it has received everything. Tensors on
a GPU travel through pinned memory: the sending thread, not the scheduler's, waits for the copy.

Messages are sent and received one after the other, so that none is delayed by the next. However,
gloo starts sending only when the other side has started to receive. Therefore a message starts
while the tail of the previous one is still in flight, after its header has been read. A slow link
is hardly ever idle between two messages.

Gloo announces each receive to the sender, on the connection between the two and behind pending
sends. Two processes that exchange long messages over one connection would take turns, so each
direction has separate connections, and so have headers.

Over an imitated link the sending thread waits for the link, and one more thread delays received
messages until their imitated arrival.
"""

from __future__ import annotations

import gc
import queue
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import product
from threading import Thread
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.comm import Transport
from sgp_runner.core.scheduler import Future, RealClock
from sgp_runner.distributed.json_collectives import STRANGER_HINT
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.shared_memory import NOWHERE, SharedMemory
from sgp_runner.distributed.torch_collectives import TorchCollectives, connection_to, named
from sgp_runner.distributed.traffic_shaper import TrafficShaper
from sgp_runner.utils.errors import RankFailed
from sgp_runner.utils.shard import Shard
from sgp_runner.utils.waits import waiting_for

T = TypeVar("T")

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
GOODBYE = -1  # type in the header of a goodbye
MAX_NUMBERS = 2**40  # longest message
HEADER, PAYLOAD = 1, 2  # gloo's own tags
TAIL = 2**14  # bytes
JOIN_SECONDS = 0.05
WAKE = timedelta(seconds=2)  # for a survivor to receive the last header of an abandoned transport
ON_THEIR_WAY = 10.0  # seconds for messages between survivors to arrive
AT_ONCE = timedelta(milliseconds=1)  # the shortest
COLLECT_AFTER = (0, 1, 2, 4, 8, 16)  # seconds between the attempts to free its memory


class Transfer:
    """A message in flight to or from process ``rank``: a head and a tail of `TAIL` bytes.

    part: the moved part of the message
    move: starts sending or receiving a piece
    then: called when the transfer is complete
    """

    def __init__(
        self,
        rank: int,
        part: Tensor,
        move: Callable[[Tensor], dist.Work | None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.then = rank, then
        split = max(0, part.numel() - TAIL // part.element_size())
        with connection_to(rank):
            works = [move(piece) for piece in (part[:split], part[split:]) if piece.numel()]
        # No work is None for a member of the group.
        self.works = [work for work in works if work is not None]

    def wait_for_head(self) -> None:
        with connection_to(self.rank):
            for work in self.works[:-1]:
                work.wait()

    def finish(self) -> None:
        with connection_to(self.rank):
            for work in self.works[-1:]:
                work.wait()
        self.then()


def one_after_the_other(transfers: queue.SimpleQueue[Callable[[], Transfer] | None]) -> None:
    """Start each transfer after the previous head has moved; on None, finish all and return."""
    before: Transfer | None = None
    while (start := transfers.get()) is not None:
        transfer = start()
        if before is not None:
            before.finish()
        transfer.wait_for_head()
        before = transfer
        if transfers.empty():
            before.finish()
            before = None
    if before is not None:
        before.finish()


class GlooTransport(Transport):
    """Transport of this process.

    deliver: called on the scheduler's thread with sender, tag and message
    part: the part of every message that this process sends and receives; the rest of a received
        message is not written
    collectives: all-reduces and all-gathers, with their groups
    device: device of the messages
    upward, downward: groups of all processes, for messages to higher and to lower ranks
    shaper: the imitated link of this node, if any
    memory: memory shared with other processes of this machine, if any
    headers: group of all processes, for headers; None: the default group
    """

    def __init__(
        self,
        clock: RealClock,
        deliver: Callable[[int, int, Tensor], None],
        layout: RankLayout,
        part: Shard,
        collectives: TorchCollectives,
        device: torch.device,
        upward: dist.ProcessGroup,
        downward: dist.ProcessGroup,
        shaper: TrafficShaper | None = None,
        memory: SharedMemory | None = None,
        headers: dist.ProcessGroup | None = None,
    ) -> None:
        self.clock, self.deliver = clock, deliver
        self.layout, self.part, self.device = layout, part, device
        self.collectives = collectives
        self.group = headers or dist.group.WORLD  # kept, as the threads may outlive it
        self.upward, self.downward, self.shaper, self.memory = upward, downward, shaper, memory
        self.abandoned = False
        servers = dist.get_world_size() - layout.nodes * layout.devices
        self.others = [
            rank
            for rank in range(layout.nodes + servers)
            if layout.process_of(rank) != layout.process
        ]
        self.outbox: queue.SimpleQueue[Callable[[], Transfer] | None] = queue.SimpleQueue()
        self.announced: queue.SimpleQueue[Callable[[], Transfer] | None] = queue.SimpleQueue()
        # Received messages with the times of their imitated arrival.
        self.delayed: queue.SimpleQueue[tuple[float, Callable[[], None]] | None]
        self.delayed = queue.SimpleQueue()
        work = [
            self.send_all,
            self.receive_headers,
            self.receive_all,
            *([] if shaper is None else [partial(self.delay, shaper)]),
        ]
        self.threads = [
            Thread(target=self.report_errors, args=(function,), daemon=True) for function in work
        ]
        for thread in self.threads:
            thread.start()

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        self.clock.sends(dst, tag, message.nbytes)
        header = [tag, message.numel(), DTYPES.index(message.dtype)]
        part, copied = message.view(-1)[self.part.of(message.numel())], None
        if part.is_cuda:
            part = part.to("cpu", non_blocking=True)  # to pinned memory
            copied = torch.cuda.current_stream(self.device).record_event()
        self.outbox.put(partial(self.start_to_send, dst, header, part, copied))
        return message.nbytes

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        message = None
        if (
            self.memory is not None
            and not tensor.is_cuda  # else `send` copies the message to the host without waiting
            and not self.memory.readers.isdisjoint(map(self.layout.process_of, peers))
        ):
            message = self.memory.empty_like(tensor)
        return torch.empty_like(tensor) if message is None else message

    def before_receiving(self, src: int | None) -> None:
        self.clock.catch_up()

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.collectives.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.collectives.all_gather(number, tensor)

    def close(self) -> None:
        for rank in self.others:
            self.outbox.put(partial(self.start_to_send, rank, [0, 0, GOODBYE], torch.empty(0)))
        self.outbox.put(None)
        while running := [thread for thread in self.threads if thread.is_alive()]:
            self.clock.catch_up()  # raises the threads' errors
            running[-1].join(JOIN_SECONDS)
        self.clock.catch_up()
        # The last references to a group end its threads and close its connections.
        del self.group, self.upward, self.downward
        self.collectives.close()

    def abandon(self) -> None:
        """Stop sending; receiving threads end with the next header (see `release`)."""
        self.abandoned = True
        for transfers in (self.outbox, self.announced, self.delayed):
            transfers.put(None)

    def release(self) -> None:
        """Close the connections, once all survivors have abandoned theirs.

        Threads and connections of a group persist while any wait is pending, and gloo cannot cancel
        a receive from any source. Therefore survivors send each other a last header. Other waits
        end when one of them times out, as gloo then closes all connections of the group. Two kinds
        of groups stay: the last one of a sole survivor, and one in which a message from a lost rank
        was cut off in transit.
        """
        processes = [self.layout.process_of(rank) for rank in self.others]
        groups = self.group, self.upward, self.downward
        arguments = weakref.ref(self), groups, processes, self.threads
        Thread(target=release_groups, args=arguments, daemon=True).start()

    # Functions of the threads.

    def send_all(self) -> None:
        one_after_the_other(self.outbox)

    def start_to_send(
        self, dst: int, header: list[int], part: Tensor, copied: torch.cuda.Event | None = None
    ) -> Transfer:
        if copied is not None:
            with waiting_for(f"waits for its device to copy a message to rank {dst}"):
                copied.synchronize()
        if self.shaper is not None:
            self.shaper.wait_until(self.shaper.leave(part.nbytes))
        process = self.layout.process_of(dst)
        where = NOWHERE if self.memory is None else self.memory.share(part, process)
        with connection_to(dst):
            dist.send(torch.tensor([*header, where]), process, self.group, tag=HEADER)
        if where != NOWHERE:
            part = part[:0]  # nothing is left to move
        group = self.upward if process > self.layout.process else self.downward
        return Transfer(dst, part, lambda piece: dist.isend(piece, process, group, tag=PAYLOAD))

    def receive_headers(self) -> None:
        goodbyes = 0
        while goodbyes < len(self.others):
            header = torch.empty(4, dtype=torch.int64)
            with named("lost a connection over which a message was announced"):
                process = dist.recv(header, group=self.group, tag=HEADER)
            if self.abandoned:
                return
            left = self.shaper.now() if self.shaper is not None else 0.0
            tag, length, dtype, where = header.tolist()
            if dtype == GOODBYE:
                goodbyes += 1
                continue
            check_header(process, length, dtype)
            start = (
                partial(self.start_to_receive, left=left)
                if where == NOWHERE
                else partial(self.start_to_read, where=where)
            )
            self.announced.put(partial(start, process, tag, length, DTYPES[dtype]))
        self.announced.put(None)

    def receive_all(self) -> None:
        one_after_the_other(self.announced)
        self.delayed.put(None)

    def start_to_receive(
        self, process: int, tag: int, length: int, dtype: torch.dtype, left: float
    ) -> Transfer:
        """Start receiving a message that was sent at time ``left``, over an imitated link."""
        src = self.layout.node_rank_of(process)
        message = torch.empty(length, dtype=dtype, pin_memory=self.device.type == "cuda")
        part, arrive = message[self.part.of(length)], partial(self.arrived, src, tag, message)
        group = self.upward if process < self.layout.process else self.downward

        def complete() -> None:
            if self.shaper is None:
                self.clock.post(arrive)
            else:
                self.delayed.put((self.shaper.arrive(part.nbytes, left), arrive))

        return Transfer(
            src, part, lambda piece: dist.irecv(piece, process, group, tag=PAYLOAD), complete
        )

    def start_to_read(
        self, process: int, tag: int, length: int, dtype: torch.dtype, where: int
    ) -> Transfer:
        """Deliver a message in shared memory when its turn has come."""
        assert self.memory is not None
        src, message = (
            self.layout.node_rank_of(process),
            self.memory.message(process, where, length, dtype),
        )
        arrive = partial(self.arrived, src, tag, message)
        return Transfer(src, message[:0], lambda piece: None, lambda: self.clock.post(arrive))

    def delay(self, shaper: TrafficShaper) -> None:
        while (item := self.delayed.get()) is not None:
            when, arrive = item
            shaper.wait_until(when)
            self.clock.post(arrive)

    def arrived(self, src: int, tag: int, message: Tensor) -> None:
        self.clock.delivers(src, tag)
        self.deliver(src, tag, message.to(self.device, non_blocking=True))

    def report_errors(self, work: object) -> None:
        """Run ``work`` and post any error to the scheduler, which raises it on the main thread."""
        assert callable(work)
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # the default is the first device
            work()
        except Exception as error:
            if not self.abandoned:  # after that, its group does not exist for torch.distributed
                self.clock.post_error(error)


def release_groups(
    transport: Callable[[], GlooTransport | None],
    groups: tuple[dist.ProcessGroup, ...],
    processes: Sequence[int],
    threads: Sequence[Thread],
) -> None:
    """End pending waits of an abandoned transport, here and in ``processes``, and free its memory.

    transport: returns None once the transport no longer exists
    groups: groups for headers, for which processes wait from any source, and for messages
    """
    headers, *messages = groups
    last = torch.tensor([0, 0, GOODBYE, NOWHERE])
    works = []
    for process in processes:
        with suppress(RuntimeError):  # it is lost
            works.append(headers.send([last], process, HEADER))
    for work in works:
        with suppress(RuntimeError):  # it is lost, or was woken by another one
            work.wait(WAKE)
    works.clear()
    deadline = time.monotonic() + ON_THEIR_WAY
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # Only now: gloo does not end the wait for a message that is cut off on its way.
    if any(thread.is_alive() for thread in threads):
        for group, process in product(messages, processes):
            with suppress(RuntimeError):  # always, as nothing is sent with this tag
                group.recv([last], process, HEADER).wait(AT_ONCE)
    # Tracebacks of the loss are in cycles, to which a last gradient or thread may still belong.
    for seconds in COLLECT_AFTER:
        time.sleep(seconds)
        gc.collect()
        if transport() is None:
            return


def check_header(process: int, length: int, dtype: int) -> None:
    """Raise RankFailed for an invalid message before memory is allocated."""
    if not (0 <= length <= MAX_NUMBERS and 0 <= dtype < len(DTYPES)):
        raise RankFailed(
            f"process {process} announced a message of {length} numbers of type {dtype}: "
            f"{STRANGER_HINT}"
        )

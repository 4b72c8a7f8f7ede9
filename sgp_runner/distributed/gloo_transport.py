"""`Transport` over torch.distributed's gloo: real messages between real processes.

A sending thread works off a queue, so that `send` never blocks. Two receiving threads take headers
and messages from any source and post what arrives to the scheduler's thread, because gloo's own
receives cannot be polled. A header has the tag, length and type of a message, and where it is if
both processes share memory; then nothing else is sent. At the end each rank sends all others a
goodbye, so that a rank knows when it has received everything. Tensors on a GPU travel through
pinned memory: the sending thread, not the scheduler's, waits until the copy is complete.

Messages leave and arrive one after the other, so that none is delayed by the next. But gloo begins
to send only when the other side has begun to receive. So a message begins while the tail of the
previous one is still on its way, and its header has been read by then: a slow link is hardly ever
idle between two messages.

Gloo announces each receive to the sender, on the connection between the two and behind pending
sends. Two processes that exchange long messages over one connection would take turns, so each
direction has connections of its own, and so have headers.

Over an imitated link the sending thread waits for the link, and one more thread holds back what
has really arrived until its time.
"""

from __future__ import annotations

import gc
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from threading import Thread, Timer
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.comm import Transport, all_gather_bytes, all_reduce_bytes
from sgp_runner.core.scheduler import Future, RealClock, Scheduler
from sgp_runner.distributed.json_collectives import STRANGER
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.shared_memory import NOWHERE, SharedMemory
from sgp_runner.distributed.traffic_shaper import TrafficShaper
from sgp_runner.utils.errors import Aborted, LostConnection, MembershipChanged, RankFailed
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
MOST_NUMBERS = 2**40  # longest message
HEADER, PAYLOAD = 1, 2  # gloo's own tags
TAIL = 2**14  # bytes
JOIN_SECONDS = 0.05
WAKE = timedelta(seconds=2)  # for a survivor to receive the last header of an abandoned transport


class Transfer:
    """A message under way to or from process ``rank``: a head, and a tail of `TAIL` bytes.

    part: the moved part of the message
    move: starts to send or to receive a piece
    then: called once the transfer is complete
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
    """Start each transfer once the previous head has moved, and finish all, until None comes."""
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
    collectives: with their groups
    device: of the messages
    upward, downward: groups of all processes, for messages to higher and to lower ranks
    shaper: the imitated link of this node, if any
    memory: shared with other processes of this machine, if any
    """

    def __init__(
        self,
        clock: RealClock,
        deliver: Callable[[int, int, Tensor], None],
        layout: RankLayout,
        part: Shard,
        collectives: Collectives,
        device: torch.device,
        upward: dist.ProcessGroup,
        downward: dist.ProcessGroup,
        shaper: TrafficShaper | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        self.clock, self.deliver = clock, deliver
        self.layout, self.part, self.device = layout, part, device
        self.collectives = collectives
        self.group = dist.group.WORLD  # kept, as the threads may outlive it
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
        self.kept_back: queue.SimpleQueue[tuple[float, Callable[[], None]] | None]
        self.kept_back = queue.SimpleQueue()
        work = [
            self.send_all,
            self.receive_headers,
            self.receive_all,
            *([] if shaper is None else [partial(self.keep_back, shaper)]),
        ]
        self.threads = [
            Thread(target=self.report_errors, args=(each,), daemon=True) for each in work
        ]
        for thread in self.threads:
            thread.start()

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        header = [tag, message.numel(), DTYPES.index(message.dtype)]
        part, copied = message.view(-1)[self.part.of(message.numel())], None
        if part.is_cuda:
            part = part.to("cpu", non_blocking=True)  # to pinned memory
            copied = torch.cuda.current_stream(self.device).record_event()
        self.outbox.put(partial(self.start_to_send, dst, header, part, copied))
        return message.numel() * message.element_size()

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        message = None
        if self.memory is not None and not self.memory.readers.isdisjoint(
            map(self.layout.process_of, peers)
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

    def abandon(self) -> None:
        """Stop sending; receiving threads end with the next header (see `release`)."""
        self.abandoned = True
        for each in (self.outbox, self.announced, self.kept_back):
            each.put(None)

    def release(self) -> None:
        """Close the connections, once all survivors have abandoned theirs.

        Gloo cannot cancel a receive from any source, and threads and connections of its group stay
        as long as one waits. So survivors send each other a last header. The last group of a rank
        that is left alone stays.
        """
        processes = [self.layout.process_of(rank) for rank in self.others]
        arguments = self.group, processes, self.threads
        Thread(target=release_group, args=arguments, daemon=True).start()

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
        where = NOWHERE if self.memory is None else self.memory.place(part, process)
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
        self.kept_back.put(None)

    def start_to_receive(
        self, process: int, tag: int, length: int, dtype: torch.dtype, left: float
    ) -> Transfer:
        """Start to receive a message that ``left`` at that time, over an imitated link."""
        src = self.layout.node_rank_of(process)
        message = torch.empty(length, dtype=dtype, pin_memory=self.device.type == "cuda")
        part, arrive = message[self.part.of(length)], partial(self.arrived, src, tag, message)
        group = self.upward if process < self.layout.process else self.downward

        def complete() -> None:
            if self.shaper is None:
                self.clock.post(arrive)
            else:
                self.kept_back.put((self.shaper.arrive(part.nbytes, left), arrive))

        return Transfer(
            src, part, lambda piece: dist.irecv(piece, process, group, tag=PAYLOAD), complete
        )

    def start_to_read(
        self, process: int, tag: int, length: int, dtype: torch.dtype, where: int
    ) -> Transfer:
        """Deliver a message in shared memory, in its turn."""
        assert self.memory is not None
        src, message = (
            self.layout.node_rank_of(process),
            self.memory.message(process, where, length, dtype),
        )
        arrive = partial(self.arrived, src, tag, message)
        return Transfer(src, message[:0], lambda piece: None, lambda: self.clock.post(arrive))

    def keep_back(self, shaper: TrafficShaper) -> None:
        while (item := self.kept_back.get()) is not None:
            when, arrive = item
            shaper.wait_until(when)
            self.clock.post(arrive)

    def arrived(self, src: int, tag: int, message: Tensor) -> None:
        self.clock.delivers(src, tag)
        self.deliver(src, tag, message.to(self.device, non_blocking=True))

    def report_errors(self, work: object) -> None:
        """Run ``work`` and post its error to the scheduler, which raises it on the main thread."""
        assert callable(work)
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # the default is the first device
            work()
        except Exception as error:
            if not self.abandoned:  # after that, its group does not exist for torch.distributed
                self.clock.post_error(error)


def release_group(
    group: dist.ProcessGroup, processes: Sequence[int], threads: Sequence[Thread]
) -> None:
    """Wake ``processes``, which wait for headers over ``group``, and free what is left of it."""
    header = torch.tensor([0, 0, GOODBYE, NOWHERE])
    works = []
    for process in processes:
        with suppress(RuntimeError):  # it is lost
            works.append(group.send([header], process, HEADER))
    for work in works:
        with suppress(RuntimeError):  # it is lost, or was woken by another one
            work.wait(WAKE)
    works.clear()
    for thread in threads:
        thread.join(WAKE.total_seconds())
    gc.collect()  # tracebacks of the loss are in cycles


def check_header(process: int, length: int, dtype: int) -> None:
    """Raise RankFailed for an impossible message, before memory is allocated."""
    if not (0 <= length <= MOST_NUMBERS and 0 <= dtype < len(DTYPES)):
        raise RankFailed(
            f"process {process} announced a message of {length} numbers of type {dtype}: {STRANGER}"
        )


def connection_to(rank: int) -> AbstractContextManager[None]:
    return named(f"lost its connection to rank {rank}")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turn errors of gloo into LostConnection: another process may be lost."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, MembershipChanged | Aborted | RankFailed):
            raise
        raise LostConnection(f"rank {dist.get_rank()} {what}") from error


class Collectives:
    """All-reduces and all-gathers over ``group``, of ``nodes`` nodes with equally many processes.

    shaper: imitated link of this node, if any

    Gloo reports the end of a collective on a thread of its own. On a GPU only the device waits,
    when the outcome is awaited.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: RealClock,
        group: dist.ProcessGroup,
        nodes: int,
        shaper: TrafficShaper | None = None,
    ) -> None:
        self.scheduler, self.clock = scheduler, clock
        self.group, self.nodes, self.shaper = group, nodes, shaper

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        num_bytes, rounds = all_reduce_bytes(tensor, self.nodes), 2 * (self.nodes - 1)
        ended = (
            self.shaper.collective(num_bytes, rounds, self.group)
            if self.shaper is not None
            else None
        )
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None
        what = ("all-reduce", number, None)
        return self.outcome(
            what, tensor.is_cuda, work, ended, lambda: tensor.div_(self.group.size())
        ), num_bytes

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        num_bytes, rounds = all_gather_bytes(tensor, self.nodes), self.nodes - 1
        ended = (
            self.shaper.collective(num_bytes, rounds, self.group)
            if self.shaper is not None
            else None
        )
        parts = [torch.empty_like(tensor) for _ in range(self.group.size())]
        work = dist.all_gather(parts, tensor, group=self.group, async_op=True)
        assert work is not None
        what = ("all-gather", number, None)
        return self.outcome(
            what, tensor.is_cuda, work, ended, lambda: parts[:: len(parts) // self.nodes]
        ), num_bytes

    def outcome(
        self,
        what: tuple[Any, ...],
        on_device: bool,
        work: dist.Work,
        ended: torch.futures.Future[float] | None,
        value: Callable[[], T],
    ) -> Future[T]:
        """Return a future of ``value``, after ``work`` and, over an imitated link, ``ended``."""
        lost = f"rank {dist.get_rank()} lost a connection in an {what[0]}"
        if on_device:

            def finish(_: T) -> T:
                with named(f"lost a connection in an {what[0]}"):
                    work.wait()
                return value()

            future: Future[T] = self.scheduler.future(what, finish)
            self.scheduler.resolve(future, cast("T", None))
            return future
        future = self.scheduler.future(what)

        def complete(done: torch.futures.Future[object]) -> None:
            try:
                done.value()
            except RuntimeError:
                self.clock.post_error(LostConnection(lost))
                return
            resolve = partial(self.end, what[1], future, value)
            if ended is None or self.shaper is None:
                self.clock.post(resolve)
            else:
                timer = Timer(
                    max(0.0, ended.wait() - self.shaper.now()), self.clock.post, (resolve,)
                )
                timer.daemon = True
                timer.start()

        work.get_future().add_done_callback(complete)
        return future

    def end(self, number: int, future: Future[T], value: Callable[[], T]) -> None:
        self.clock.ends(number)
        self.scheduler.resolve(future, value())

"""`Comm` over torch.distributed's gloo: real messages between real processes.

A sending thread works off a queue, so that `send` never blocks; two receiving threads take headers and messages from anybody, and post
what arrives to the scheduler's mailbox, because gloo's own receives cannot be polled. A header has the tag, length and type of a message.
At the end each rank tells all others that it will send no more, so that a rank knows when it has everything. Tensors on a GPU travel
through pinned memory: the sending thread, not the scheduler's, waits until the copy is there.

Messages leave one after the other and come in likewise, so that none is late for the sake of the next. But gloo begins to send only when
the other side has begun to receive. So a message begins while the tail of the one before is still on its way, and its header has been read
by then: a slow link is hardly ever idle between two messages.

Gloo announces each receive to the sender, on the connection between the two and behind whatever is being sent there. Two processes that
exchange long messages over one connection would do so in turns, so each direction has connections of its own, and headers have too.

Over an imitated `Link` the sending thread waits for the link, and one more thread keeps back what has really arrived until it may have.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sgp_runner.comm import all_reduce_bytes
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.comm.values import STRANGER
from sgp_runner.errors import Aborted, LostConnection, RankFailed, RollCalled
from sgp_runner.scheduler import RealClock, Scheduler, Wait
from sgp_runner.waits import left_if_interrupted, waiting_for

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.comm.link import Link, Reducing
    from sgp_runner.place import Part, Place

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
GOODBYE = -1  # in place of a type
MOST_NUMBERS = 2**40  # of one message
HEADER, PAYLOAD = 1, 2  # gloo's own tags
TAIL = 2**14  # bytes
JOIN_SECONDS = 0.05


class Transfer:
    """A message under way to or from ``rank``, as two: a head, and a tail of `TAIL` bytes.

    part: what is moved of it. move: starts to send or to receive a piece. then: called once it is complete.
    """

    def __init__(
        self, rank: int, part: Tensor, move: Callable[[Tensor], dist.Work | None], then: Callable[[], None] = lambda: None
    ) -> None:
        self.rank, self.then = rank, then
        split = max(0, part.numel() - TAIL // part.element_size())
        with connection_to(rank):
            works = [move(piece) for piece in (part[:split], part[split:]) if piece.numel()]
        self.works = [work for work in works if work is not None]  # it never is, of a group that one belongs to

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
    """Start each once the head of the one before has been moved, and finish all, until None comes."""
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


class DistributedComm:
    """The communication of this process.

    part: of every message, that this process sends and receives; the rest of what it receives is left as it was.
    averaging: the group of those that take part in an all-reduce. device: of the messages.
    upward, downward: groups of all processes, for messages to those of higher and of lower rank. link: of this node, if it is imitated.
    """

    lockstep = False

    def __init__(
        self,
        scheduler: Scheduler,
        clock: RealClock,
        place: Place,
        part: Part,
        averaging: dist.ProcessGroup,
        device: torch.device,
        upward: dist.ProcessGroup,
        downward: dist.ProcessGroup,
        link: Link | None = None,
    ) -> None:
        self.mailbox = Mailbox(scheduler)
        self.clock, self.place, self.part, self.averaging, self.device = clock, place, part, averaging, device
        self.group = dist.group.WORLD  # of now: the threads may outlive it
        self.upward, self.downward, self.link = upward, downward, link
        servers = dist.get_world_size() - place.nodes * place.devices
        self.others = [rank for rank in range(place.nodes + servers) if place.process_of(rank) != place.process]
        self.num_bytes_sent = self.num_sent = self.num_delivered = 0
        self.outbox: queue.SimpleQueue[Callable[[], Transfer] | None] = queue.SimpleQueue()
        self.announced: queue.SimpleQueue[Callable[[], Transfer] | None] = queue.SimpleQueue()
        self.kept_back: queue.SimpleQueue[tuple[float, Callable[[], None]] | None] = queue.SimpleQueue()  # with the time when it arrives
        work = [self.send_all, self.receive_headers, self.receive_all, *([] if link is None else [partial(self.keep_back, link)])]
        self.threads = [Thread(target=self.report_errors, args=(each,), daemon=True) for each in work]
        for thread in self.threads:
            thread.start()

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.num_bytes_sent += message.numel() * message.element_size()
        self.num_sent += 1
        header = torch.tensor([tag, message.numel(), DTYPES.index(message.dtype)])
        part, copied = message.view(-1)[self.part.of(message.numel())], None
        if part.is_cuda:
            part = part.to("cpu", non_blocking=True)  # pinned
            copied = torch.cuda.current_stream(self.device).record_event()
        self.outbox.put(partial(self.start_to_send, dst, header, part, copied))

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        self.clock.catch_up()
        return self.mailbox.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Wait[tuple[int, Tensor]]:
        self.clock.catch_up()
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        self.clock.catch_up()
        return self.mailbox.poll(src, tag)

    def has(self, src: int, tag: int = 0) -> bool:
        """Whether `poll` would find a message."""
        self.clock.catch_up()
        return self.mailbox.has(src, tag)

    def all_reduce(self, tensor: Tensor) -> Average:
        self.num_bytes_sent += all_reduce_bytes(tensor, self.place.nodes)
        return start_mean(tensor, self.averaging, self.link)

    def flush(self) -> None:
        """Nothing is held back."""

    def rest(self) -> None:
        """What has arrived is complete."""

    def end_of_step(self) -> None:
        """Steps are of no importance."""

    def close(self) -> list[tuple[int, int, int]]:
        for rank in self.others:
            self.outbox.put(partial(self.start_to_send, rank, torch.tensor([0, 0, GOODBYE]), torch.empty(0)))
        self.outbox.put(None)
        while running := [thread for thread in self.threads if thread.is_alive()]:
            self.clock.catch_up()  # an error of theirs
            running[-1].join(JOIN_SECONDS)
        self.clock.catch_up()
        return self.mailbox.unread()

    def abandon(self) -> None:
        """Send nothing more. The receiving threads stay where they are, for good."""
        self.outbox.put(None)

    # The threads.

    def send_all(self) -> None:
        one_after_the_other(self.outbox)

    def start_to_send(self, dst: int, header: Tensor, part: Tensor, copied: torch.cuda.Event | None = None) -> Transfer:
        if copied is not None:
            with waiting_for(f"waits for its device to copy a message to rank {dst}"):
                copied.synchronize()
        if self.link is not None:
            self.link.wait_until(self.link.leave(part.nbytes))
        process = self.place.process_of(dst)
        with connection_to(dst):
            dist.send(header, process, self.group, tag=HEADER)
        group = self.upward if process > self.place.process else self.downward
        return Transfer(dst, part, lambda piece: dist.isend(piece, process, group, tag=PAYLOAD))

    def receive_headers(self) -> None:
        goodbyes = 0
        while goodbyes < len(self.others):
            header = torch.empty(3, dtype=torch.int64)
            with named("lost a connection over which a message was announced"):
                process = dist.recv(header, group=self.group, tag=HEADER)
            left = self.link.now() if self.link is not None else 0.0
            tag, length, dtype = header.tolist()
            if dtype == GOODBYE:
                goodbyes += 1
            else:
                check_header(process, length, dtype)
                self.announced.put(partial(self.start_to_receive, process, tag, length, DTYPES[dtype], left))
        self.announced.put(None)

    def receive_all(self) -> None:
        one_after_the_other(self.announced)
        self.kept_back.put(None)

    def start_to_receive(self, process: int, tag: int, length: int, dtype: torch.dtype, left: float) -> Transfer:
        """left: when it did so, over an imitated link."""
        src, message = self.place.rank_of(process), torch.empty(length, dtype=dtype, pin_memory=self.device.type == "cuda")
        part, arrive = message[self.part.of(length)], partial(self.deliver, src, tag, message)
        group = self.upward if process < self.place.process else self.downward

        def arrived() -> None:
            if self.link is None:
                self.clock.post(arrive)
            else:
                self.kept_back.put((self.link.arrive(part.nbytes, left), arrive))

        return Transfer(src, part, lambda piece: dist.irecv(piece, process, group, tag=PAYLOAD), arrived)

    def keep_back(self, link: Link) -> None:
        while (item := self.kept_back.get()) is not None:
            when, arrive = item
            link.wait_until(when)
            self.clock.post(arrive)

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        self.num_delivered += 1
        self.mailbox.deliver(src, tag, message.to(self.device, non_blocking=True))

    def report_errors(self, work: object) -> None:
        """Run ``work``; an error comes out of the scheduler, on the main thread."""
        assert callable(work)
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # or this thread would use the first one
            work()
        except Exception as error:
            self.clock.post_error(error)


def check_header(process: int, length: int, dtype: int) -> None:
    """Raises RankFailed for a message that no rank would announce, before memory is asked for."""
    if not (0 <= length <= MOST_NUMBERS and 0 <= dtype < len(DTYPES)):
        raise RankFailed(f"process {process} announced a message of {length} numbers of type {dtype}: {STRANGER}")


def connection_to(rank: int) -> AbstractContextManager[None]:
    return named(f"lost its connection to rank {rank}")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Errors of gloo in here mean that somebody else may be gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RollCalled | Aborted | RankFailed):
            raise
        raise LostConnection(f"rank {dist.get_rank()} {what}") from error


class Average:
    """An all-reduce under way."""

    def __init__(self, tensor: Tensor, work: dist.Work | Reducing, size: int) -> None:
        self.tensor, self.size = tensor, size
        self.work: dist.Work | Reducing | None = work

    def finish(self) -> Tensor:
        if (work := self.work) is not None:
            with named("lost a connection in an all-reduce"):
                # On a GPU only the device waits.
                work.wait() if self.tensor.is_cuda else left_if_interrupted(work.wait, "waits for an all-reduce")
            self.tensor /= self.size
            self.work = None
        return self.tensor

    def __await__(self) -> Generator[Wait[Tensor], None, Tensor]:
        return self.finish()
        yield


def start_mean(tensor: Tensor, group: dist.ProcessGroup, link: Link | None = None) -> Average:
    """All-reduce ``tensor`` in place, from now on."""
    work = dist.all_reduce(tensor, group=group, async_op=True) if link is None else link.start_reduce(tensor, group)
    return Average(tensor, work, group.size())

"""`World` and `Comm` over torch.distributed's gloo: real messages between real processes.

A sending thread works off a queue, so that `send` never blocks; a receiving thread takes whatever arrives from anybody and posts it to
the scheduler's mailbox, because gloo's own receives cannot be polled. Every message has a header with its tag, length and type. At the
end each rank tells all others that it will send no more, so that a rank knows when it has everything.
"""

from __future__ import annotations

import queue
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from sgp_runner.comm import all_reduce_bytes
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.scheduler import RealClock, Scheduler, Wait

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
GOODBYE = -1  # in place of a type
HEADER, PAYLOAD = 1, 2  # gloo's own tags
FOREVER = timedelta(days=365)
RUNS = count()  # of this process: a launcher's store may serve several, one after the other
T = TypeVar("T")


class DistributedWorld:
    """The processes that a launcher has described in the environment as ``torchrun`` does."""

    workers: dist.ProcessGroup

    def __init__(self) -> None:
        store, self.rank, self.size = next(rendezvous("env://", timeout=timedelta(minutes=5)))
        self.alarm = PrefixStore("alarm", store.clone())
        self.store = PrefixStore(f"run {next(RUNS)}", store)

    def connect(self, nodes: int) -> None:
        dist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.size, timeout=FOREVER)
        self.nodes = nodes
        self.everybody = dist.new_group(list(range(self.size)))
        self.workers = dist.new_group(list(range(nodes)))  # on a server not a group, and not used

    def comm(self, scheduler: Scheduler, clock: RealClock) -> DistributedComm:
        return DistributedComm(scheduler, clock, self.workers, self.nodes)

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.everybody)
        return values

    def mean(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self.workers)
        tensor /= self.nodes

    def close(self) -> None:
        dist.barrier(self.everybody)
        dist.destroy_process_group()


class DistributedComm:
    """The communication of this process. ``workers``: the group of the gradient workers, for all-reduce."""

    def __init__(self, scheduler: Scheduler, clock: RealClock, workers: dist.ProcessGroup, size: int) -> None:
        self.mailbox = Mailbox(scheduler)
        self.clock, self.workers, self.size = clock, workers, size
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.num_bytes_sent = self.num_sent = self.num_delivered = 0
        self.outbox: queue.SimpleQueue[tuple[int, Tensor, Tensor | None] | None] = queue.SimpleQueue()
        self.sender = Thread(target=self.report_errors, args=(self.send_all,), daemon=True)
        self.receiver = Thread(target=self.report_errors, args=(self.receive_all,), daemon=True)
        self.sender.start()
        self.receiver.start()

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.num_bytes_sent += message.numel() * message.element_size()
        self.num_sent += 1
        header = torch.tensor([tag, message.numel(), DTYPES.index(message.dtype)])
        self.outbox.put((dst, header, message))

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        self.clock.catch_up()
        return self.mailbox.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Wait[tuple[int, Tensor]]:
        self.clock.catch_up()
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        self.clock.catch_up()
        return self.mailbox.poll(src, tag)

    def all_reduce(self, tensor: Tensor) -> Average:
        self.num_bytes_sent += all_reduce_bytes(tensor, self.size)
        work = dist.all_reduce(tensor, group=self.workers, async_op=True)
        return Average(tensor, work, self.size)

    def close(self) -> list[tuple[int, int, int]]:
        for dst in range(self.world):
            if dst != self.rank:
                self.outbox.put((dst, torch.tensor([0, 0, GOODBYE]), None))
        self.outbox.put(None)
        self.sender.join()
        self.receiver.join()
        self.clock.catch_up()
        return self.mailbox.unread()

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        self.num_delivered += 1
        self.mailbox.deliver(src, tag, message)

    # The two threads.

    def send_all(self) -> None:
        while (item := self.outbox.get()) is not None:
            dst, header, message = item
            dist.send(header, dst, tag=HEADER)
            if message is not None and message.numel():
                dist.send(message, dst, tag=PAYLOAD)

    def receive_all(self) -> None:
        goodbyes = 0
        while goodbyes < self.world - 1:
            header = torch.empty(3, dtype=torch.int64)
            src = dist.recv(header, tag=HEADER)
            tag, length, dtype = header.tolist()
            if dtype == GOODBYE:
                goodbyes += 1
                continue
            message = torch.empty(length, dtype=DTYPES[dtype])
            if length:
                dist.recv(message, src, tag=PAYLOAD)
            self.clock.post(partial(self.deliver, src, tag, message))

    def report_errors(self, work: object) -> None:
        """Run ``work``; an error comes out of the scheduler, on the main thread."""
        assert callable(work)
        try:
            work()
        except Exception as error:
            self.clock.post_error(error)


class Average:
    """An all-reduce under way."""

    def __init__(self, tensor: Tensor, work: dist.Work, size: int) -> None:
        self.tensor, self.size = tensor, size
        self.work: dist.Work | None = work

    def finish(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
            self.tensor /= self.size
            self.work = None
        return self.tensor

    def __await__(self) -> Generator[Wait[Tensor], None, Tensor]:
        return self.finish()
        yield

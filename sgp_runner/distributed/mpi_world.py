"""`World` and `Transport` over MPI, through mpi4py.

The scheduler's thread makes every MPI call. When no coroutine can run, the clock calls
`MpiTransport.progress` repeatedly, while gradients are computed on a separate thread. Therefore
messages move all the time, nothing is shared between threads, and any MPI library works. A message
needs no header: MPI carries its length, and one MPI tag encodes its tag and type.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from sgp_runner.core.comm import Transport, all_gather_bytes, all_reduce_bytes
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.problem import ON_CPU
from sgp_runner.core.scheduler import Future, RealClock, Scheduler
from sgp_runner.distributed.gloo_transport import DTYPES
from sgp_runner.distributed.json_collectives import check_lengths, pack, unpack
from sgp_runner.distributed.private_folder import private_folder
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.store import LocalStore
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import StallTimeout
from sgp_runner.utils.waits import raise_if_interrupted, waiting_for

T = TypeVar("T")

POLL_SECONDS = 5e-5  # leaves the core of a waiting rank to computing ranks
PATIENCE_SECONDS, MAX_PATIENT = 5.0, 12
GOODBYE = -1  # tag of the last message from a rank


class MpiWorld(World):
    """The processes started by ``mpirun``. Process rank 0 hosts the store."""

    compute = ON_CPU

    def __init__(self, timeout_seconds: float) -> None:
        atexit.unregister(MPI.Finalize)
        meet(timeout_seconds)
        self.all_ranks = MPI.COMM_WORLD.Dup()
        self.process_rank, self.size = self.all_ranks.rank, self.all_ranks.size
        self.running = range(self.size)
        hosts = self.gather(socket.gethostname())
        self.local = hosts.count(hosts[self.process_rank])
        store = self.store_among(hosts)
        self.stores = store, store.clone()  # keeps stores that are Python objects alive
        wait_for(self.all_ranks)  # rank 0 may end, and remove the file, once all have opened it
        self.store, self.alarm = (
            PrefixStore(name, store)
            for name, store in zip(("run", "alarm"), self.stores, strict=True)
        )

    def store_among(self, hosts: list[str]) -> Any:
        """Return a clonable store: a private file on one host, a port of rank 0 on several."""
        if len(set(hosts)) == 1:
            private = ExitStack()
            atexit.register(private.close)
            folder = str(private.enter_context(private_folder())) if self.process_rank == 0 else ""
            return LocalStore(f"{self.gather(folder)[0]}/store")
        keeper = (
            TCPStore(hosts[0], 0, is_master=True, wait_for_workers=False)
            if self.process_rank == 0
            else None
        )
        port = self.gather(keeper.port if keeper is not None else 0)[0]
        return keeper or TCPStore(hosts[0], port, is_master=False, timeout=timedelta(minutes=5))

    def connect(self, nodes: int) -> None:
        if "OMP_NUM_THREADS" not in os.environ:
            cores = os.cpu_count() or 1
            bound_to = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
            torch.set_num_threads(max(1, min(bound_to, cores // self.local)))
        self.layout = RankLayout(self.process_rank, nodes)
        wait_for(self.all_ranks)
        self.group = self.all_ranks.Split(0 if self.process_rank < nodes else MPI.UNDEFINED)

    def transport(self, scheduler: Scheduler, clock: RealClock, mailbox: Mailbox) -> MpiTransport:
        return MpiTransport(scheduler, clock, mailbox, self.all_ranks, self.group)

    def gather(self, value: object) -> list[Any]:
        wait_for(self.all_ranks)
        packed, ranks = pack(value), range(self.size)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        self.all_ranks.Allgather(torch.tensor([len(packed)]).numpy(), lengths.numpy())
        check_lengths(lengths.tolist(), list(ranks))
        data = torch.empty(int(lengths.sum()), dtype=torch.uint8)
        self.all_ranks.Allgatherv(
            [packed.numpy(), MPI.BYTE], [data.numpy(), lengths.tolist(), MPI.BYTE]
        )
        parts = torch.split(data, lengths.tolist())
        return [unpack(part, rank) for part, rank in zip(parts, ranks, strict=True)]

    def all_gather_workers(self, value: object) -> list[Any]:
        return self.gather(value)

    def mean(self, tensor: Tensor) -> None:
        wait_for(self.group)
        self.group.Allreduce(MPI.IN_PLACE, tensor.numpy())
        tensor /= self.group.size

    def close(self) -> None:
        """Finalize MPI together with all other ranks.

        Finalizing waits for all ranks; if a rank exits without it, ``mpirun`` ends the others.
        """
        wait_for(self.all_ranks)
        atexit.register(MPI.Finalize)


class MpiTransport(Transport):
    """Transport of this process.

    workers: communicator of the gradient workers, for collectives
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: RealClock,
        mailbox: Mailbox,
        all_ranks: MPI.Comm,
        workers: MPI.Comm,
    ) -> None:
        self.scheduler, self.clock, self.mailbox = scheduler, clock, mailbox
        self.all_ranks, self.workers = all_ranks, workers
        self.goodbyes = 0
        # Pending requests with their memory: outgoing, incoming by sender in order, and
        # collectives with their callbacks.
        self.outgoing: list[tuple[MPI.Request, Tensor]] = []
        self.incoming: list[deque[tuple[MPI.Request, int, Tensor]]]
        self.incoming = [deque() for _ in range(all_ranks.size)]
        self.collectives: list[tuple[MPI.Request, Callable[[], None]]] = []
        clock.poll_with(self.progress, POLL_SECONDS)

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        self.clock.sends(dst, tag, message.nbytes)
        self.post(dst, message, tag)
        return message.nbytes

    def before_receiving(self, src: int | None) -> None:
        self.clock.catch_up()

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        request = self.workers.Iallreduce(MPI.IN_PLACE, tensor.numpy())
        mean = self.result(
            ("all-reduce", number, None), request, lambda: tensor.div_(self.workers.size)
        )
        return mean, all_reduce_bytes(tensor, self.workers.size)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        parts = tensor.new_empty(self.workers.size, *tensor.shape)
        request = self.workers.Iallgather(memory(tensor), memory(parts))
        return self.result(
            ("all-gather", number, None), request, lambda: [*parts]
        ), all_gather_bytes(tensor, self.workers.size)

    def result(
        self, what: tuple[Any, ...], request: MPI.Request, value: Callable[[], T]
    ) -> Future[T]:
        future: Future[T] = self.scheduler.future(what)

        def end() -> None:
            self.clock.ends(what[1])
            self.scheduler.resolve(future, value())

        self.collectives.append((request, end))
        return future

    def close(self) -> None:
        others = [rank for rank in range(self.all_ranks.size) if rank != self.all_ranks.rank]
        for dst in others:
            self.post(dst, torch.empty(0), GOODBYE)
        while self.goodbyes < len(others) or self.outgoing:
            self.clock.catch_up()
            time.sleep(POLL_SECONDS)
        self.clock.catch_up()

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        self.clock.delivers(src, tag)
        self.mailbox.deliver(src, tag, message)

    def post(self, dst: int, message: Tensor, tag: int) -> None:
        kind = (tag + 1) * len(DTYPES) + DTYPES.index(message.dtype)
        self.outgoing.append((self.all_ranks.Isend(memory(message), dst, kind), message))

    def progress(self) -> None:
        """Receive arrived messages, and release sent ones."""
        status = MPI.Status()
        while (arrival := self.all_ranks.Improbe(status=status)) is not None:
            tag, kind = divmod(status.tag, len(DTYPES))
            message = torch.empty(status.count // DTYPES[kind].itemsize, dtype=DTYPES[kind])
            self.incoming[status.source].append((arrival.Irecv(memory(message)), tag - 1, message))
        for src, queue in enumerate(self.incoming):
            while queue and queue[0][0].Test():
                _, tag, message = queue.popleft()
                if tag == GOODBYE:
                    self.goodbyes += 1
                else:
                    self.clock.post(partial(self.deliver, src, tag, message))
        self.outgoing = [sending for sending in self.outgoing if not sending[0].Test()]
        under_way, self.collectives = self.collectives, []
        for request, end in under_way:
            if request.Test():
                self.clock.post(end)
            else:
                self.collectives.append((request, end))


def meet(timeout_seconds: float) -> None:
    """Wait until all ranks have started.

    There is no store yet, so a rank gives up by exiting, and ``mpirun`` ends the others. Each rank
    waits longer than the rank before it, so that only one reports.
    """
    world = MPI.COMM_WORLD
    seconds = timeout_seconds + min(world.rank, MAX_PATIENT) * PATIENCE_SECONDS
    try:
        wait_for(world, time.monotonic() + seconds)
    except TimeoutError:
        waited = (
            f"rank {world.rank} has waited for all {world.size} ranks to start for {seconds:g} s"
        )
        raise StallTimeout(
            f"{waited} (network.start_timeout_seconds), but at least one did not."
        ) from None


def wait_for(group: MPI.Comm, deadline: float = math.inf) -> None:
    """Wait at a barrier without busy-waiting, unlike MPI's barrier. Raises TimeoutError."""
    request = group.Ibarrier()
    with waiting_for("waits for all ranks to come together"):
        while not request.Test():
            raise_if_interrupted()
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(POLL_SECONDS)


def memory(message: Tensor) -> tuple[object, MPI.Datatype]:
    """Return the bytes of a tensor without copying."""
    return message.view(-1).view(torch.uint8).numpy(), MPI.BYTE

"""A run on real processes: this one is a single rank; others run the same program.

The scheduler and the algorithms are those of the simulator; only the clock, the gradients and the messages are real.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from sgp_runner.comm import all_reduce_bytes
from sgp_runner.errors import Stopped
from sgp_runner.problem import Problem
from sgp_runner.scheduler import RealClock, Scheduler, Wait
from sgp_runner.worker import activity_name, naming_the_rank

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.worker import Worker
    from sgp_runner.world import World

T = TypeVar("T")

NO_STEP_LEFT = "no step left"  # in the store, once a worker has found a shared budget spent


class Rank:
    """The runtime of one real rank."""

    def __init__(self, problem: Problem, world: World) -> None:
        self.problem, self.workers = problem, world.workers
        self.clock = RealClock()
        self.scheduler = Scheduler(self.clock)
        self.comm = world.comm(self.scheduler, self.clock)
        self.buffers = problem.flat.fresh_buffers()
        self.thread = ThreadPoolExecutor(1)  # computes gradients while the worker has other activities or messages to serve
        self.ddp: DistributedDataParallel | None = None
        self.start_of_step_hook: Callable[[Worker], None] = lambda worker: None
        self.end_of_step_hook: Callable[[Worker], None] = lambda worker: None

    def now(self) -> float:
        return self.clock.now

    def start_of_step(self, worker: Worker) -> None:
        self.start_of_step_hook(worker)

    def end_of_step(self, worker: Worker) -> None:
        """Recording and evaluation do not count as training time."""
        start = time.monotonic()
        self.end_of_step_hook(worker)
        self.clock.exclude(time.monotonic() - start)

    def spawn(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, T]) -> Wait[T]:
        return self.scheduler.spawn(naming_the_rank(worker, coroutine), activity_name(worker, coroutine))

    def grad(self, worker: Worker, at: Tensor) -> Wait[Tensor]:
        wait: Wait[Tensor] = Wait(("its gradient",))
        step = worker.progress.gradients
        worker.progress.gradients += 1
        if len(self.scheduler.tasks) == 1 and self.clock.poll is None:
            value, worker.progress.loss = self.problem.gradient(at, self.buffers, worker.rank, step)
            self.scheduler.resolve(wait, value)
            return wait

        def finish(done: Future[tuple[Tensor, float]]) -> None:
            value, worker.progress.loss = done.result()
            self.scheduler.resolve(wait, value)

        future = self.thread.submit(self.problem.gradient, at, self.buffers, worker.rank, step)
        future.add_done_callback(lambda done: self.clock.post(lambda: finish(done)))
        return wait

    def mean_grad(self, worker: Worker) -> Awaitable[Tensor]:
        if self.workers is None:
            return self.grad_then_reduce(worker)
        wait: Wait[Tensor] = Wait(("the mean gradient",))
        self.scheduler.resolve(wait, self.backward_and_reduce(worker))
        return wait

    async def grad_then_reduce(self, worker: Worker) -> Tensor:
        return await self.comm.all_reduce(await self.grad(worker, worker.params))

    def backward_and_reduce(self, worker: Worker) -> Tensor:
        """PyTorch's bucketed reducer averages gradients while the backward pass goes on."""
        flat, step = self.problem.flat, worker.progress.gradients
        worker.progress.gradients += 1
        self.comm.num_bytes_sent += all_reduce_bytes(worker.params, worker.size)
        module = flat.bind(worker.params, self.buffers).train()
        flat.set_dropout_seed(self.buffers, self.problem.dropout_seed(worker.rank, step))
        batch = self.problem.batch(worker.rank, step)
        if self.ddp is None:
            self.ddp = DistributedDataParallel(module, process_group=self.workers, broadcast_buffers=False)
            # The reducer lays out its buckets anew after its first pass. One for nothing, and a resumed run adds up in the same order.
            flat.bind(worker.params, [buffer.clone() for buffer in self.buffers])
            self.problem.loss(self.ddp, batch).backward()  # type: ignore[no-untyped-call]
            flat.bind(worker.params, self.buffers)
            for p in flat.parameters:
                p.grad = None
        loss = self.problem.loss(self.ddp, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        worker.progress.loss = float(loss.detach())
        parts = [p.grad for p in flat.parameters if p.grad is not None]
        g = torch.cat([part.reshape(-1) for part in parts])
        for p in flat.parameters:
            p.grad = None
        return g

    def run(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, None]) -> None:
        """Until the algorithm has finished here and everybody's messages are in."""
        try:
            self.scheduler.spawn(naming_the_rank(worker, coroutine), f"rank {worker.rank}")
            self.scheduler.run()
        except Stopped:
            self.comm.close()
            raise
        finally:
            self.scheduler.close()
        unread = self.comm.close()
        if unread:
            what = "; ".join(f"{count} from rank {src} (tag {tag})" for src, tag, count in unread)
            raise RuntimeError(f"the algorithm ended without receiving all its messages: {what}")


class SharedBudget:
    """``total`` gradients of all workers together, counted in the store of the run."""

    def __init__(self, store: Store, total: int) -> None:
        self.store = store
        self.total = total
        self.spent = False
        self.before = 0  # taken before the run was cut off

    @property
    def taken(self) -> int:
        return self.before + self.store.add("gradients", 0)

    @taken.setter
    def taken(self, number: int) -> None:
        self.before = number

    def take(self) -> int | None:
        number = self.before + self.store.add("gradients", 1) - 1
        self.spent = self.spent or number >= self.total - 1
        if number < self.total:
            return number
        self.store.set(NO_STEP_LEFT, "")
        return None

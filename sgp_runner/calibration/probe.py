"""What is measured, as an algorithm: it runs wherever algorithms run, with their messages, all-reduces and gradients.

On real processes it times the machines. In the simulator it finds the constants of the cluster that is simulated, which is its test.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.push_sum import to_model, to_numerator
from sgp_runner.recorder import replace_file

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.optim import Optimizer
    from sgp_runner.topology import Phase
    from sgp_runner.worker import Worker

FILE = "calibration.json"
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 KiB to 64 MiB
LONGEST_SECONDS = 0.6  # of one message or all-reduce; larger sizes are left out
FEWEST_SIZES = 3  # but these are not
MOST_REPEATS = 20
BLOCK = 5


@dataclass(frozen=True)
class Measured:
    """All of it in seconds, each number the mean over the nodes, which did the same at the same time.

    nodes: how many. num_bytes: of the model. exchanges, all_reduces: by size in bytes, the repeats: everybody sends to the next, or all
    average. steps: a gradient with the optimizer's step, without communication. barriers: waiting for everybody; locked_steps: a step
    and then a barrier. mean_steps: a step with the mean gradient of all nodes. mixing: what gossip does to a vector of ``num_bytes``.
    busy_step: the mean step while messages pass, of which there are ``busy_bytes`` in and out of a node for each step.
    """

    nodes: int
    num_bytes: int
    exchanges: Mapping[int, list[float]]
    all_reduces: Mapping[int, list[float]]
    steps: list[float]
    barriers: list[float]
    locked_steps: list[float]
    mean_steps: list[float]
    mixing: list[float]
    busy_step: float
    busy_bytes: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Measured:
        facts = json.loads(text)
        for key in ("exchanges", "all_reduces"):
            facts[key] = {int(size): repeats for size, repeats in facts[key].items()}
        return cls(**facts)


@dataclass(frozen=True)
class Probe:
    """folder: where rank 0 leaves what was `Measured`. sizes: of messages, in bytes, beside the model's. seconds: about as long as each
    part may take."""

    folder: Path
    sizes: tuple[int, ...] = SIZES
    seconds: float = 2.0
    title: ClassVar[str] = "calibration"
    asynchronous: ClassVar[bool] = False
    servers: ClassVar[int] = 0

    def check(self, nodes: int, optim: Optimizer) -> None:
        """The command has seen to it."""

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1)]

    async def run(self, worker: Worker) -> None:
        x = worker.params
        start = x.clone()
        steps = await self.in_blocks(worker, lambda: self.step(worker))
        barriers = await self.in_blocks(worker, lambda: self.average(worker, 0.0))
        locked_steps = await self.in_blocks(worker, lambda: self.locked_step(worker))
        mean_steps = await self.in_blocks(worker, lambda: self.mean_step(worker))
        mixing = await self.in_blocks(worker, lambda: self.mix(worker))
        exchanges = await self.over_sizes(worker, lambda message: self.exchange(worker, message))
        all_reduces = await self.over_sizes(worker, lambda message: self.all_reduce(worker, message))
        busy_step, busy_bytes = await self.step_beside_messages(worker, mean(steps))
        x.copy_(start)
        num_bytes = x.numel() * x.element_size()
        times = steps, barriers, locked_steps, mean_steps, mixing
        found = Measured(worker.size, num_bytes, exchanges, all_reduces, *times, busy_step, busy_bytes)
        if worker.rank == 0:
            replace_file(self.folder / FILE, found.to_json())

    # What is timed.

    async def step(self, worker: Worker) -> None:
        worker.params.sub_(worker.update(await worker.grad()))

    async def locked_step(self, worker: Worker) -> None:
        await self.step(worker)
        await self.average(worker, 0.0)

    async def mean_step(self, worker: Worker) -> None:
        worker.params.sub_(worker.update(await worker.mean_grad()))

    async def mix(self, worker: Worker) -> None:
        """As in SGP, but for the messages."""
        x = worker.push_sum
        to_numerator(x)
        x /= 2
        x += x.clone()
        to_model(x)

    async def exchange(self, worker: Worker, message: Tensor) -> None:
        worker.comm.send((worker.rank + 1) % worker.size, message)
        await worker.comm.recv((worker.rank - 1) % worker.size)

    async def all_reduce(self, worker: Worker, message: Tensor) -> None:
        await worker.comm.all_reduce(message.clone())

    # How it is timed.

    async def in_blocks(self, worker: Worker, work: Callable[[], Awaitable[object]]) -> list[float]:
        """How long ``work`` takes when it is done again and again, of several blocks."""

        async def block() -> None:
            for _ in range(BLOCK):
                await work()

        return [seconds / BLOCK for seconds in await self.repeat(worker, block)]

    async def over_sizes(self, worker: Worker, work: Callable[[Tensor], Awaitable[None]]) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        x = worker.params
        for size in sorted({*self.sizes, x.numel() * x.element_size()}):
            if len(found) >= FEWEST_SIZES and max(found[last := max(found)]) * size / last > LONGEST_SECONDS:
                break
            message = x.new_zeros(size // x.element_size())
            found[size] = await self.repeat(worker, partial(work, message), self.seconds / len(self.sizes))
        return found

    async def repeat(self, worker: Worker, work: Callable[[], Awaitable[None]], seconds: float | None = None) -> list[float]:
        """How long ``work`` takes each time, the mean over nodes. They begin together; the first time is for warming up."""
        await work()
        first = await self.timed(worker, work)
        enough = min(MOST_REPEATS, max(3, int((self.seconds if seconds is None else seconds) / max(first, 1e-9))))
        return [await self.timed(worker, work) for _ in range(enough)]

    async def timed(self, worker: Worker, work: Callable[[], Awaitable[None]]) -> float:
        await self.average(worker, 0.0)
        start = worker.now
        await work()
        return await self.average(worker, worker.now - start)

    async def average(self, worker: Worker, value: float) -> float:
        """Of all nodes, and the same number on all; nobody goes on before everybody has come here."""
        return float(await worker.comm.all_reduce(worker.params.new_full((1,), value)))

    async def step_beside_messages(self, worker: Worker, step: float) -> tuple[float, float]:
        """Mean seconds of a step while messages of the model's size pass, and how many bytes pass meanwhile."""
        message = worker.params.clone()
        took = await self.timed(worker, lambda: self.exchange(worker, message))
        count = max(3, int(max(self.seconds, 5 * step) / took))

        passed = False

        async def messages() -> None:
            nonlocal passed
            for _ in range(count):
                await self.exchange(worker, message)
            passed = True

        await self.average(worker, 0.0)
        start, steps = worker.now, 0
        passing = worker.spawn(messages())
        while not passed:
            await self.step(worker)
            steps += 1
        took = worker.now - start
        await passing
        num_bytes = 2 * count * message.numel() * message.element_size()  # in and out
        return await self.average(worker, took / steps), await self.average(worker, num_bytes / steps)

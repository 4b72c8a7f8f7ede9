"""What is measured, as an algorithm: it runs wherever algorithms run, with their messages,
all-reduces and gradients.

On real processes it times the machines. In the simulator it finds the constants of the cluster that
is simulated, which is its test.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.core.push_sum import to_model, to_numerator
from sgp_runner.core.worker import Progress
from sgp_runner.recording.recorder import replace_file

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase

FILE = "calibration.json"
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 KiB to 64 MiB
LONGEST_SECONDS = 0.6  # of one message or all-reduce; larger sizes are left out
FEWEST_SIZES = 3  # but these are not
MOST_REPEATS = 20
BLOCK = 5
TURNS = 3  # with and without messages


@dataclass(frozen=True)
class Measured:
    """All of it in seconds, each number the mean over the nodes, which did the same at the same
    time, but for servers.

    nodes: how many. num_bytes: of the model. exchanges, all_reduces: by size in bytes, the repeats:
    everybody sends to the next, or all average. steps: a gradient with the optimizer's step,
    without communication. barriers: waiting for everybody; locked_steps: a step and then a barrier.
    mean_steps: a step with the mean gradient of all nodes. mixing: what gossip does to a vector of
    ``num_bytes``.
    serving: what the server of Gap-Aware ASGD does with a gradient of as many, while its workers
    wait; streaming: how long it takes for each when all others send gradients without a pause.
    busy_steps: while messages pass, of which there are ``busy_bytes`` in and out of a node for each
    step; quiet_steps: each right after.
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
    serving: list[float]
    streaming: list[float]
    quiet_steps: list[float]
    busy_steps: list[float]
    busy_bytes: list[float]

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
    """folder: where rank 0 leaves what was `Measured`. sizes: of messages, in bytes, beside the
    model's. seconds: about as long as each part may take.
    """

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
        serving, streaming = await self.serving(worker)
        exchanges = await self.over_sizes(worker, lambda message: self.exchange(worker, message))
        all_reduces = await self.over_sizes(
            worker, lambda message: self.all_reduce(worker, message)
        )
        quiet_steps, busy_steps, busy_bytes = await self.beside_messages(worker)
        x.copy_(start)
        num_bytes = x.numel() * x.element_size()
        times = steps, barriers, locked_steps, mean_steps, mixing, serving, streaming
        found = Measured(
            worker.size,
            num_bytes,
            exchanges,
            all_reduces,
            *times,
            quiet_steps,
            busy_steps,
            busy_bytes,
        )
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

    async def serving(self, worker: Worker) -> tuple[list[float], list[float]]:
        """Rank 0 as a parameter server: alone, and when all others send one gradient after the
        other.
        """
        size, gradient = worker.size, worker.params.clone()
        server = replace(
            worker, size=1, push_sum=worker.push_sum.clone(), progress=Progress(), state={}
        )

        def answer() -> Tensor:
            return GapAware().answer(server, server.count("gradients"), 0, gradient)

        async def alone() -> None:
            if worker.rank == 0:
                answer()

        async def stream() -> None:
            if worker.rank > 0:
                worker.comm.send(0, gradient)
                await worker.comm.recv(0)
                return
            for _ in range(size - 1):
                i, _ = await worker.comm.recv_any()
                worker.comm.send(i, answer())

        serving = [
            size * seconds for seconds in await self.in_blocks(worker, alone)
        ]  # of which the mean is over nodes
        return serving, [seconds / (size - 1) for seconds in await self.in_blocks(worker, stream)]

    # How it is timed.

    async def in_blocks(self, worker: Worker, work: Callable[[], Awaitable[object]]) -> list[float]:
        """How long ``work`` takes when it is done again and again, of several blocks."""

        async def block() -> None:
            for _ in range(BLOCK):
                await work()

        return [seconds / BLOCK for seconds in await self.repeat(worker, block)]

    async def over_sizes(
        self, worker: Worker, work: Callable[[Tensor], Awaitable[None]]
    ) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        x = worker.params
        for size in sorted({*self.sizes, x.numel() * x.element_size()}):
            if (
                len(found) >= FEWEST_SIZES
                and max(found[last := max(found)]) * size / last > LONGEST_SECONDS
            ):
                break
            message = x.new_zeros(size // x.element_size())
            found[size] = await self.repeat(
                worker, partial(work, message), self.seconds / len(self.sizes)
            )
        return found

    async def repeat(
        self, worker: Worker, work: Callable[[], Awaitable[None]], seconds: float | None = None
    ) -> list[float]:
        """How long ``work`` takes each time, the mean over nodes. They begin together; the first
        time is for warming up.
        """
        await work()
        first = await self.timed(worker, work)
        enough = min(
            MOST_REPEATS,
            max(3, int((self.seconds if seconds is None else seconds) / max(first, 1e-9))),
        )
        return [await self.timed(worker, work) for _ in range(enough)]

    async def timed(self, worker: Worker, work: Callable[[], Awaitable[None]]) -> float:
        await self.average(worker, 0.0)
        start = worker.now
        await work()
        return await self.average(worker, worker.now - start)

    async def average(self, worker: Worker, value: float) -> float:
        """Of all nodes, and the same number on all; nobody goes on before everybody has come here."""
        return float(await worker.comm.all_reduce(worker.params.new_full((1,), value)))

    async def beside_messages(self, worker: Worker) -> tuple[list[float], list[float], list[float]]:
        """Mean seconds of a step without messages and while messages of the model's size pass, and
        the bytes that pass in one; in turns.
        """
        message = worker.params.clone()
        took = await self.timed(worker, lambda: self.exchange(worker, message))
        step = await self.timed(worker, lambda: self.step(worker))
        count = max(3, int(max(self.seconds, 2 * step) / took))
        passed = False

        async def messages() -> None:
            nonlocal passed
            for _ in range(count):
                await self.exchange(worker, message)
            passed = True

        quiet, busy, num_bytes = [], [], []
        for _ in range(TURNS):
            passed, steps = False, 0
            await self.average(worker, 0.0)
            start = worker.now
            passing = worker.spawn(messages())
            while not passed:
                await self.step(worker)
                steps += 1
            end = worker.now
            await passing
            busy.append(await self.average(worker, (end - start) / steps))
            num_bytes.append(
                await self.average(
                    worker, 2 * count * message.numel() * message.element_size() / steps
                )
            )  # in and out
            start = worker.now
            for _ in range(steps):
                await self.step(worker)
            quiet.append(await self.average(worker, (worker.now - start) / steps))
        return quiet, busy, num_bytes

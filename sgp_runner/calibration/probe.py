"""Measurements in the form of an algorithm, with the operations and backends of training.

On real processes the probe measures the machines. In the simulator the fit recovers the constants
of the simulated cluster, which tests verify.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar
from zlib import crc32

import torch
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.codecs.all_codecs import CODECS
from sgp_runner.core.codecs.codec import Codec, numel
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.optim import Shapes
from sgp_runner.core.push_sum import to_model, to_numerator
from sgp_runner.core.state import NamedState
from sgp_runner.core.worker import Progress, Worker
from sgp_runner.utils.cores import present_cores
from sgp_runner.utils.files import replace_file

FILE = "calibration.json"
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 KiB to 64 MiB
CODED = (2**14, 2**17, 2**20)  # numbers to code, as a matrix
WIDTH = 256  # columns of this matrix
LOW_RANKS = (1, 2, 4)
LONGEST_SECONDS = 0.6  # for one message or all-reduce; larger sizes are left out
MIN_SIZES = 3  # sizes that are always measured
MAX_REPEATS = 20
BLOCK = 5
TURNS = 3  # each with and without messages


def location_here() -> tuple[int, float]:
    """Return an identifier of this host and its cores, and how many gradients they compute at once.

    Ranks that are pinned to different cores of one machine count as different hosts.
    """
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [present_cores()]
    return crc32(f"{platform.node()} {cores}".encode()), present_cores() / torch.get_num_threads()


@dataclass(frozen=True)
class Measured:
    """Measured seconds, averaged over the nodes; all nodes are busy, except in ``serving``.

    nodes: number of nodes
    cores_per_host: number of gradients that a host computes at a time
    ranks_per_host: number of ranks on a host
    num_bytes: size of the model
    exchanges, all_reduces: repeated times by size in bytes; in an exchange each node sends to the
        next node
    steps: a gradient and a step of the optimizer, without communication
    barriers: a barrier over all nodes
    locked_steps: a step followed by a barrier
    mean_steps: a step with the mean gradient of all nodes
    mixing: the work of gossip on a vector of ``num_bytes``
    serving: the work of Gap-Aware ASGD's server on a gradient of ``num_bytes``, with idle workers
    streaming: time per gradient at the server while all workers send without a pause
    busy_steps: steps while messages are in flight
    busy_bytes: bytes in and out of a node during a busy step
    quiet_steps: steps right after the busy steps, without messages
    encodes, decodes: for each codec, repeated times by numbers to code (`Codec.work`)
    model_works: for each codec, the numbers to code of the model; 0 if none
    """

    nodes: int
    cores_per_host: float
    ranks_per_host: int
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
    encodes: Mapping[str, Mapping[int, list[float]]] = field(default_factory=dict)
    decodes: Mapping[str, Mapping[int, list[float]]] = field(default_factory=dict)
    model_works: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Measured:
        facts = json.loads(text)
        for key in ("exchanges", "all_reduces"):
            facts[key] = by_number(facts[key])
        for key in ("encodes", "decodes"):
            facts[key] = {name: by_number(sizes) for name, sizes in facts.get(key, {}).items()}
        return cls(**facts)


def by_number(by_size: Mapping[str, list[float]]) -> dict[int, list[float]]:
    """Return ``by_size`` with integer keys, which are strings in JSON."""
    return {int(size): repeats for size, repeats in by_size.items()}


@dataclass(frozen=True)
class Probe(Algorithm):
    """Algorithm that measures instead of training.

    folder: where rank 0 writes `Measured`
    sizes: message sizes in bytes, in addition to the model's size
    coded: sizes of the matrices to code, in addition to the model's tensors
    seconds: approximate duration of each measurement
    location: returns an identifier of this rank's host, and the number of gradients that the host
        computes at a time
    """

    folder: Path
    sizes: tuple[int, ...] = SIZES
    coded: tuple[int, ...] = CODED
    seconds: float = 2.0
    location: Callable[[], tuple[int, float]] = location_here
    title: ClassVar[str] = "calibration"
    is_probe: ClassVar[bool] = True

    async def run(self, worker: Worker) -> None:
        x = worker.params
        start = x.clone()
        host, cores = self.location()
        locations = await worker.comm.all_gather(x.new_tensor([host, cores], dtype=torch.float64))
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
        quiet_steps, busy_steps, busy_bytes = await self.during_messages(worker)
        coding = await self.coding(worker)
        x.copy_(start)
        num_bytes = x.numel() * x.element_size()
        times = steps, barriers, locked_steps, mean_steps, mixing, serving, streaming
        measurement = Measured(
            worker.size,
            cores,
            sum(int(other[0]) == host for other in locations),
            num_bytes,
            exchanges,
            all_reduces,
            *times,
            quiet_steps,
            busy_steps,
            busy_bytes,
            *coding,
        )
        if worker.rank == 0:
            replace_file(self.folder / FILE, measurement.to_json())

    # Timed operations.
    async def step(self, worker: Worker) -> None:
        worker.params.sub_(worker.update(await worker.grad()))

    async def locked_step(self, worker: Worker) -> None:
        await self.step(worker)
        await self.average(worker, 0.0)

    async def mean_step(self, worker: Worker) -> None:
        worker.params.sub_(worker.update(await worker.mean_grad()))

    async def mix(self, worker: Worker) -> None:
        """Do the work of one SGP step except for its messages."""
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
        """Time rank 0 as a server, alone and while all other ranks send gradients continuously."""
        size, gradient = worker.size, worker.params.clone()
        server = replace(
            worker,
            size=1,
            push_sum=worker.push_sum.clone(),
            progress=Progress(),
            state=NamedState(),
        )

        def answer() -> Tensor:
            return GapAware().answer(server, server.increment("gradients"), 0, gradient)

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

        # Measured times are means over all nodes, but only one node serves.
        serving = [size * seconds for seconds in await self.in_blocks(worker, alone)]
        return serving, [seconds / (size - 1) for seconds in await self.in_blocks(worker, stream)]

    async def coding(
        self, worker: Worker
    ) -> tuple[
        dict[str, dict[int, list[float]]], dict[str, dict[int, list[float]]], dict[str, int]
    ]:
        """Time every codec on the model's tensors and on matrices; `LowRank` with several ranks."""
        encodes: dict[str, dict[int, list[float]]] = {}
        decodes: dict[str, dict[int, list[float]]] = {}
        works: dict[str, int] = {}
        matrices = [{"matrix": (max(1, count // WIDTH), WIDTH)} for count in self.coded]
        for name, codec in CODECS.items():
            works[name] = codec.work([*worker.shapes.values()])
            variants: list[tuple[Codec, Shapes]] = (
                [(LowRank(rank), worker.shapes) for rank in LOW_RANKS]
                if isinstance(codec, LowRank)
                else [(codec, shapes) for shapes in (worker.shapes, *matrices)]
            )
            for variant, shapes in variants if works[name] else ():
                coder = Coder(worker, variant, shapes=shapes)
                x = torch.randn(numel([*shapes.values()])).to(worker.params)
                message, seconds = await coder.encode(x, 0), self.seconds / 10
                for times, work in (
                    (encodes, partial(coder.encode, x, 0)),
                    (decodes, partial(coder.decode, message, worker.rank, 0)),
                ):
                    repeats = await self.repeat(worker, work, seconds)
                    if max(repeats):  # in a simulation, a codec may take no time
                        times.setdefault(name, {})[coder.work] = repeats
        return encodes, decodes, works

    # Timing.

    async def in_blocks(self, worker: Worker, work: Callable[[], Awaitable[object]]) -> list[float]:
        """Time blocks of `BLOCK` calls of ``work``; return each block's seconds per call."""

        async def block() -> None:
            for _ in range(BLOCK):
                await work()

        return [seconds / BLOCK for seconds in await self.repeat(worker, block)]

    async def over_sizes(
        self, worker: Worker, work: Callable[[Tensor], Awaitable[None]]
    ) -> dict[int, list[float]]:
        times: dict[int, list[float]] = {}
        x = worker.params
        for size in sorted({*self.sizes, x.numel() * x.element_size()}):
            if (
                len(times) >= MIN_SIZES
                and median(times[last := max(times)]) * size / last > LONGEST_SECONDS
            ):
                break
            message = x.new_zeros(size // x.element_size())
            times[size] = await self.repeat(
                worker, partial(work, message), self.seconds / len(self.sizes)
            )
        return times

    async def repeat(
        self, worker: Worker, work: Callable[[], Awaitable[object]], seconds: float | None = None
    ) -> list[float]:
        """Time ``work`` several times; return the seconds of each repeat, averaged over the nodes.

        The nodes start simultaneously, after a warm-up.
        """
        await work()
        first = await self.timed(worker, work)
        enough = min(
            MAX_REPEATS,
            max(3, int((self.seconds if seconds is None else seconds) / max(first, 1e-9))),
        )
        return [await self.timed(worker, work) for _ in range(enough)]

    async def timed(self, worker: Worker, work: Callable[[], Awaitable[object]]) -> float:
        await self.average(worker, 0.0)
        start = worker.now
        await work()
        return await self.average(worker, worker.now - start)

    async def average(self, worker: Worker, value: float) -> float:
        """Return the mean of ``value`` over all nodes; the all-reduce is also a barrier."""
        return float(await worker.comm.all_reduce(worker.params.new_full((1,), value)))

    async def during_messages(self, worker: Worker) -> tuple[list[float], list[float], list[float]]:
        """Time steps alternately with and without messages of the model's size in flight.

        Returns lists with one value per turn: seconds of a quiet step, seconds of a busy step, and
        bytes in and out during a busy step.
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
            both_ways = 2 * count * message.numel() * message.element_size()
            num_bytes.append(await self.average(worker, both_ways / steps))
            start = worker.now
            for _ in range(steps):
                await self.step(worker)
            quiet.append(await self.average(worker, (worker.now - start) / steps))
        return quiet, busy, num_bytes


def measuring(experiment: Experiment, **sizes: Any) -> Experiment:
    """Return ``experiment`` with a `Probe` as the algorithm."""
    probe = Probe(experiment.directory, **sizes)
    return replace(experiment, run=replace(experiment.run, algo=probe))

"""Measurements for ``sgp-run doctor --measure``, with the ranks of a real run.

They cover a step without communication and with the mean gradient, all-reduces of four sizes, the
rate of one and of several TCP connections between the first two nodes, and loading a batch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

import torch

from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.build import build_problem
from sgp_runner.calibration.fit import fit_line
from sgp_runner.calibration.probe import Probe, by_number
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.run import Run
from sgp_runner.core.worker import Worker
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.network_interfaces import interfaces, matching, own_address
from sgp_runner.utils.units import duration, num_bytes

SYMPTOMS = "symptoms.json"
SIZES = (2**16, 2**20, 2**24)  # bytes of all-reduces, besides the model's
CONNECTIONS = (1, 8)
PATIENCE = 10.0  # s, until a connection that does not come is given up
CHUNK = 2**20  # bytes
BATCHES = 8  # that are loaded


@dataclass(frozen=True)
class Symptoms:
    """Measured values of a run; all nodes are busy at the same time.

    num_bytes: size of the gradient
    alone, together: seconds of a step without communication, and with the mean gradient
    slowest: step time of the slowest node alone, relative to the mean
    loading: seconds to load a batch
    all_reduces: seconds by size in bytes
    streams: bit/s of TCP by number of connections; empty if none could be opened
    """

    nodes: int
    num_bytes: int
    alone: float
    together: float
    slowest: float
    loading: float
    all_reduces: Mapping[int, float]
    streams: Mapping[int, float]

    @classmethod
    def from_json(cls, text: str) -> Symptoms:
        facts = json.loads(text)
        return cls(
            **{**facts, **{key: by_number(facts[key]) for key in ("all_reduces", "streams")}}
        )


@dataclass(frozen=True)
class SymptomProbe(Algorithm):
    """Algorithm that measures `Symptoms` instead of training.

    folder: where rank 0 writes the `Symptoms`
    training: the run, which loads the batches
    seconds: approximate duration of each measurement
    """

    folder: Path
    training: Run
    seconds: float = 2.0
    title: ClassVar[str] = "measurement"
    is_probe: ClassVar[bool] = True

    async def run(self, worker: Worker) -> None:
        x, probe = worker.params, Probe(self.folder, SIZES, (), self.seconds)
        start = x.clone()
        steps = await probe.in_blocks(worker, lambda: probe.step(worker))
        begin = worker.now
        await probe.step(worker)
        durations = await worker.comm.all_gather(vector(worker, worker.now - begin))
        together = await probe.in_blocks(worker, lambda: probe.mean_step(worker))
        all_reduces = await probe.over_sizes(
            worker, lambda message: probe.all_reduce(worker, message)
        )
        loading = await probe.average(worker, self.loading(worker.rank))
        streams = await rates_of_streams(worker, self.seconds)
        x.copy_(start)
        step_seconds = [float(seconds) for seconds in durations]
        symptoms = Symptoms(
            worker.size,
            x.numel() * x.element_size(),
            median(steps),
            median(together),
            max(step_seconds) * len(step_seconds) / sum(step_seconds),
            loading,
            {size: median(repeats) for size, repeats in all_reduces.items()},
            streams,
        )
        if worker.rank == 0:
            replace_file(self.folder / SYMPTOMS, json.dumps(asdict(symptoms), indent=1) + "\n")

    def loading(self, rank: int) -> float:
        """Return the mean seconds to load a batch, excluding the first one."""
        with closing(build_problem(self.training)) as problem:
            problem.loaded(rank, 0)
            begin = time.perf_counter()
            for step in range(1, BATCHES + 1):
                problem.loaded(rank, step)
            return (time.perf_counter() - begin) / BATCHES


def vector(worker: Worker, *values: float) -> torch.Tensor:
    return worker.params.new_tensor(values, dtype=torch.float64)


async def rates_of_streams(worker: Worker, seconds: float) -> dict[int, float]:
    """Return the bit/s received by rank 1 from rank 0 over several TCP connections."""
    by_count = {}
    for count in CONNECTIONS:
        with ExitStack() as ending:
            listener, place = None, [0.0] * 5
            if worker.rank == 1:
                with suppress(OSError):
                    listener = ending.enter_context(socket.create_server((listening_address(), 0)))
                    host, port = listener.getsockname()
                    place = [*map(float, host.split(".")), float(port)]
            places = await worker.comm.all_gather(vector(worker, *place))
            *numbers, port = map(round, places[1].tolist())
            rate = 0.0
            with suppress(OSError):
                if listener is not None:
                    rate = received(listener, count)
                elif worker.rank == 0:
                    sent((".".join(map(str, numbers)), port), count, seconds)
            rates = await worker.comm.all_gather(vector(worker, rate))
        if float(rates[1]):
            by_count[count] = float(rates[1])
    return by_count


def listening_address() -> str:
    """Return the IPv4 address of the interface used by the ranks."""
    addresses = {name: address for name, address in interfaces().items() if ":" not in address}
    chosen = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME")
    names = matching([*addresses], chosen) if chosen else []
    return addresses[names[0]] if names else own_address()


def sent(address: tuple[str, int], count: int, seconds: float) -> None:
    """Send for some ``seconds`` over ``count`` connections at a time."""
    end, chunk = time.monotonic() + seconds, bytes(CHUNK)

    def send(address: tuple[str, int]) -> None:
        with suppress(OSError), socket.create_connection(address, PATIENCE) as stream:
            while time.monotonic() < end:
                stream.sendall(chunk)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(send, [address] * count))  # raises their errors


def received(listener: socket.socket, count: int) -> float:
    """Receive over ``count`` connections until they close; return their total bit/s."""
    listener.settimeout(PATIENCE)
    with ExitStack() as ending:
        streams = [ending.enter_context(listener.accept()[0]) for _ in range(count)]
        begin = time.monotonic()
        with ThreadPoolExecutor(count) as threads:
            total = sum(threads.map(receive_all, streams))
        return 8 * total / (time.monotonic() - begin)


def receive_all(stream: socket.socket) -> int:
    """Receive until the connection closes or breaks; return the number of bytes."""
    stream.settimeout(PATIENCE)
    buffer, total = bytearray(CHUNK), 0
    with suppress(OSError):
        while size := stream.recv_into(buffer):
            total += size
    return total


def observed_words(symptoms: Symptoms) -> list[str]:
    """Return the arguments of ``sgp-run doctor`` for measured values.

    The latency is that of one round, from a line fitted to the times of all-reduces.
    """
    line = fit_line({size: [seconds] for size, seconds in symptoms.all_reduces.items()})
    return [
        f"step.1={symptoms.alone:.4g}s",
        f"step.{symptoms.nodes}={symptoms.together:.4g}s",
        f"parameters={symptoms.num_bytes // 4}",
        "bytes_per_parameter=4",
        "devices=1",
        f"latency={line.start / (2 * (symptoms.nodes - 1)):.3g}s",
        *(f"streams.{count}={rate / 1e9:.4g}Gbit/s" for count, rate in symptoms.streams.items()),
        f"loading={max(symptoms.loading, 1e-9):.3g}s",
        f"slowest={symptoms.slowest:.4g}",
    ]


def all_reduce_text(symptoms: Symptoms) -> str:
    """Return a sentence with the measured all-reduce times."""
    parts = (
        f"{num_bytes(size)} in {duration(seconds)}"
        for size, seconds in sorted(symptoms.all_reduces.items())
    )
    return f"Measured all-reduces: {', '.join(parts)}."


def diagnosing(experiment: Experiment, **settings: float) -> Experiment:
    """Return ``experiment`` with a `SymptomProbe` as the algorithm."""
    probe = SymptomProbe(experiment.directory, experiment.run, **settings)
    return replace(experiment, run=replace(experiment.run, algo=probe))

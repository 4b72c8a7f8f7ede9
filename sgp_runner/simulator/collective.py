"""All-reduces and all-gathers on the simulated machines.

A collective begins when the last rank has joined. It ends for all ranks at the same time, after a
duration given by the cluster's cost model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from sgp_runner.core.mailbox import check_unwritten
from sgp_runner.core.scheduler import Future, VirtualClock
from sgp_runner.core.state import State
from sgp_runner.simulator.compute import ComputeModel
from sgp_runner.simulator.engine import Engine, Gradient
from sgp_runner.simulator.fabric import Fabric, Sent
from sgp_runner.simulator.machine_model import MachineModel

SIMPLE_FIELDS = ("number", "gathers", "begin", "ready", "num_bytes", "unreduced", "end")


@dataclass
class Collective:
    """One all-reduce or all-gather.

    missing: ranks that have not joined. parts: by rank, a tensor and its version, or a gradient
        that is not computed yet. futures: by rank, the future that the rank awaits. begin: earliest
        start. ready: time at which the last part is complete. unreduced: number of ranks whose
        processors are still busy with the collective.
    end: end of the transfer on the network.
    """

    number: int
    gathers: bool
    missing: set[int]
    parts: dict[int, tuple[Tensor, int] | Gradient] = field(default_factory=dict)
    futures: dict[int, Future[Any]] = field(default_factory=dict)
    begin: float = 0.0
    ready: float = 0.0
    num_bytes: float = 0.0
    unreduced: int = 0
    end: float = 0.0

    @property
    def kind(self) -> str:
        return "all-gather" if self.gathers else "all-reduce"

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"

    def values(self, engine: Engine) -> list[Tensor]:
        """Return the parts in rank order, so that sums do not depend on timing."""
        return [self.value(rank, engine) for rank in sorted(self.parts)]

    def value(self, rank: int, engine: Engine) -> Tensor:
        part = self.parts.pop(rank)
        if isinstance(part, Gradient):
            return engine.finish(part)
        tensor, version = part
        check_unwritten(tensor, version, f"the tensor that rank {rank} passed to {self.name}")
        return tensor

    def result(self, engine: Engine) -> Any:
        """Return the mean of the parts, or the list of parts of an all-gather."""
        if self.gathers:
            return self.values(engine)
        total: Tensor | None = None
        ranks = sorted(self.parts)
        for rank in ranks:
            value = self.value(rank, engine)
            total = value if total is None else total.add_(value)
        assert total is not None
        total /= len(ranks)
        return total

    def state_dict(self) -> State:
        """Return the fields as plain data; a gradient is saved as None and computed again."""
        parts = {
            rank: None if isinstance(part, Gradient) else part[0]
            for rank, part in self.parts.items()
        }
        return {name: getattr(self, name) for name in SIMPLE_FIELDS} | {
            "missing": self.missing,
            "parts": parts,
            "futures": list(self.futures),
        }


class Workers(Protocol):
    """The interface of the workers that the machines use."""

    def receive(self, sent: Sent) -> None: ...
    def pop_gradient(self, rank: int, step: int) -> Gradient: ...
    def pop_gradient_of(self, future: Future[Any]) -> Gradient: ...
    def on_collective_end(
        self, rank: int, number: int, future: Future[Any], result: Any, num_bytes: int
    ) -> None: ...


class SimulatedCollectives:
    """The pending collectives, by number."""

    def __init__(
        self,
        model: MachineModel,
        engine: Engine,
        clock: VirtualClock,
        fabric: Fabric,
        compute: ComputeModel,
        workers: Workers,
    ) -> None:
        self.model, self.engine, self.clock, self.fabric = model, engine, clock, fabric
        self.compute, self.workers = compute, workers
        self.under_way: dict[int, Collective] = {}
        clock.handlers |= {
            "joins": self.on_gradient,
            "collective ends": self.end,
            "reduced": self.on_reduce_done,
        }

    def future(self, number: int, rank: int, gathers: bool) -> Future[Any]:
        """Return the future on which ``rank`` awaits collective ``number``."""
        collective = self.under_way.get(number)
        if collective is None:
            collective = self.under_way[number] = Collective(
                number, gathers, set(range(self.model.size))
            )
        future: Future[Any] = Future((collective.kind, number, collective.missing))
        collective.futures[rank] = future
        return future

    def on_gradient(
        self, number: int, rank: int, step: int, num_bytes: float, ready: float
    ) -> None:
        """Start averaging a gradient that will be complete at ``ready``."""
        self.contribute(number, rank, self.workers.pop_gradient(rank, step), num_bytes, ready)

    def contribute(
        self,
        number: int,
        rank: int,
        part: Tensor | Gradient,
        num_bytes: float,
        ready: float,
        overlap_seconds: float = 0.0,
    ) -> None:
        """Join a collective with a part that is complete at ``ready``.

        overlap_seconds: how many seconds ago the collective may have begun
        """
        collective = self.under_way[number]
        collective.begin = max(collective.begin, self.clock.now - overlap_seconds)
        collective.parts[rank] = part if isinstance(part, Gradient) else (part, part._version)
        collective.missing.discard(rank)
        collective.ready = max(collective.ready, ready)
        collective.num_bytes = num_bytes
        if not collective.missing:
            collective.end = self.end_of(collective)
            collective.unreduced = self.compute.reduce(number, self.bytes_of(collective))
            if not collective.unreduced:
                self.clock.at(collective.end, "collective ends", number)

    def end_of(self, collective: Collective) -> float:
        """Occupy the interfaces with a collective that all ranks have joined; return its end."""
        cluster, size, num_bytes = self.model.cluster, self.model.size, collective.num_bytes
        laws = cluster.collectives
        if collective.gathers:
            rounds, cost = cluster.all_gather_rounds, cluster.all_gather_seconds
        else:
            rounds, cost = cluster.all_reduce_rounds, cluster.all_reduce_seconds
        self.fabric.traffic_price += cluster.ring_price(size, num_bytes, collective.gathers)
        delay = self.fabric.collective_delay(collective.number, size, rounds(size))
        if collective.number == 0:
            delay += laws.connect_seconds
        seconds = cost(size, num_bytes) + delay

        def slower(link: float) -> float:
            return (cost(size, num_bytes, link) + delay) / seconds if seconds else 1.0

        together = self.fabric.times.together(range(size), slower)
        inside = self.compute.host_seconds(seconds, self.bytes_of(collective))
        end = self.fabric.occupy(range(size), collective.begin, seconds - inside, together)
        end = together.finish(end, end + inside)
        if collective.begin < self.clock.now:
            return max(end, self.clock.now)
        last_bucket = min(1.0, laws.bucket_bytes / num_bytes) * seconds if num_bytes else 0.0
        return max(end, together.finish(collective.ready, collective.ready + last_bucket))

    def bytes_of(self, collective: Collective) -> float:
        """Return the bytes that each node sends in a collective."""
        size = self.model.size
        if collective.gathers:
            return (size - 1) * collective.num_bytes
        return self.model.cluster.all_reduce_bytes(size, collective.num_bytes)

    def on_reduce_done(self, number: int) -> None:
        """End the collective once the processors of all ranks have finished with it."""
        collective = self.under_way[number]
        collective.unreduced -= 1
        if not collective.unreduced:
            self.clock.at(max(self.clock.now, collective.end), "collective ends", number)

    def end(self, number: int) -> None:
        collective = self.under_way.pop(number)
        result, num_bytes = collective.result(self.engine), round(self.bytes_of(collective))
        for rank, future in collective.futures.items():
            self.workers.on_collective_end(rank, number, future, result, num_bytes)

    def state_dict(self) -> list[State]:
        return [collective.state_dict() for collective in self.under_way.values()]

    def load_state_dict(
        self, state: list[State], futures: dict[tuple[int, int], Future[Any]]
    ) -> None:
        """Restore the collectives; take the futures that workers await from ``futures``."""
        for saved in state:
            simple = {name: saved[name] for name in SIMPLE_FIELDS}
            collective = Collective(missing=set(saved["missing"]), **simple)
            self.under_way[collective.number] = collective
            for rank in saved["futures"]:
                future = futures.pop((rank, collective.number))
                future.what = (collective.kind, collective.number, collective.missing)
                collective.futures[rank] = future
            for rank, part in saved["parts"].items():
                if part is None:
                    gradient = self.workers.pop_gradient_of(collective.futures[rank])
                    self.engine.start(gradient)
                    collective.parts[rank] = gradient
                else:
                    collective.parts[rank] = part, part._version

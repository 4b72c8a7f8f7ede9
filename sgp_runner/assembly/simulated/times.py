"""Simulations of a run, with gradients or of its times only.

Both give the same times if the course of the run does not depend on time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Tensor, nn

from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.networks import components
from sgp_runner.cluster.hardware import ASYNC_HOST_PASSES
from sgp_runner.config.run import Run
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.comm import Transport
from sgp_runner.core.optim import Shapes
from sgp_runner.core.problem import Problem
from sgp_runner.core.scheduler import Future
from sgp_runner.core.step_hooks import NULL_LISTENER, StepListener
from sgp_runner.core.worker import Worker
from sgp_runner.data.dataset import Split
from sgp_runner.recording.observer import Grid
from sgp_runner.simulator.engine import Engine, NoGradients
from sgp_runner.simulator.machine_model import MODELLED, GivenTimes, MachineModel
from sgp_runner.simulator.simulation import Simulation


def fastest_times(run: Run) -> dict[str, object]:
    """Return the times of a run at the highest rate of its links, for the summary.

    Empty if the links have one rate. The times have the suffix ``_fastest``; ``evaluated_fastest``
    has [epoch, seconds] of each evaluation.
    """
    links = run.cluster.links
    if len(links.rates) < 2:
        return {}
    faster = dataclasses.replace(links, bandwidth=links.rates[-1])
    run = dataclasses.replace(run, cluster=dataclasses.replace(run.cluster, links=faster))
    problem = without_values(run) if run.model.trains else build_problem(run)
    evaluations = Evaluations(run)
    simulation, _ = simulate_times(run, problem, listener=evaluations)
    simulation.run()
    seconds = simulation.now()
    evaluations.seconds[run.epochs] = seconds
    ends = [[epoch, end] for epoch, end in evaluations.seconds.items()]
    more = {"evaluated": ends} if run.model.trains else run.study.extended(seconds)
    times = {key: value for key, value in more.items() if key != "iterations"}
    return {f"{key}_fastest": value for key, value in {"time_s": seconds, **times}.items()}


class Evaluations:
    """Listener that records when the last worker is evaluated in each epoch, as `Observer` does.

    With a server, only the server is evaluated.

    seconds: times by epoch
    """

    def __init__(self, run: Run) -> None:
        self.grid, self.servers = Grid(run.eval_every), run.algo.servers
        self.reached: dict[int, float] = {}
        self.seconds: dict[float, float] = {}

    def start_of_step(self, worker: Worker) -> None:
        """Do nothing."""

    def end_of_step(self, worker: Worker) -> None:
        epoch = self.grid.before(worker.step + 1, worker.steps_per_epoch)
        reached = epoch > self.reached.get(worker.rank, 0) and self.grid.has(epoch)
        if reached and worker.is_server == bool(self.servers):
            self.reached[worker.rank] = epoch
            self.seconds[epoch] = max(worker.now, self.seconds.get(epoch, 0.0))


def simulate(
    run: Run,
    problem: Problem,
    engine: Engine,
    times: GivenTimes = MODELLED,
    *,
    names: Sequence[int] | None = None,
    survives: bool = False,
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    listener: StepListener = NULL_LISTENER,
) -> tuple[Simulation, list[Worker]]:
    """Build the machines of ``run`` and its workers, servers last, without starting a worker.

    names: original ranks of the remaining ranks, if ranks have been lost. For the other keywords
        see `Simulation`.
    """
    start = problem.start()
    lengths = message_lengths(run, problem.flat.shapes)
    wire = run.timed_as.wire(start, not run.model.trains, lengths)
    step_seconds = times.step_seconds
    if step_seconds is None:
        step_seconds = run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
        if run.algo.asynchronous:
            num_bytes = wire.num_bytes(start)
            step_seconds += ASYNC_HOST_PASSES * num_bytes * run.cluster.hosts.host_seconds_per_byte
    model = MachineModel(
        run.cluster,
        run.faults,
        run.nodes,
        run.algo.servers,
        run.seed,
        step_seconds,
        wire,
        exchange_overlap=run.cluster.collectives.fragment_overlap
        if run.algo.message_layout == "fragments"
        else run.cluster.collectives.exchange_overlap,
        names=names,
    )
    simulation = Simulation(model, engine, times, survives, wrap, listener)
    return simulation, simulation.make_workers(problem, run.algo, run.optim, run.horizon(problem))


def message_lengths(run: Run, shapes: Shapes) -> dict[int, int]:
    """Return `Wire.lengths` for a model with tensors of ``shapes``."""
    timed = run.timed_as.known_shapes
    if timed is None:
        return {}
    lengths: dict[int, int] = {}
    for part in components(run.algo):
        if isinstance(part, Algorithm | Codec):
            here, there = part.message_lengths(shapes), part.message_lengths(timed)
            lengths |= dict(zip(here, there, strict=True))
    return lengths


def simulate_times(
    run: Run,
    problem: Problem,
    times: GivenTimes = MODELLED,
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    listener: StepListener = NULL_LISTENER,
) -> tuple[Simulation, list[Worker]]:
    """Start a simulation of the times of ``run``, without gradients; arguments as in `simulate`."""
    simulation, workers = simulate(run, problem, NoGradients(), times, wrap=wrap, listener=listener)
    for worker in workers:
        worker.has_gradients = False
        simulation.start(worker, run.algo.run(worker))
    return simulation, workers


class DependsOnTime(Exception):
    """Raised when an algorithm polls for arrived messages."""


class WithoutPolls(Transport):
    """Transport that raises `DependsOnTime` if an algorithm polls for messages."""

    def __init__(self, base: Transport) -> None:
        self.base = base

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        return self.base.send(dst, tag, message)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.base.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.base.all_gather(number, tensor)

    def may_poll(self, arrived: bool) -> NoReturn:
        raise DependsOnTime

    def check_any_source(self) -> NoReturn:
        raise DependsOnTime


def without_values(run: Run) -> Problem:
    """Return a problem with the size and steps of ``run``, without values and with a trivial task.

    Parameters are zero or, if messages depend on their shapes, have shapes but no values.
    """

    from sgp_runner.core.codecs.casts import codes
    from sgp_runner.core.flat import FlatModule
    from sgp_runner.models.vector import Hollow, Placeholder

    with closing(build_problem(run)) as problem:
        module: nn.Module = Placeholder(sum(problem.flat.layers))
        if run.algo.message_layout != "model" or codes(run.algo):
            module = Hollow(problem.flat.shapes)
        module = module.to(run.torch_dtype)
        dataset = dataclasses.replace(problem.dataset, task=Unknown())
        return dataclasses.replace(problem, flat=FlatModule(module), dataset=dataset)


@dataclass(frozen=True)
class Unknown:
    """Task whose result is an arbitrary constant."""

    name: ClassVar[str] = "unknown"
    metric: ClassVar[str] = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("a re-timed run computes no gradients")

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        return {"loss": 0.0}

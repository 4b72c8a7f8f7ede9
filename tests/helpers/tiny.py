"""A tiny float64 problem with different workers, and any algorithm run on it in simulated time,
without touching the disk.

The gradient of worker ``i`` at its step ``s`` is ``scale^2 (x - center)`` with a scale and a center
of its own for each (i, s).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from helpers.clusters import cluster_of
from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.compute_variation import ComputeTime, ConstantTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.timed_as import TimedAs
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.flat import FlatModule
from sgp_runner.core.optim import SGD, Adam, Constant, Horizon, Schedule, Shapes
from sgp_runner.core.problem import Problem
from sgp_runner.core.step_hooks import StepHooks
from sgp_runner.core.worker import Worker
from sgp_runner.data.dataset import Dataset, TensorSplit
from sgp_runner.data.tasks import Regression
from sgp_runner.models.vector import Diagonal
from sgp_runner.simulator.engine import Engine, Loop
from sgp_runner.simulator.machine_model import MachineModel
from sgp_runner.simulator.simulation import Simulation
from sgp_runner.utils.shard import Shard

D = 3
STEPS = 12  # different samples per worker
PER_EPOCH = 4

random = np.random.default_rng(7)
SCALES = random.uniform(0.3, 1.0, (64, STEPS, D))
CENTERS = random.normal(size=(64, STEPS, D))
START = random.normal(size=D)


def gradient(worker: int, step: int, x: np.ndarray) -> np.ndarray:
    """The oracle: gradient [D] of ``worker`` on its batch number ``step``."""
    scale = SCALES[worker, step % STEPS]
    return np.asarray(scale * (scale * x - scale * CENTERS[worker, step % STEPS]))


@dataclass(frozen=True)
class OneSample:
    """Worker ``i`` reads its own samples in order."""

    steps_per_epoch: int = PER_EPOCH

    def indices(self, worker: int, step: int) -> Tensor:
        return torch.tensor([worker * STEPS + step % STEPS])

    def weight(self, worker: int, step: int, part: Shard) -> float:
        return 1.0


def tiny_problem(
    scales: np.ndarray = SCALES, centers: np.ndarray = CENTERS, start: np.ndarray = START
) -> Problem:
    d = len(start)
    flat_scales = torch.from_numpy(scales.reshape(-1, d))
    split = TensorSplit(
        (flat_scales,), flat_scales * torch.from_numpy(centers.reshape(-1, d)), None
    )
    module = Diagonal(d).double()
    with torch.no_grad():
        next(module.parameters()).copy_(torch.from_numpy(start))
    return Problem(
        FlatModule(module),
        Dataset("tiny", Regression(), split, split, (d,), d),
        OneSample(),
        0,
        True,
        True,
    )


def sgd(
    lr: float = 0.1,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> SGD:
    return SGD(
        schedule or Constant(),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
    )


def machines(
    compute_time: ComputeTime | None = None,
    *,
    seconds: float = 1.0,
    bandwidth: float = 1e18,
    latency: float = 0.0,
    factors: dict[int, float] | None = None,
) -> Cluster:
    return cluster_of(
        {"default": seconds}, compute_time or ConstantTime(), bandwidth, latency, factors or {}
    )


@dataclass
class Result:
    """How a run ended."""

    simulation: Simulation
    workers: list[Worker]
    trace: list[tuple[float, int, int]] = field(
        default_factory=list
    )  # (time, rank, step) at the end of every step
    history: dict[int, list[np.ndarray]] = field(
        default_factory=lambda: defaultdict(list)
    )  # parameters at the end of every step, by rank

    @property
    def x(self) -> np.ndarray:
        """Models [workers, D], servers last."""
        return np.stack([worker.params.numpy() for worker in self.workers])

    @property
    def w(self) -> np.ndarray:
        return np.array([float(worker.push_sum[-1]) for worker in self.workers])


def run(
    algo: Algorithm,
    nodes: int,
    steps: int,
    optim: SGD | Adam | None = None,
    cluster: Cluster | None = None,
    faults: Faults | None = None,
    each_step: Callable[[Result, Worker], None] = lambda result, worker: None,
    engine: Callable[[Problem], Engine] = Loop,
    seed: int = 3,
    at_step: Callable[[Result, Worker], None] = lambda result, worker: None,
    problem: Problem | None = None,
    shapes: Shapes | None = None,
) -> Result:
    """``steps`` of every node (on average, for asynchronous algorithms).

    shapes: shapes of the tensors in the parameters; by default they are one vector
    """
    problem, optim, cluster = problem or tiny_problem(), optim or sgd(), cluster or machines()
    algo.check(nodes, optim)
    listener = StepHooks()
    model = MachineModel(
        cluster,
        faults or Faults({}, {}),
        nodes,
        algo.servers,
        seed,
        cluster.compute.mean_step("tiny", 1),
        TimedAs().wire(problem.start()),
    )
    simulation = Simulation(model, engine(problem), listener=listener)
    total = steps * (nodes if algo.asynchronous else 1)
    shared = OwnBudget(total)
    result = Result(simulation, [])
    for rank in range(nodes + algo.servers):
        budget = shared if algo.asynchronous and rank < nodes else OwnBudget(total)
        start = problem.start()
        worker = Worker(
            rank=rank,
            size=nodes,
            push_sum=torch.cat([start, start.new_ones(1)]),
            shapes=shapes or problem.flat.shapes,
            comm=simulation.comms[rank],
            optim=optim,
            budget=budget,
            horizon=Horizon(steps / PER_EPOCH, PER_EPOCH, nodes, nodes),
            steps_per_epoch=PER_EPOCH * (nodes if algo.asynchronous else 1),
            runtime=simulation,
        )
        worker.buffers = optim.buffers(worker.params)
        worker.model_buffers = problem.flat.fresh_buffers()
        result.workers.append(worker)
        simulation.start(worker, algo.run(worker))

    def end_of_step(worker: Worker) -> None:
        result.trace.append((round(worker.now, 9), worker.rank, worker.step))
        result.history[worker.rank].append(worker.params.numpy().copy())
        each_step(result, worker)

    listener.saver = lambda worker: at_step(result, worker)
    listener.recorder = end_of_step
    simulation.run()
    return result


@dataclass
class Momentum:
    """The oracle of the local optimizer: SGD with momentum for one worker."""

    optim: SGD
    v: np.ndarray = field(default_factory=lambda: np.zeros(D))

    def step(self, g: np.ndarray, x: np.ndarray) -> np.ndarray:
        o = self.optim
        g = g + o.weight_decay * x
        self.v = o.momentum * self.v + g
        return np.asarray(o.lr * (g + o.momentum * self.v if o.nesterov else self.v))

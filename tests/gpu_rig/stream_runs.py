"""Runs of the program's own ranks, transports and algorithms on pretend GPUs and networks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Barrier, Thread
from typing import Any

import torch
import torch.distributed as dist
from gpu_rig.judged import CUDA, pretend_cuda, running
from gpu_rig.pretend_network import Network, pretend_distributed
from gpu_rig.streams import Gpu
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sgp_runner.assembly.build import build_worker, timing_problem
from sgp_runner.assembly.dry_run import MODEL
from sgp_runner.assembly.networks import cut_of, leader_mode
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.core.budget import Budget, OwnBudget
from sgp_runner.core.problem import Compute, Problem
from sgp_runner.core.step_hooks import StepHooks
from sgp_runner.core.timing_study import Study
from sgp_runner.core.worker import Worker
from sgp_runner.data.dataset import Batch
from sgp_runner.distributed.blocks import InBlocks
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.rank import Rank, ServerBudget, SharedBudget
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.utils.shard import Shard

Body = Callable[[Worker], Coroutine[Any, Any, None]]
SHAPES = {"a": (64, 16), "b": (16,)}  # long enough for shared memory
STEPS = 6  # of a rank
SECONDS = 2000.0  # longest run
TINY = ("network=nccl", "model=mlp", "data=digits", "batch_size=8", "epochs=1")


@dataclass(frozen=True)
class Synthetic(Problem):
    """A problem whose gradient is a few kernels, in the order of a real one's accesses.

    A batch is two numbers.
    """

    def loaded(self, rank: int, step: int) -> Batch:
        return (self.placed(torch.full((2,), float(rank + step))),), self.placed(torch.zeros(1))

    def start(self) -> Tensor:
        return torch.linspace(-1, 1, sum(self.flat.layers)).to(self.compute.device)

    def gradient(
        self,
        params: Tensor,
        buffers: list[Tensor],
        rank: int,
        step: int,
        module: Any = None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        (noise,), zero = self.batch(rank, step)
        for buffer in buffers:
            buffer.lerp_(noise, 0.1)
        g = params * 0.01 + noise.sum() * 0.001
        return g, g.square().sum() + zero[0]

    def backward(self, params: Tensor, *arguments: Any) -> Tensor:
        flat: Any = self.flat
        module = arguments[3]
        if not isinstance(module, InBlocks):
            flat.gradient, loss = self.gradient(params, *arguments)
            return loss
        flat.bound = params.split(flat.layers)
        module(torch.zeros((), device=flat.device))  # each tensor is read when its module is called
        g, loss = self.gradient(params, *arguments)
        gradients = [*zip(flat.target, g.split(flat.layers), strict=True)]
        for number, (target, value) in reversed([*enumerate(gradients)]):
            target.copy_(value)
            flat.ready(number)
        return loss


class ReadsTensor(nn.Module):
    """A module whose parameter is tensor ``number`` of a `SyntheticFlat`."""

    def __init__(self, flat: SyntheticFlat, number: int) -> None:
        super().__init__()
        self.flat, self.number = flat, number
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.flat.bound[self.number].sum()


class SyntheticFlat:
    """What a `FlatModule` is for `Synthetic`."""

    shapes, layers = SHAPES, (1024, 16)

    def __init__(self, device: str) -> None:
        self.device = device
        self.bound: Sequence[Tensor] = ()
        self.gradient = torch.empty(0)
        self.target: Sequence[Tensor] = ()
        self.module = nn.Sequential(*(ReadsTensor(self, number) for number in range(2)))
        self.parameters = [*self.module.parameters()]

    def fresh_buffers(self) -> list[Tensor]:
        return [torch.zeros(2, device=self.device)]

    def detach_parts(self) -> list[Tensor]:
        return [*self.gradient.split(self.layers)]

    @contextmanager
    def gathering(self, gradient: Tensor, ready: Callable[[int], None]) -> Iterator[None]:
        self.target, self.ready = gradient.split(self.layers), ready
        yield


def problem_of(run: Run, compute: Compute, part: Shard) -> Synthetic:
    """Return the problem of a process; a BatchNorm's statistics are its one buffer."""
    base = timing_problem(run, Study(None, STEPS), MODEL)
    problem = Synthetic(
        SyntheticFlat(compute.device),  # type: ignore[arg-type]
        base.dataset,
        base.sampler,
        0,
        trains=True,
        vectorizes=False,
        compute=compute,
    )
    return problem.on_device(part)  # type: ignore[return-value]


def world_of(run: Run, process: int, store: dist.Store) -> TorchWorld:
    """Return the world of a process, as its network would make it."""
    network: Any = run.network
    nccl = network.name == "nccl"
    on_gpu = process < run.nodes * run.gpus_per_node  # a server is not
    world = TorchWorld(
        run.gpus_per_node,
        leader_mode(run, network.gossip),
        Compute(str(CUDA) if on_gpu else "cpu"),
        network.name,
        nccl and not leader_mode(run, "auto"),
        shares_memory=not nccl and network.shared_memory,
        cut=cut_of(run, getattr(network, "shard", "none")),
    )
    world.store = store  # of all processes, while each world has a name of its own
    world.connect(run.nodes)
    return world


@dataclass
class Outcome:
    """Events on all GPUs, and the final parameters by process."""

    races: Counter[str] = field(default_factory=Counter)
    accesses: Counter[str] = field(default_factory=Counter)
    parameters: dict[int, Tensor] = field(default_factory=dict)


def budget_of(run: Run, world: TorchWorld) -> Budget:
    if not run.algo.asynchronous:
        return OwnBudget(STEPS)
    total = STEPS * run.nodes
    if world.layout.is_server:
        return ServerBudget(total, store=world.store)
    return SharedBudget(world.store, total)


def evaluate(worker: Worker) -> None:
    """Read what an evaluation reads."""
    worker.model.sum()
    for buffer in worker.model_buffers:
        buffer.sum()


def save(worker: Worker) -> None:
    """Read what a checkpoint of synchronous ranks reads, once."""
    if worker.steps_taken == STEPS // 2:
        worker.comm.transport.quiesce()
        for value in tree_leaves(worker.state_dict()):
            if isinstance(value, Tensor):
                value.sum()


def run_process(
    run: Run, process: int, store: dist.Store, start: Barrier, body: Body | None
) -> Tensor | None:
    world = world_of(run, process, store)
    problem = problem_of(run, world.compute, Shard(world.layout.device, world.layout.devices))
    if world.leader_mode and world.layout.device:
        start.wait()
        Gradients(problem, world).serve()
        problem.close()
        return None
    listener = StepHooks()
    listener.recorder = evaluate
    if not run.algo.asynchronous:
        listener.saver = save
    rank = Rank(problem, world, run.faults, listener=listener)
    worker = build_worker(
        run,
        problem,
        world.layout.node_rank,
        rank.comm,
        budget_of(run, world),
        rank,
        rank.gradients.buffers,
        rank.gradients.parts and rank.gradients.parts.shapes,
    )
    start.wait()
    rank.run(worker, (body or run.algo.run)(worker))
    rank.thread.shutdown()
    problem.close()
    if not worker.is_server:
        world.mean(worker.own_model.clone())  # as for the evaluation of the average
    return worker.gathered(worker.params).cpu()


def run_on_pretend_gpus(*overrides: str, body: Body | None = None) -> Outcome:
    """Run all processes of an experiment; raise the first error of any.

    body: what ranks run in place of the algorithm
    """
    run = experiment_of([*TINY, *overrides, "logger=jsonl"]).run
    size = run.nodes * run.gpus_per_node + run.algo.servers
    network, store, start = Network(size), dist.HashStore(), Barrier(size)
    outcome, errors = Outcome(), []

    def main(process: int) -> None:
        gpu = Gpu(process)
        try:
            with running(gpu):
                outcome.parameters[process] = run_process(run, process, store, start, body)
        except BaseException as error:
            errors.append(error)
            network.fail()
            start.abort()
        outcome.races += gpu.races
        outcome.accesses += gpu.accesses

    with pretend_cuda(), pretend_distributed(network, store):
        threads = [Thread(target=main, args=(process,), daemon=True) for process in range(size)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + SECONDS
        while any(map(Thread.is_alive, threads)) and not errors and time.monotonic() < deadline:
            threads[-1].join(0.02)
            threads.sort(key=Thread.is_alive)
    if errors:
        raise errors[0]
    assert len(outcome.parameters) == size, "some process never ended"
    return outcome

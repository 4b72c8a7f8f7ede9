"""Decentralised training in a user's own loop: `Averager`."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.qg_dsgdm import QGDSGDm
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.api.arguments import overrides_of
from sgp_runner.api.local_state import BufferRule, OptimizerRule, average, period_of, with_rules
from sgp_runner.api.loop_world import take_from_replica_0, world_on
from sgp_runner.api.saved_states import PARTS, by_rank, check_state, resized
from sgp_runner.api.step_counts import StepCounts
from sgp_runner.api.wrapped_models import (
    TRAINED,
    FiniteGradients,
    check_momentum,
    check_optimizer,
    check_parameters,
    check_per_element,
    check_same_model,
    devices_of,
    inner_model,
    vector_of,
    with_parameters,
)
from sgp_runner.config.choices import groups
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.optim.wrapped import WrappedOptimizer
from sgp_runner.core.state import State, outline
from sgp_runner.distributed.loop_runtime import LoopRuntime
from sgp_runner.distributed.world import check_agreement
from sgp_runner.topology.verify import topologies, verify
from sgp_runner.utils.errors import ConfigError, LostConnection, RankLost

VERSION = 2  # of `Averager.state_dict`


class Averager:
    """An algorithm in a training loop: its `step` replaces ``optimizer.step()``.

    algo: name, file or class instance, like ``algo=`` of `sgp-run`
    model: the module that the loop trains, or DistributedDataParallel around it, which then no
        longer averages anything. All ranks start from the parameters and buffers of rank 0.
        Parameters that do not require a gradient are ignored
    optimizer: a `torch.optim.Optimizer` of the module's parameters, which makes the local steps
    steps: number of steps of the loop, if known. Algorithms that average periodically then also
        average after the last step
    optimizer_state: what happens to the optimizer's state (SGD: the momentum; Adam: both moments
        and the step) at the end of a period, when all ranks have the same model: it stays local, is
        averaged over the ranks (mean), or is set to zero (reset); None: local, or with SlowMo
        according to its setting ``buffers``. Local SGD, SlowMo, DiLoCo, SparseLoCo and Gossip-PGA
        have periods; the last one ends after the last of ``steps``. With other algorithms the ranks
        never have the same model during training, so it must be local
    buffers: what happens to the model's floating-point buffers, such as BatchNorm's statistics, at
        the same time: local, or mean
    join: whether ranks may take different numbers of steps. In `finish`, a rank without batches
        then exchanges messages, without local steps, until all ranks have finished
    mesh: two-dimensional, replicas x devices, with all ranks in order: a replica is a node, the
        model is wrapped in DDP or sharded by FSDP2 over the devices of its replica, and each device
        sends a shard of the messages to the same device of other replicas; None: each rank is a
        node
    timeout_seconds: how long a rank may wait for ranks that are alive but do not arrive; then all
        ranks raise a StallTimeout that names them. math.inf: forever
    settings: the settings of the algorithm, like ``algo.*`` of `sgp-run`: ``tau=12``,
        ``topology="ring"``, ``base={"name": "osgp", "tau": 2}``

    Every process of the launcher, such as torchrun, is a node. Messages use NCCL if the model is on
    a GPU and the script's process group has NCCL, else gloo. All ranks must call `step`, `average`,
    `state_dict` and `finish` together.

    Raises ConfigError for invalid arguments.
    """

    _step_supports_amp_scaling = True  # as GradScaler asks

    def __init__(
        self,
        algo: str | Algorithm,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int | None = None,
        optimizer_state: OptimizerRule | None = None,
        buffers: BufferRule = "local",
        join: bool = False,
        mesh: DeviceMesh | None = None,
        timeout_seconds: float = 1800.0,
        **settings: Any,
    ) -> None:
        devices = devices_of(mesh)
        self.model = inner_model(model, mesh)
        self.optimizer = optimizer
        vector, sharded = vector_of(self.model)
        device = check_parameters(vector)
        check_optimizer(optimizer, vector)
        if steps is not None and steps < 1:
            raise ConfigError("steps", f"{steps} must be at least 1 step, or None.")
        if not timeout_seconds > 0:
            raise ConfigError("timeout_seconds", f"{timeout_seconds} must be positive.")
        world = world_on(device, devices, "elements" if sharded else None)
        nodes = world.size // devices
        optim = WrappedOptimizer(optimizer, vector)
        algo = algorithm_of(algo, settings, world.paired, nodes, optim)
        if sharded:
            check_per_element(algo)
        self.algo = with_rules(algo, optimizer_state, buffers)
        is_slowmo = isinstance(algo, SlowMo)  # which treats the state of the optimizer itself
        self.rules = "local" if is_slowmo else optimizer_state or "local", buffers
        self.period = 0 if self.rules == ("local", "local") else period_of(self.algo)
        self.counts = counts = StepCounts(
            world.store, world.process_rank, world.size, join, timeout_seconds
        )
        try:
            counts.meet()
            world.connect(nodes)
            check_agreement(world, "algorithm", str(self.algo))
            check_same_model(world, vector, self.model)
            check_agreement(world, "optimizer", type(optimizer).__name__)
            check_agreement(world, "rule of local state", f"{self.rules}, join={join}")
            with torch.no_grad():
                start = vector.joined()
                of_model = list(self.model.buffers())
                for tensor in (start, *of_model):
                    take_from_replica_0(tensor, world)
                self.runtime = LoopRuntime(world, self.algo, optim, vector, start, of_model, steps)
        except BaseException:
            counts.close()
            raise
        counts.clock = self.runtime.clock
        self.finite = FiniteGradients(world.process_rank, list(vector.shapes))
        atexit.register(self.finish_at_exit)
        TRAINED.update(with_parameters(self.model))

    @property
    def rank(self) -> int:
        """The rank of this process, from 0; with a mesh, the rank of its replica."""
        return self.runtime.worker.rank

    @property
    def size(self) -> int:
        """The number of ranks; with a mesh, the number of replicas."""
        return self.runtime.worker.size

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer, with their learning rates."""
        return self.optimizer.param_groups

    @property
    def num_bytes_sent(self) -> int:
        """The bytes that this rank has sent."""
        return self.runtime.comm.num_bytes_sent

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of the algorithm with the gradients in ``p.grad``, and clear them.

        A missing gradient counts as zero. If a GradScaler of this rank calls this method, it also
        divides the gradients by the scale. If they are then not finite, this rank takes no local
        step, but still exchanges its messages. For algorithms that communicate the gradient itself,
        such as AR-SGD, the gradient is then zero.
        """
        self.counts.step()
        scaler = vars(self)  # GradScaler.step sets both for the duration of this call
        infinite, scale = scaler.get("found_inf"), scaler.get("grad_scale")
        skips = infinite is not None and bool(infinite)

        def gradient() -> list[Tensor]:
            parts = self.runtime.vector.detach_gradient(scale)
            if not skips:
                self.finite.check(parts, self.runtime.worker.step)
            return parts

        self.take(gradient, skips)

    def take(self, gradient: Callable[[], list[Tensor]], skips: bool) -> None:
        """Take a step; if it ends a period, average or reset the local state as configured."""
        runtime = self.runtime
        try:
            runtime.step(gradient, skips)
        except LostConnection as error:
            raise RankLost(
                f"{error} in step {runtime.worker.step}: another process has ended, and its "
                "message states the cause; continue all ranks from the states that they have saved."
            ) from error
        last = runtime.wanted is None
        if self.period and (last or (runtime.worker.steps_taken - 1) % self.period == 0):
            tensors = list(runtime.optim.buffers(runtime.worker.params).values())
            state = [tensor for tensor in tensors if tensor.is_floating_point()]
            optimizer_state, buffers = self.rules
            if optimizer_state == "mean":
                average(state, runtime.world)
            for tensor in state if optimizer_state == "reset" else ():
                tensor.zero_()
            if buffers == "mean":
                average(self.buffers, runtime.world)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the parameters."""
        self.optimizer.zero_grad(set_to_none)

    @contextmanager
    def average(self) -> Iterator[nn.Module]:
        """Give the model the mean parameters and buffers of all ranks inside the block.

        Algorithms with outer parameters, such as DiLoCo, average the outer parameters.
        """
        if self.runtime.ended:
            yield self.model
            return
        vector, buffers = self.runtime.vector, [(buffer, buffer.clone()) for buffer in self.buffers]
        bound = vector.bound
        self.take_average()
        try:
            yield self.model
        finally:
            vector.bind(bound)
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)

    @property
    def buffers(self) -> list[Tensor]:
        """The model's buffers that can be averaged, such as the statistics of BatchNorm."""
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    @torch.no_grad()
    def take_average(self) -> None:
        world = self.runtime.world
        mean = self.runtime.worker.model.clone()
        for tensor in (mean, *self.buffers):
            world.mean(tensor)
        self.runtime.vector.bind(mean)
        self.runtime.vector.separate()

    @torch.no_grad()
    def finish(self) -> None:
        """Finish training after the last step; the model is then the mean of all ranks.

        Messages in flight arrive first, and the connections between the ranks are closed. Raises
        ConfigError if ranks took different numbers of steps, unless ``join`` is set; a step that
        waits for a rank that has finished raises it too.
        """
        if not self.runtime.ended:
            while self.counts.behind():
                self.counts.step()
                self.take(self.runtime.vector.detach_gradient, skips=True)
            self.finite.check_last()
            self.counts.compare()
            self.runtime.finish()
            self.take_average()
            self.runtime.world.close()
            self.counts.close()
            atexit.unregister(self.finish_at_exit)
            TRAINED.difference_update(self.model.modules())

    def finish_at_exit(self) -> None:
        """End the threads that receive messages; otherwise PyTorch would abort the process."""
        failed = hasattr(sys, "last_value")
        if not failed and dist.is_initialized():
            self.finish()
        self.counts.close()

    def __enter__(self) -> Averager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank: parameters, optimizer, algorithm, messages in flight.

        The tensors are not copied. Every rank must save its own state.
        """
        vector, optimizer = self.runtime.vector, self.optimizer
        states = self.runtime.state_dict(), vector.plain(optimizer.state_dict())
        parts = dict(zip(PARTS, states, strict=True))
        return {**self.identity, **parts, "outline": dict(outline(parts))}

    @property
    def identity(self) -> State:
        """Properties in which a state must match the averager that loads it."""
        vector, groups = self.runtime.vector, self.param_groups
        tensors = dict(zip(vector.shapes, vector.parameters, strict=True))
        return {
            "version": VERSION,
            "algorithm": str(self.algo),
            "rank": [self.rank, self.size],
            "model": dict(outline({**tensors, **dict(self.model.named_buffers())})),
            "kind of optimizer": type(self.optimizer).__name__,
            "groups of parameters": [len(group["params"]) for group in groups],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state that this rank saved; call this before the first step.

        Raises ConfigError, before anything is changed, if the state is damaged or belongs to
        another model, optimizer, algorithm or rank.
        """
        if self.runtime.begun:
            raise RuntimeError("a state must be loaded before the first step")
        check_state(state, self.identity)
        worker, vector = self.runtime.worker, self.runtime.vector
        vector.view(worker.params)  # PyTorch casts the optimizer's state to their precision
        self.optimizer.load_state_dict(vector.sharded(state["optimizer"], self.optimizer))
        worker.load_state_dict(state["worker"])
        vector.bind(worker.params)

    @torch.no_grad()
    def load_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from the states of all former ranks, on any number of ranks.

        On the same number of ranks, each continues exactly, as in `load_state_dict`. Otherwise all
        ranks start from the mean model, with the mean states of optimizer, BatchNorm and algorithm.
        The loop must distribute the rest of the epoch among the current ranks.

        Raises ConfigError, before anything is changed, also if the number of ranks changes and the
        algorithm has messages in flight or per-rank state that cannot be averaged, such as the
        coding errors of SparseLoCo.
        """
        states = by_rank(states, self.identity)
        if len(states) == self.size:
            state = states[self.rank]
        else:
            parts = resized(states, self.algo.title)
            rank = self.identity["rank"]
            state = {**states[0], **parts, "rank": rank, "outline": dict(outline(parts))}
        self.load_state_dict(state)


def algorithm_of(
    algo: str | Algorithm,
    settings: dict[str, Any],
    paired: bool,
    nodes: int,
    optim: WrappedOptimizer,
) -> Algorithm:
    """Return the algorithm with ``settings``. Raises ConfigError.

    paired: whether messages are exchanged in pairs, over NCCL
    """
    if isinstance(algo, str):
        overrides = overrides_of("algo", {"name": algo, **settings})
        of_optim = [f"optim={optim.name}"] if optim.name in groups()["optim"] else []
        algo = experiment_of([*overrides, *of_optim, f"nodes={nodes}"]).run.algo
    elif settings:
        raise ConfigError(
            "algo", "settings apply only to the name of an algorithm, not to an instance."
        )
    title = algo.title
    if algo.asynchronous or algo.servers:
        what = "is asynchronous" if algo.asynchronous else "has a server"
        raise ConfigError("algo", f"{title} {what}: run it with sgp-run.")
    if any(epoch > 0 for epoch, _ in algo.phases(nodes)):
        raise ConfigError(
            "algo",
            f"{title} changes at an epoch, and a training loop has none: run it with sgp-run.",
        )
    algo.check(nodes, optim)
    if isinstance(algo, QGDSGDm):
        check_momentum(optim.optimizer)
    for topology in topologies(algo) if paired else ():
        verify(topology, nodes, "balanced", "NCCL", weighted=True)
    return algo

"""Gradients of one real process: local, or averaged over a group during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sgp_runner.core.flat import Gradient, joined
from sgp_runner.core.problem import Problem
from sgp_runner.core.state import State
from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.distributed.blocks import InBlocks, blocks_of
from sgp_runner.distributed.json_collectives import all_gather
from sgp_runner.distributed.shared_mean import SharedMean
from sgp_runner.distributed.state_parts import StateParts
from sgp_runner.distributed.torch_collectives import Hierarchy
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import Stopped
from sgp_runner.utils.spans import span
from sgp_runner.utils.waits import waiting_for

STOP, LOCAL, MEAN, SAVE = range(4)  # requests of a node's first device to the others
NOWHERE = torch.empty(0)


class LossScale:
    """Loss scale for float16 (Micikevicius et al. 2018, section 3.2), updated without device syncs.

    An overflowing gradient counts as zero and halves the scale; 2,000 consecutive gradients without
    overflow double it. These are the values of `torch.amp.GradScaler`, which would also skip the
    optimizer's step.
    """

    def __init__(self, device: str) -> None:
        self.factor = torch.tensor(65536.0, device=device)
        self.in_a_row = torch.zeros((), dtype=torch.int32, device=device)

    def removed(self, g: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the gradient ``g`` [D] divided by its loss scale.

        total: sums a number over the devices that have the other parts of the gradient
        """
        overflow = g.isfinite().all().logical_not()
        if total is not None:
            overflow = total(overflow.float()) > 0
        g = torch.where(overflow, 0.0, g / self.factor)
        torch._amp_update_scale_(self.factor, self.in_a_row, overflow.float(), 2.0, 0.5, 2000)
        return g


class Gradients:
    """Gradient number 0, 1, 2, ... of a node, averaged over its devices by data parallelism.

    If the first device of a node leads, it sends the parameters to the others each time; they
    `serve`.

    meter: measures how long averaging takes beyond the end of the backward pass
    """

    def __init__(self, problem: Problem, world: World, meter: WaitMeter | None = None) -> None:
        self.problem, self.world = problem, world
        self.meter = meter or WaitMeter()
        self.rank = world.layout.node_rank
        self.buffers = problem.flat.fresh_buffers()  # BatchNorm statistics of this device
        self.scale = (
            LossScale(problem.compute.device) if problem.compute.autocast == "fp16" else None
        )
        self.parts = None if world.cut is None else StateParts(problem.flat.shapes, world)
        self.in_blocks: dict[dist.ProcessGroup | None, InBlocks] = {}
        self.modules: dict[dist.ProcessGroup | None, nn.Module] = {}
        self.stream: torch.cuda.Stream | None = None
        if problem.compute.device != "cpu":
            self.stream = torch.cuda.Stream(problem.compute.device)  # type: ignore[no-untyped-call]

    @property
    def factor(self) -> Tensor | None:
        return None if self.scale is None else self.scale.factor

    def local(self, at: Tensor, number: int, allow_parts: bool = False) -> tuple[Gradient, Tensor]:
        """Return the gradient [D] of the node's batch, and the loss on this device's share of it.

        allow_parts: whether the gradient may come in parts
        """
        self.agree(LOCAL, at, number)
        return self.compute(at, number, self.world.node, allow_parts)

    def local_async(self, at: Tensor, number: int) -> Callable[[], tuple[Gradient, Tensor]]:
        """Return a call of `local` for another thread; the gradient is complete when it returns.

        On CUDA, the device can do other work at the same time.
        """
        if (stream := self.stream) is None:
            return partial(self.local, at, number)
        here = torch.cuda.current_stream(stream.device)
        written = here.record_event()

        def compute() -> tuple[Gradient, Tensor]:
            with torch.cuda.stream(stream):
                stream.wait_event(written)
                gradient, loss = self.local(at, number)
                value = joined(gradient)
                value.record_stream(here)
                with waiting_for(f"waits for its device to compute gradient {number}"):
                    stream.synchronize()
            return value, loss

        return compute

    def mean(self, at: Tensor, number: int, allow_parts: bool = False) -> tuple[Gradient, Tensor]:
        """Return the mean gradient [D] over all nodes, and the loss."""
        self.agree(MEAN, at, number)
        return self.compute(at, number, self.world.workers, allow_parts)

    def serve(self) -> None:
        """Serve the requests of the node's first device until it finishes. Raises Stopped."""
        at = self.problem.start()
        groups = {LOCAL: self.world.node, MEAN: self.world.workers}
        while True:
            request, number = self.agree(STOP, at)
            if request in groups:
                self.compute(at, number, groups[request])
            elif request == SAVE:
                self.gather_states()
            else:
                if (stop := self.send_stop(None)) is not None:
                    raise stop
                return

    def release(self, stop: Stopped | None = None) -> None:
        """Release the other devices from serving; ``stop``: why the run stops early, if it does."""
        if self.served:
            self.agree(STOP)
            self.send_stop(stop)

    def state_dict(self) -> list[State]:
        """Return the states of this device and its followers."""
        if not self.served:
            return [self.state()]
        self.agree(SAVE)
        return self.gather_states()

    def state(self) -> State:
        scale = None if self.scale is None else (self.scale.factor.cpu(), self.scale.in_a_row.cpu())
        data = self.problem.dataset.train.state_dict()
        buffers = [buffer.cpu() for buffer in self.buffers]
        return {"model_buffers": buffers, "scale": scale, "data": data}

    def load_state_dict(self, states: list[State]) -> None:
        """Restore this device from the states of its node."""
        state = states[self.world.layout.device if len(states) > 1 else 0]
        for buffer, saved in zip(self.buffers, state["model_buffers"], strict=True):
            buffer.copy_(saved)
        self.problem.dataset.train.load_state_dict(state.get("data", {}))
        if self.scale is not None:
            for value, saved in zip(
                (self.scale.factor, self.scale.in_a_row), state["scale"], strict=True
            ):
                value.copy_(saved)

    # Communication of the devices of a node whose first one leads.

    @property
    def served(self) -> bool:
        return self.world.leader_mode and self.world.node_cpu_group is not None

    def agree(self, request: int, at: Tensor = NOWHERE, number: int = 0) -> tuple[int, int]:
        """Broadcast the first device's request, with the number and parameters of the gradient.

        On the other devices, the parameters are written to ``at``.
        """
        world = self.world
        if not self.served:
            return request, number
        word = torch.tensor([request, number])
        with waiting_for("waits for the devices of its node"):
            dist.broadcast(word, group=world.node_cpu_group, group_src=0)
            request, number = word.tolist()
            if request in (LOCAL, MEAN):
                dist.broadcast(at, group=world.node, group_src=0)
        return request, number

    def send_stop(self, stop: Stopped | None) -> Stopped | None:
        """Return the first device's ``stop`` on all devices of the node."""
        assert self.world.node_cpu_group is not None
        message = None if stop is None else [str(stop), stop.number, stop.saved]
        with waiting_for("waits for the devices of its node"):
            sent = all_gather(message, self.world.node_cpu_group)[0]
        return None if sent is None else Stopped(*sent)

    def gather_states(self) -> list[State]:
        """Return the states of all devices, whose shapes are equal."""
        state_here, devices = self.state(), range(self.world.layout.devices)
        tensors = [*state_here["model_buffers"], *(state_here["scale"] or ())]
        parts = [[torch.empty_like(tensor) for _ in devices] for tensor in tensors]
        with waiting_for("waits for the devices of its node"):
            for tensor, of_devices in zip(tensors, parts, strict=True):
                dist.all_gather(of_devices, tensor, group=self.world.node_cpu_group)
        states = [[of_devices[device] for of_devices in parts] for device in devices]
        buffers = len(self.buffers)
        return [
            {
                "model_buffers": state[:buffers],
                "scale": None if self.scale is None else tuple(state[buffers:]),
                "data": state_here["data"],  # all of them read the same
            }
            for state in states
        ]

    def compute(
        self, at: Tensor, number: int, group: dist.ProcessGroup | None, allow_parts: bool = False
    ) -> tuple[Gradient, Tensor]:
        if self.parts is not None:
            return self.compute_part(self.parts, at, number, group)
        hierarchy = self.world.hierarchy if group is self.world.workers else None
        if hierarchy is not None:
            group = self.world.node
        if group is None:
            return self.scaled(at, number, None, allow_parts)
        if (shared := self.world.shared_mean) is not None and group is self.world.workers:
            return self.compute_mean(shared, at, number, allow_parts)
        if at.is_cuda and not self.problem.compute.compile and self.world.shaper is None:
            return self.compute_in_blocks(at, number, group, hierarchy)
        with waiting_for(f"waits for the mean of gradient {number}"):
            if group not in self.modules:
                # The reducer rebuilds its buckets after its first pass. An extra pass makes a
                # resumed run add up in the same order.
                self.problem.gradient(
                    at,
                    [buffer.clone() for buffer in self.buffers],
                    self.rank,
                    number,
                    self.module(group),
                )
            return self.scaled(at, number, group, allow_parts, hierarchy)

    def compute_part(
        self, parts: StateParts, at: Tensor, number: int, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        """Return this device's part of a gradient; ``at`` is its part of the parameters.

        group: the same device of all nodes, to average over nodes too; any other value: only over
            this node
        """
        scale = self.scale
        if not self.in_blocks:
            parts.whole = at.new_empty(parts.numel)
            self.in_blocks[None] = InBlocks(self.problem, parts.blocks, parts.reduce, self.meter)
            self.in_blocks[None].wait_in_modules()
        model = self.in_blocks[None]
        model.arriving = parts.begin(at, parts.whole)
        gradient, loss = model.reduced(parts.whole, self.buffers, self.rank, number, self.factor)
        g = gradient[parts.where] / parts.devices
        if group is self.world.workers:
            device, what = g.device, f"waits for the mean of gradient {number}"
            with self.meter.waiting(device), waiting_for(what):
                dist.all_reduce(g, group=group)
                g /= self.world.layout.nodes
        return g if scale is None else scale.removed(g, parts.total), loss

    def compute_in_blocks(
        self,
        at: Tensor,
        number: int,
        group: dist.ProcessGroup,
        hierarchy: Hierarchy | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean gradient over ``group``, in separate memory, and the loss."""
        if group not in self.in_blocks:
            layers = self.problem.flat.layers
            self.in_blocks[group] = InBlocks(
                self.problem,
                blocks_of(layers, [slice(0, sum(layers))]),
                lambda values, block: dist.all_reduce(values, group=group, async_op=True),
                self.meter,
            )
        with waiting_for(f"waits for the mean of gradient {number}"):
            model = self.in_blocks[group]
            g, loss = model.reduced(at, self.buffers, self.rank, number, self.factor)
            g /= group.size()
            if hierarchy is not None:
                with self.meter.waiting(g.device):
                    hierarchy.average(g)
        return g if self.scale is None else self.scale.removed(g), loss

    def compute_mean(
        self, shared: SharedMean, at: Tensor, number: int, allow_parts: bool
    ) -> tuple[Gradient, Tensor]:
        """Return the mean gradient of nodes that share memory, and the loss.

        The gradient is read-only, because other nodes read parts of it in the same memory.
        """
        where = at, self.buffers, self.rank, number, self.module(None)
        with span(f"gradient {number}"):
            loss = self.problem.backward(*where, self.factor)
        parts = self.problem.flat.detach_parts()
        with (
            self.meter.waiting(torch.device("cpu")),
            waiting_for(f"waits for the mean of gradient {number}"),
        ):
            mean = shared.call(partial(shared.mean, parts))
        if self.scale is None:
            return mean if allow_parts else joined(mean), loss
        return self.scale.removed(joined(mean)), loss

    def scaled(
        self,
        at: Tensor,
        number: int,
        group: dist.ProcessGroup | None,
        allow_parts: bool,
        hierarchy: Hierarchy | None = None,
    ) -> tuple[Gradient, Tensor]:
        where = at, self.buffers, self.rank, number, self.module(group)
        with span(f"gradient {number}"):
            scale = self.scale
            if allow_parts and all(
                obstacle is None for obstacle in (scale, self.stream, hierarchy)
            ):
                loss = self.problem.backward(*where)
                return self.problem.flat.detach_large_parts(), loss
            value, loss = self.problem.gradient(*where, self.factor)
            if hierarchy is not None:
                with self.meter.waiting(value.device):
                    hierarchy.average(value)
            return value if scale is None else scale.removed(value), loss

    def module(self, group: dist.ProcessGroup | None) -> nn.Module:
        """Return a module that computes a gradient averaged over ``group``."""
        if group not in self.modules:
            module: nn.Module = self.problem.flat.module
            if group is not None:
                module = DistributedDataParallel(
                    module, process_group=group, init_sync=False, gradient_as_bucket_view=True
                )
                # The name of the constructor's argument depends on the version of PyTorch.
                module.broadcast_buffers = False
                if (shaper := self.world.shaper) is not None:
                    module.register_comm_hook(
                        group, lambda group, bucket: shaper.average(group, bucket.buffer())
                    )
            if self.problem.compute.compile:
                module = torch.compile(module)  # type: ignore[assignment]
            if group is not None:
                module.register_forward_hook(self.watch_backward)
            self.modules[group] = module
        return self.modules[group]

    def watch_backward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        """Measure the wait for averages at the end of the backward pass that starts at ``output``.

        DistributedDataParallel waits in a callback that it queues during this pass.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback
        device = torch.device(self.problem.compute.device)

        def begin() -> None:
            began = self.meter.now(device)
            queue(lambda: self.meter.add_between(began, self.meter.now(device)))

        if isinstance(output, Tensor):
            output.register_hook(lambda gradient: queue(begin))  # type: ignore[no-untyped-call]

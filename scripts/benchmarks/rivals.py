"""Other libraries, and `sgp_runner.Averager`, used as in their documentation.

The model, optimizer, data and batches come from the settings of an ``sgp-run`` command.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

from sgp_runner.assembly.build import build_problem
from sgp_runner.config.overrides import experiment_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import SGD

    from sgp_runner import Averager
    from sgp_runner.config.experiment import Experiment
    from sgp_runner.core.problem import Problem
    from sgp_runner.data.dataset import Batch

Step = Callable[[int], "Tensor"]  # number of the step -> loss
ATTEMPTS = count()


def ddp(problem: Problem, rank: int, sgd: Callable[..., SGD]) -> Step:
    """Return a step of AR-SGD with PyTorch's DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    return loop(problem, rank, DistributedDataParallel(problem.flat.module), sgd)


def plain(problem: Problem, rank: int, sgd: Callable[..., SGD]) -> Step:
    """Return a step of SGD with PyTorch alone, on one device."""
    import torch

    layout = torch.channels_last if problem.compute.channels_last else torch.preserve_format
    return loop(problem, rank, problem.flat.module.to(memory_format=layout), sgd)


def loop(
    problem: Problem,
    rank: int,
    net: nn.Module,
    sgd: Callable[..., SGD | Averager],
    mix: Callable[[SGD | Averager], None] = lambda _: None,
) -> Step:
    """Return a step as in PyTorch's tutorials, followed by a call to ``mix``."""
    optimizer = sgd(net.parameters())

    def step(number: int) -> Tensor:
        loss = problem.loss(net, problem.batch(rank, number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mix(optimizer)
        return loss.detach()

    return step


@contextmanager
def averager(problem: Problem, rank: int, sgd: Callable[..., SGD]) -> Iterator[Step]:
    """Enter a step of SGP with `sgp_runner.Averager` in PyTorch's loop."""
    from sgp_runner import Averager

    net = problem.flat.module
    optimizer = Averager("sgp", net, sgd(net.parameters()))
    yield loop(problem, rank, net, lambda _: optimizer)
    optimizer.finish()


def fairscale(problem: Problem, rank: int, sgd: Callable[..., SGD]) -> Step:
    """Return a step of SGP with fairscale, on a directed exponential graph with one peer.

    fairscale calls CUDA functions even on CPUs; they are replaced by functions that do nothing.
    """
    from fairscale.experimental.nn.data_parallel import (
        SlowMoBaseAlgorithm,
        SlowMoDistributedDataParallel,
    )

    # The patches stay until the process ends: fairscale's gossip thread calls these functions too.
    for name in ("cuda", "pin_memory"):
        patch(f"torch.Tensor.{name}", lambda tensor: tensor).start()
    for name in ("current_stream", "stream", "synchronize"):
        patch(f"torch.cuda.{name}", MagicMock()).start()
    net = SlowMoDistributedDataParallel(
        problem.flat.module,
        1,
        slowmo_base_algorithm=SlowMoBaseAlgorithm.SGP,
        slowmo_momentum=0.0,
        slowmo_memory_efficient=False,
    )
    return loop(problem, rank, net, sgd, net.perform_slowmo)


def decent_dp(problem: Problem, rank: int, sgd: Callable[..., SGD]) -> Step:
    """Return a step of D-PSGD with decent-dp, on a one-peer exponential graph, with overlap."""
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    net = DecentralizedDataParallel(
        problem.flat.module,
        lambda named: sgd([parameter for _, parameter in named]),
        topology="one-peer-exp",
        _local_world_size=1,
    )

    def step(number: int) -> Tensor:
        loss = problem.loss(net, problem.batch(rank, number))
        net.zero_grad()
        loss.backward()
        return loss.detach()

    return step


def train(
    make: Callable[..., Step | AbstractContextManager[Step]],
    overrides: Sequence[str],
    steps: int,
    fused: bool = False,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> dict[str, float]:
    """Train as a rank: do ``steps`` untimed steps, then time another ``steps`` steps.

    fused: whether PyTorch's optimizer uses its fused kernel
    around: returns a context manager for the timed steps
    """
    import torch.distributed as dist
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from sgp_runner.assembly.networks.gloo import Gloo
    from sgp_runner.assembly.networks.nccl import Nccl
    from sgp_runner.core.problem import Compute

    experiment: Experiment = experiment_of(overrides)
    network, optim = experiment.run.network, experiment.run.optim
    assert isinstance(network, Gloo | Nccl)
    device = "cuda:0" if isinstance(network, Nccl) else "cpu"
    problem = build_problem(
        experiment.run,
        Compute(device, network.autocast, network.channels_last, network.compile),
    )
    sgd = optimizer_of(optim, fused)
    store, rank, size = next(rendezvous("env://", timeout=timedelta(minutes=5)))
    dist.init_process_group(
        "gloo", store=PrefixStore(f"rival {next(ATTEMPTS)}", store), rank=rank, world_size=size
    )
    try:
        result = make(problem, rank, sgd)
        with result if isinstance(result, AbstractContextManager) else nullcontext(result) as step:
            problem.flat.module.train()
            for number in range(steps):
                step(number)
            settle(device)
            with around():
                start = time.monotonic()
                for number in range(steps, 2 * steps):
                    loss = step(number)
                settle(device)
                seconds = time.monotonic() - start
        dist.barrier()
        # If the reducer of DDP were the last owner of the group, it would wait for the group's
        # threads while it holds the lock of the interpreter, which they may wait for.
        del result, step
        gc.collect()
    finally:
        dist.destroy_process_group()
    return {"seconds": seconds / steps, "loss": float(loss)}


def optimizer_of(optim: Any, fused: bool) -> Callable[..., Any]:
    """Return PyTorch's SGD or AdamW, with the same settings as ours."""
    import torch

    common = {"lr": optim.lr, "weight_decay": optim.weight_decay, "fused": fused or None}
    if optim.name == "adamw":
        betas = (optim.beta1, optim.beta2)
        return partial(torch.optim.AdamW, betas=betas, eps=optim.eps, **common)
    return partial(torch.optim.SGD, momentum=optim.momentum, nesterov=optim.nesterov, **common)


class Resident:
    """The first batches of the training data, kept on the device.

    Inside its context, every `Problem` with this data set cycles through them, and no step waits
    for data.
    """

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.batches: dict[tuple[int, int], Batch] = {}

    def batch(self, problem: Problem, rank: int, step: int) -> Batch:
        key = rank, step % self.count
        if key not in self.batches:
            self.batches[key] = problem.loaded(*key)
        return self.batches[key]

    @contextmanager
    def read(self) -> Iterator[None]:
        from sgp_runner.core.problem import Problem

        def batch(problem: Problem, rank: int, step: int) -> Batch:
            return self.batch(problem, rank, step)

        with patch.object(Problem, "batch", batch):
            yield


def settle(device: str) -> None:
    """Wait until the device has finished all queued work."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)

"""What is being learned: model, data and loss, as functions of (worker, step)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Literal

from sgp_runner.core.flat import FlatModule
from sgp_runner.data.dataset import read
from sgp_runner.data.sampler import Sampler
from sgp_runner.utils.place import WHOLE, Part
from sgp_runner.utils.seeding import generator, seed_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sgp_runner.data.dataset import Batch, DataConfig, Dataset
    from sgp_runner.models.config import ModelConfig

# Streams of random numbers that must not coincide.
_INIT, _DROPOUT, _RE_ESTIMATE, _AUGMENT = 101, 102, 103, 104
RE_ESTIMATED = 5000  # samples at most, of the training set


@dataclass(frozen=True)
class Compute:
    """Where and how gradients are computed; evaluation is in full precision and not compiled.

    autocast: what the forward pass is cast to, ``none``, ``bf16`` or ``fp16``. channels_last: of
    images. compile: with torch.compile.
    """

    device: str = "cpu"
    autocast: Literal["none", "bf16", "fp16"] = "none"
    channels_last: bool = False
    compile: bool = False


ON_CPU = Compute()


@dataclass(frozen=True)
class Problem:
    """One model on one data set, divided among ``workers``. Only one caller at a time may use the
    module.

    part: of every batch, that is read here.
    """

    flat: FlatModule
    dataset: Dataset
    sampler: Sampler
    seed: int
    trains: bool  # False for timing studies, which have no gradients
    vectorizes: bool
    compute: Compute = ON_CPU
    part: Part = WHOLE

    def batch(self, rank: int, step: int) -> Batch:
        """The batch of worker ``rank`` for its own ``step``, or the part of it that is read here."""
        train = self.dataset.train
        requests = [self.request(rank, later) for later in range(step, step + 1 + train.ahead)]
        for request in requests:
            train.prepare(*request)
        inputs, targets = train.batch(*requests[0])
        return tuple(map(self.placed, inputs)), self.placed(targets)

    def warm_up(self, rank: int) -> None:
        """Start what reads the data ahead, so that it is no part of the training time."""
        if self.dataset.train.ahead:
            self.dataset.train.batch(*self.request(rank, 0))

    def request(self, rank: int, step: int) -> tuple[Tensor, int]:
        """The samples that are read here (one that counts for nothing, if there are fewer than
        devices), and what augments them.
        """
        indices = self.sampler.indices(rank, step)
        mine = indices[self.part.of(len(indices))]
        return mine if len(mine) else indices[:1], seed_of(self.seed, _AUGMENT, rank, step)

    def placed(self, t: Tensor) -> Tensor:
        """On the device, without waiting for it, and in the order that its convolutions like."""
        import torch

        if self.compute.device != "cpu":
            t = t.pin_memory().to(self.compute.device, non_blocking=True)
        return (
            t.contiguous(memory_format=torch.channels_last)
            if self.compute.channels_last and t.dim() == 4
            else t
        )

    def dropout_seed(self, rank: int, step: int) -> int:
        """Devices of one node drop different elements; the first one those that a node of one
        device would drop.
        """
        return seed_of(
            self.seed, _DROPOUT, rank, step, *([self.part.index] if self.part.index else [])
        )

    def start(self) -> Tensor:
        """The initial parameters [D], the same on every worker."""
        return self.flat.vector()

    def gradient(
        self,
        params: Tensor,
        buffers: list[Tensor],
        rank: int,
        step: int,
        module: nn.Module | None = None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradient [D] and loss [] of one batch; BatchNorm's running statistics in ``buffers`` are
        updated.

        module: to be called instead of the model itself, which it wraps. scale: [] of the gradient
        that is returned.
        """
        bound = self.flat.bind(params, buffers).train()
        self.flat.set_dropout_seed(buffers, self.dropout_seed(rank, step))
        loss = self.loss(bound if module is None else module, self.batch(rank, step))
        weight = self.sampler.weight(rank, step, self.part)
        (loss * (weight if scale is None else weight * scale)).backward()  # type: ignore[no-untyped-call]
        return self.flat.take_gradient(), loss.detach()

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        import torch

        inputs, targets = batch
        autocast = self.compute.autocast
        dtype = torch.float16 if autocast == "fp16" else torch.bfloat16
        with torch.autocast(
            torch.device(self.compute.device).type, dtype, enabled=autocast != "none"
        ):
            return self.dataset.task.loss(module(*inputs), targets)

    def evaluate(self, params: Tensor, buffers: list[Tensor]) -> dict[str, float]:
        """Metrics of one model on the whole validation set."""
        import torch

        module = self.flat.bind(params, buffers).eval()
        with torch.no_grad():
            return self.dataset.task.evaluate(module, self.dataset.valid)

    def evaluate_re_estimated(self, params: Tensor) -> dict[str, float]:
        """Metrics of ``params`` [D], with BatchNorm statistics (an average has none) re-estimated
        on `RE_ESTIMATED` training samples.
        """
        import torch
        from torch.optim.swa_utils import update_bn

        buffers = self.flat.fresh_buffers()
        module = self.flat.bind(params, buffers)
        train = self.dataset.train
        if self.flat.has_batch_norm:
            order = torch.randperm(len(train), generator=generator(self.seed, _RE_ESTIMATE))[
                :RE_ESTIMATED
            ]
            batches = order.chunk(ceil(len(order) / 128))  # alike, as each counts as much
            update_bn(
                (inputs for inputs, _ in read(train, batches)),
                module,
                torch.device(self.compute.device),
            )
        return self.evaluate(params, buffers)

    def among(self, workers: int, batch_size: int) -> Problem:
        """The same data, divided among another number of workers."""
        return replace(
            self,
            sampler=self.dataset.partition.sampler(
                self.dataset.train, workers, batch_size, self.seed
            ),
        )

    def close(self) -> None:
        """End what reads the data."""
        self.dataset.train.close()
        self.dataset.valid.close()


def make_problem(
    model: ModelConfig,
    data: DataConfig,
    *,
    workers: int,
    batch_size: int,
    seed: int,
    dtype: torch.dtype,
    compute: Compute = ON_CPU,
) -> Problem:
    """Load the data and build the model; the initial parameters depend on ``seed`` alone."""
    import torch

    dataset = data.load(dtype)
    sampler = dataset.partition.sampler(dataset.train, workers, batch_size, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, _INIT))
        module = model.build(dataset)
        if dataset.pixels is not None:
            from sgp_runner.models.vision import Normalise

            module = torch.nn.Sequential(Normalise(dataset.pixels), module)
        module = module.to(compute.device, dtype)
    return Problem(
        FlatModule(module), dataset, sampler, seed, model.trains, model.vectorizes, compute
    )

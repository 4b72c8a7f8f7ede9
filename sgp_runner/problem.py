"""What is being learned: model, data and loss, as functions of (worker, step)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.data.sampler import Sampler, partition_of
from sgp_runner.flat import FlatModule
from sgp_runner.seeding import generator, seed_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sgp_runner.data.dataset import Batch, DataConfig, Dataset
    from sgp_runner.models.config import ModelConfig

# Streams of random numbers that must not coincide.
_INIT, _DROPOUT, _RE_ESTIMATE = 101, 102, 103


@dataclass(frozen=True)
class Problem:
    """One model on one data set, divided among ``workers``. Only one caller at a time may use the module."""

    flat: FlatModule
    dataset: Dataset
    sampler: Sampler
    seed: int
    trains: bool  # False for timing studies, which have no gradients
    vectorizes: bool
    wire_scale: float  # parameters that one element of a message stands for

    def batch(self, rank: int, step: int) -> Batch:
        """The batch of worker ``rank`` for its own ``step``."""
        return self.dataset.train.batch(self.sampler.indices(rank, step))

    def dropout_seed(self, rank: int, step: int) -> int:
        return seed_of(self.seed, _DROPOUT, rank, step)

    def start(self) -> Tensor:
        """The initial parameters [D], the same on every worker."""
        return self.flat.vector()

    def gradient(self, params: Tensor, buffers: list[Tensor], rank: int, step: int) -> tuple[Tensor, float]:
        """Gradient [D] and loss of one batch; BatchNorm's running statistics in ``buffers`` are updated."""
        import torch

        module = self.flat.bind(params, buffers).train()
        self.flat.set_dropout_seed(buffers, self.dropout_seed(rank, step))
        loss = self.loss(module, self.batch(rank, step))
        parts = torch.autograd.grad(loss, self.flat.parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts]), float(loss.detach())

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return self.dataset.task.loss(module(*inputs), targets)

    def evaluate(self, params: Tensor, buffers: list[Tensor]) -> dict[str, float]:
        """Metrics of one model on the whole validation set."""
        import torch

        module = self.flat.bind(params, buffers).eval()
        with torch.no_grad():
            return self.dataset.task.evaluate(module, self.dataset.valid)

    def evaluate_re_estimated(self, params: Tensor) -> dict[str, float]:
        """Metrics of ``params`` [D] with BatchNorm statistics re-estimated on 512 training samples (an average has none)."""
        import torch
        from torch.optim.swa_utils import update_bn

        buffers = self.flat.fresh_buffers()
        module = self.flat.bind(params, buffers)
        train = self.dataset.train
        if self.flat.has_batch_norm:
            order = torch.randperm(len(train), generator=generator(self.seed, _RE_ESTIMATE))[:512]
            update_bn([train.batch(part)[0] for part in order.chunk(4)], module)
        return self.evaluate(params, buffers)


def make_problem(model: ModelConfig, data: DataConfig, *, workers: int, batch_size: int, seed: int, dtype: torch.dtype) -> Problem:
    """Load the data and build the model; the initial parameters depend on ``seed`` alone."""
    import torch

    dataset = data.load(dtype)
    sampler = partition_of(data).sampler(dataset.train, workers, batch_size, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, _INIT))
        module = model.build(dataset).to(dtype)
    return Problem(FlatModule(module), dataset, sampler, seed, model.trains, model.vectorizes, model.wire_scale)

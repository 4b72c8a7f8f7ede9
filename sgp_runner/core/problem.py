"""The learning problem: model, data and loss, as functions of (worker, step)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from sgp_runner.core.flat import FlatModule, to_device
from sgp_runner.core.prefetch import Prefetcher
from sgp_runner.data.dataset import Batch, DataConfig, Dataset, read
from sgp_runner.data.sampler import Sampler, ShardSampler
from sgp_runner.data.tasks import Summed, Translation, added
from sgp_runner.models.config import ModelConfig
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import generator, seed_of
from sgp_runner.utils.shard import WHOLE, Shard

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


# Streams of random numbers that must not coincide.
_INIT, _DROPOUT, _RE_ESTIMATE, _AUGMENT = 101, 102, 103, 104
RE_ESTIMATED = 5000  # training samples at most
LARGE = 2_000_000  # parameters
LARGE_CHUNK = 64  # samples per forward pass of an evaluation of a large model on a CPU


@dataclass(frozen=True)
class Compute:
    """Where and how gradients are computed.

    Gradients in float32 follow PyTorch's defaults on a GPU, where convolutions round to TF32.
    Evaluation is in full precision (`full_precision`) and not compiled.

    autocast: type of the forward pass, ``none``, ``bf16`` or ``fp16``; ``auto``, which a run
        resolves beforehand, counts as ``none``.
    channels_last: memory format of images and convolutions, if the model has any; ``auto``, which a
        run resolves beforehand, counts as false. Parameters stay contiguous, so that the vector
        that algorithms, codecs and checkpoints see has the same order on every device; a
        convolution converts its own parameters, which are small compared to its images.
    compile: whether to use torch.compile.
    deterministic: whether a GPU must give bitwise reproducible results, without TF32.
    """

    device: str = "cpu"
    autocast: Literal["auto", "none", "bf16", "fp16"] = "none"
    channels_last: bool | Literal["auto"] = False
    compile: bool = False
    deterministic: bool = False

    def autocasting(self) -> AbstractContextManager[object]:
        """Return a context manager that applies autocast to the forward pass."""
        import torch

        return torch.autocast(
            torch.device(self.device).type,
            torch.float16 if self.autocast == "fp16" else torch.bfloat16,
            enabled=self.autocast in ("bf16", "fp16"),
        )


ON_CPU = Compute()


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Disable TF32 on a GPU, which PyTorch uses in float32 convolutions by default."""
    import torch

    cudnn = torch.backends.cudnn
    operations: list[Any] = [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]  # type: ignore[attr-defined]

    def set_all(precisions: Sequence[str]) -> None:
        cudnn.allow_tf32 = precisions[0] == "tf32"  # PyTorch reads it, and refuses if they differ
        for operation, precision in zip(operations, precisions, strict=True):
            operation.fp32_precision = precision

    if device == "cpu":
        yield
        return
    before = [operation.fp32_precision for operation in operations]
    try:
        set_all(["ieee"] * 3)
        yield
    finally:
        set_all(before)


@dataclass(frozen=True)
class Problem:
    """A model and a data set that is divided among workers.

    Only one caller at a time may use the module.

    part: the part of every batch that this device reads.
    sums_of: computes `sums` of all `chunks` from parameters [D] and buffers, in parallel.
    initial: the parameters [D] of a timing study; None: the module's.
    micro_batch: samples of each forward and backward pass; None: the whole batch.
    prefetcher: loads the next batch during a gradient; None: `batch` loads it.
    """

    flat: FlatModule
    dataset: Dataset
    sampler: Sampler
    seed: int
    trains: bool  # False for timing studies, which have no gradients
    vectorizes: bool
    compute: Compute = ON_CPU
    part: Shard = WHOLE
    sums_of: Callable[[Tensor, list[Tensor]], list[Sequence[float]]] | None = None
    initial: Tensor | None = None
    micro_batch: int | None = None
    prefetcher: Prefetcher | None = None

    def batch(self, rank: int, step: int) -> Batch:
        """Return this device's part of the batch of worker ``rank`` in its ``step``."""
        if self.prefetcher is None or self.dataset.train.draws_from_torch:
            return self.loaded(rank, step)
        return self.prefetcher.batch(self.loaded, rank, step)

    def loaded(self, rank: int, step: int) -> Batch:
        """Load `batch` from the data set."""
        inputs, targets = self.on_host(rank, step)
        return tuple(map(self.placed, inputs)), self.placed(targets)

    def on_host(self, rank: int, step: int) -> Batch:
        """Return `batch` in host memory."""
        train = self.dataset.train
        requests = [self.request(rank, later) for later in range(step, step + 1 + train.ahead)]
        for request in requests:
            train.prepare(*request)
        return train.batch(*requests[0])

    def warm_up(self, rank: int) -> None:
        """Start the data-loading processes before the training time is measured."""
        if self.dataset.train.ahead:
            self.dataset.train.batch(*self.request(rank, 0))

    def request(self, rank: int, step: int) -> tuple[Tensor, int]:
        """Return the indices of the samples that this device reads, and their augmentation seed.

        If a batch has no sample for this device, it reads one sample with weight zero.
        """
        indices = self.sampler.indices(rank, step)
        mine = indices[self.part.of(len(indices))]
        return mine if len(mine) else indices[:1], seed_of(self.seed, _AUGMENT, rank, step)

    def placed(self, t: Tensor) -> Tensor:
        """Copy a tensor to the device without blocking, in the memory format of the convolutions.

        PyTorch reuses the pinned memory of the source once the device has read it.
        """
        import torch

        t = to_device(t, self.compute.device)
        return (
            t.contiguous(memory_format=torch.channels_last)
            if self.compute.channels_last is True and t.dim() == 4
            else t
        )

    def examples(self, rank: int) -> float:
        """Return the number of examples in a worker's shard relative to the mean of all shards."""
        if not isinstance(self.sampler, ShardSampler):
            return 1.0
        sizes = [len(shard) for shard in self.sampler.shards]
        return sizes[rank] * len(sizes) / sum(sizes)

    def dropout_seed(self, rank: int, step: int, piece: int = 0) -> int:
        """Return the dropout seed of a step on this device.

        Devices of one node drop different elements; the first device drops the same as a node's
        only device.
        """
        of_device = [self.part.index] if self.part.index or piece else []
        return seed_of(self.seed, _DROPOUT, rank, step, *of_device, *([piece] if piece else []))

    def start(self) -> Tensor:
        """Return the initial parameters [D], the same on every worker."""
        return self.flat.vector() if self.initial is None else self.initial.clone()

    def gradient(
        self,
        params: Tensor,
        buffers: list[Tensor],
        rank: int,
        step: int,
        module: nn.Module | None = None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return gradient [D] and loss [] of one batch; update BatchNorm statistics in ``buffers``.

        module: wrapper to call instead of the model. scale: [], factor of the returned gradient.
        """
        where = params, buffers, rank, step, module, scale
        if not params.is_cuda or hasattr(module, "no_sync"):  # it has gradients in its buckets
            loss = self.backward(*where)
            return self.flat.detach_gradient(), loss
        gradient = params.new_empty(params.shape)
        with self.flat.gathering(gradient):
            return gradient, self.backward(*where)

    def backward(
        self,
        params: Tensor,
        buffers: list[Tensor],
        rank: int,
        step: int,
        module: nn.Module | None = None,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Return the loss like `gradient`, but leave the gradient in ``flat.parameters``."""
        bound = self.flat.bind(params, buffers)
        if not bound.training:  # else all modules of it are in this mode already
            bound.train()
        called = bound if module is None else module
        weight = self.sampler.weight(rank, step, self.part)
        losses = []
        pieces = self.pieces(self.batch(rank, step))
        for number, (piece, share) in enumerate(pieces, start=1):
            self.flat.set_dropout_seed(buffers, self.dropout_seed(rank, step, number - 1))
            # Data parallelism averages with the last piece what all of them have added up.
            more = number < len(pieces)
            with getattr(called, "no_sync", nullcontext)() if more else nullcontext():
                loss = self.loss(called, piece)
                factor = weight * share if scale is None else weight * share * scale
                (loss * factor).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach() if len(pieces) == 1 else loss.detach() * share)
        return sum(losses[1:], start=losses[0])

    def pieces(self, batch: Batch) -> list[tuple[Batch, float | Tensor]]:
        """Cut a batch into pieces of `micro_batch` samples.

        Each is paired with its share of the samples or tokens in the loss.
        """
        import torch

        inputs, targets = batch
        if self.micro_batch is None or len(targets) <= self.micro_batch:
            return [(batch, 1.0)]
        count = getattr(self.dataset.task, "count", len)
        parts = [torch.split(tensor, self.micro_batch) for tensor in (*inputs, targets)]
        return [
            ((tuple(of_inputs), of_targets), count(of_targets) / count(targets))
            for *of_inputs, of_targets in zip(*parts, strict=True)
        ]

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        with self.compute.autocasting():
            return self.dataset.task.loss(module(*inputs), targets)

    def evaluate(self, params: Tensor, buffers: list[Tensor]) -> dict[str, float]:
        """Return the metrics of one model on the whole validation set."""
        import torch

        task, valid = self.dataset.task, self.dataset.valid
        with full_precision(self.compute.device), torch.no_grad():
            if isinstance(task, Summed):
                sums = self.sums_of or self.sums
                return task.metrics(added(sums(params, buffers)), len(valid))
            return task.evaluate(self.flat.bind(params, buffers).eval(), valid)

    def translations(self, params: Tensor) -> dict[str, object]:
        """Return ``translations`` of a few unseen sentences by a model [D], if it translates."""
        import torch

        task = self.dataset.task
        if not isinstance(task, Translation):
            return {}
        with full_precision(self.compute.device), torch.no_grad():
            module = self.flat.bind(params, self.flat.fresh_buffers()).eval()
            return {"translations": task.examples(module, self.dataset.valid)}

    @property
    def is_large(self) -> bool:
        return sum(self.flat.layers) >= LARGE

    @property
    def chunks(self) -> Sequence[Tensor]:
        """The validation samples of each forward pass; empty if the task is not `Summed`."""
        import torch

        task, valid = self.dataset.task, self.dataset.valid
        if not isinstance(task, Summed):
            return ()
        most = LARGE_CHUNK if self.is_large and self.compute.device == "cpu" else task.chunk
        return torch.split(torch.arange(len(valid)), min(task.chunk, most))

    def sums(
        self, params: Tensor, buffers: list[Tensor], only: slice = slice(None)
    ) -> list[Sequence[float]]:
        """Return the sums of each of the `chunks`, or of the slice ``only`` of them."""
        import torch

        task = self.dataset.task
        assert isinstance(task, Summed)
        device = self.compute.device
        module = self.flat.bind(params, buffers).eval()
        with torch.no_grad():
            return [
                task.sums(module, (tuple(t.to(device) for t in inputs), targets.to(device)))
                for inputs, targets in read(self.dataset.valid, self.chunks[only])
            ]

    def evaluate_re_estimated(self, params: Tensor) -> dict[str, float]:
        """Return the metrics of averaged ``params`` [D].

        An average has no BatchNorm statistics, so they are re-estimated on `RE_ESTIMATED` training
        samples.
        """
        import torch
        from torch.optim.swa_utils import update_bn

        buffers = self.flat.fresh_buffers()
        module = self.flat.bind(params, buffers)
        train = self.dataset.train
        if self.flat.has_batch_norm:
            random = generator(self.seed, _RE_ESTIMATE)
            self.flat.set_dropout_seed(buffers, seed_of(self.seed, _RE_ESTIMATE))
            order = torch.randperm(len(train), generator=random)[:RE_ESTIMATED]
            batches = order.chunk(ceil(len(order) / 128))  # of equal size: they have equal weight
            with full_precision(self.compute.device):
                update_bn(
                    (inputs for inputs, _ in read(train, batches)),
                    module,
                    torch.device(self.compute.device),
                )
        return self.evaluate(params, buffers)

    def on_device(self, part: Shard) -> Problem:
        """Return the problem for a device that reads ``part``; batches for a GPU are prefetched."""
        device = self.compute.device
        return replace(self, part=part, prefetcher=None if device == "cpu" else Prefetcher(device))

    def subset(self, workers: int, batch_size: int) -> Problem:
        """Return the same problem with the data divided among ``workers`` workers."""
        return replace(
            self,
            sampler=self.dataset.partition.sampler(
                self.dataset.train, workers, batch_size, self.seed
            ),
        )

    def close(self) -> None:
        """Stop the prefetching thread and the data-loading processes."""
        if self.prefetcher is not None:
            self.prefetcher.close()
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
    micro_batch: int | None = None,
) -> Problem:
    """Load the data and build the model; the initial parameters depend only on ``seed``."""
    import torch

    dataset = data.load(dtype)
    for split, kind in ((dataset.train, "training"), (dataset.valid, "validation")):
        if not len(split):
            raise ConfigError("data", f"{dataset.name} has no {kind} samples.")
    sampler = dataset.partition.sampler(dataset.train, workers, batch_size, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, _INIT))
        module = model.build(dataset)
        if dataset.pixels is not None:
            from sgp_runner.models.vision import Normalise

            module = torch.nn.Sequential(Normalise(dataset.pixels), module)
        if compute.channels_last is True:
            from sgp_runner.models.dropout import is_alone
            from sgp_runner.models.vision import convolve_channels_last

            compute = replace(compute, channels_last=convolve_channels_last(module, is_alone))
        module = module.to(compute.device, dtype).train()
    return Problem(
        FlatModule(module),
        dataset,
        sampler,
        seed,
        model.trains,
        model.vectorizes,
        compute,
        micro_batch=micro_batch,
    )

"""Samplers: the samples of a worker at a step are a pure function of (seed, worker, step)."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.seeding import seed_of
from sgp_runner.utils.shard import Shard

if TYPE_CHECKING:
    from torch import Tensor


#: The settings ``partition`` of data with classes, and of data with documents.
LabelPartition: TypeAlias = Literal["iid", "dirichlet", "dirichlet_equal", "by_label"]
DocumentPartition: TypeAlias = Literal["iid", "dirichlet", "dirichlet_equal", "by_document"]

# Streams of random numbers that must not coincide for equal (worker, epoch).
_EPOCH_ORDER, _DEAL, _SHARD_ORDER, WINDOW_ORDER = 1, 2, 3, 4


class Sampler(Protocol):
    """The order in which every worker reads its samples."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps of each worker per epoch; incomplete batches are dropped.

        In an epoch, all workers together read the training set once. In a timing study, the number
        may be fractional.
        """

    def indices(self, worker: int, step: int) -> Tensor:
        """Return the sample indices (int64 [B]) of ``worker`` at its ``step``; both start at 0."""

    def weight(self, worker: int, step: int, part: Shard) -> float:
        """Return the weight of the mean loss over ``part`` of the samples of `indices`.

        The loss of a step is the average of the weighted losses over all parts and workers.
        """


class Labelled(Protocol):
    """Samples to be divided; ``labels`` [N] is None if the samples have no classes."""

    @property
    def labels(self) -> Tensor | None: ...
    def __len__(self) -> int: ...


class Partition(Protocol):
    """Rule that divides the training set among the workers."""

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> Sampler:
        """Return the sampler of ``split``.

        Raises ConfigError for less than one batch per worker.
        """


@dataclass(frozen=True)
class IID:
    """Partition that deals a new permutation of the whole set to the workers every epoch."""

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> Sampler:
        steps = full_steps(len(split), workers, batch_size)
        return IIDSampler(len(split), workers, batch_size, seed, steps)


@dataclass(frozen=True)
class Dirichlet:
    """Fixed shards by label (Hsu et al. 2019), drawn once from the run's seed.

    alpha: concentration; smaller = fewer labels per worker
    equal: true: shards of equal size (`deal_equally`); false: unequal sizes (`deal`)

    Each worker reads its shard repeatedly, in a new order each time. A batch may span two passes.
    """

    alpha: float = 0.1
    equal: bool = False

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError("data.alpha", f"{self.alpha} must be above 0. Use data.alpha=0.1.")

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> Sampler:
        steps = full_steps(len(split), workers, batch_size)
        labels = labels_for(split, "dirichlet")
        if self.equal:
            shards = deal_equally(labels, workers, self.alpha, seed)
        else:
            shards = deal(labels, workers, batch_size, self.alpha, seed)
        return ShardSampler(shards, batch_size, seed, steps)


@dataclass(frozen=True)
class ByLabel:
    """Fixed shards of consecutive labels.

    whole: true: no label is divided (`whole_labels`), so sizes differ; false: the samples, in the
        order of their labels, are cut into equal shards (McMahan et al. 2017)
    """

    whole: bool = False

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> Sampler:
        steps = full_steps(len(split), workers, batch_size)
        labels = labels_for(split, "by_document" if self.whole else "by_label")
        if not self.whole:
            order = labels.argsort(stable=True)[: len(split) // workers * workers]
            return ShardSampler(order.chunk(workers), batch_size, seed, steps)
        shards = whole_labels(labels, workers)
        if (least := min(map(len, shards))) < batch_size:
            raise ConfigError(
                "batch_size",
                f"the smallest node's documents have {least} samples: use a smaller batch, fewer "
                "nodes, or data.partition=iid.",
            )
        return ShardSampler(tuple(shards), batch_size, seed, steps)


def whole_labels(labels: Tensor, workers: int) -> list[Tensor]:
    """Divide ``range(len(labels))`` into a shard (int64) for each worker, keeping labels whole.

    The labels are dealt from the most to the least frequent, each to the worker with the fewest
    samples (ties: the lower label or worker). Raises ConfigError if there are too few.
    """
    import torch

    counts = Counter(sorted(labels.tolist()))
    if len(counts) < workers:
        raise ConfigError(
            "nodes",
            f"{len(counts)} documents are too few for {workers} nodes: use fewer nodes, or "
            "data.partition=dirichlet.",
        )
    sizes, owner = [0] * workers, {}
    for label, count in counts.most_common():
        owner[label] = sizes.index(min(sizes))
        sizes[owner[label]] += count
    owners = torch.tensor([owner[label] for label in labels.tolist()])
    return [(owners == worker).nonzero().flatten() for worker in range(workers)]


def partition_of(name: str, alpha: float) -> Partition:
    """Return the partition for the settings ``partition`` and ``alpha`` of a data set."""
    match name:
        case "iid":
            return IID()
        case "dirichlet" | "dirichlet_equal":
            return Dirichlet(alpha, equal=name == "dirichlet_equal")
        case "by_label" | "by_document":
            return ByLabel(whole=name == "by_document")
        case _:
            names = ["iid", "dirichlet", "dirichlet_equal", "by_label", "by_document"]
            hint = nearest(str(name), names)
            raise ConfigError("data.partition", f"'{name}' is not one of {', '.join(names)}.{hint}")


@dataclass(frozen=True)
class IIDSampler:
    """Sampler of `IID`."""

    samples: int
    workers: int
    batch_size: int
    seed: int
    steps_per_epoch: int

    def indices(self, worker: int, step: int) -> Tensor:
        epoch, r = divmod(step, self.steps_per_epoch)
        start = (r * self.workers + worker) * self.batch_size
        order = _permutation(self.samples, seed_of(self.seed, _EPOCH_ORDER, epoch))
        return order[start : start + self.batch_size]

    def weight(self, worker: int, step: int, part: Shard) -> float:
        return 1.0


@dataclass(frozen=True)
class ShardSampler:
    """Sampler of fixed shards."""

    shards: tuple[Tensor, ...]  #: int64 [>= batch_size] per worker
    batch_size: int
    seed: int
    steps_per_epoch: int

    def indices(self, worker: int, step: int) -> Tensor:
        import torch

        shard = self.shards[worker]
        number, start = divmod(step * self.batch_size, len(shard))
        batch = self._pass(worker, number)[start : start + self.batch_size]
        missing = self.batch_size - len(batch)
        # A shard is never shorter than a batch, so a batch touches two passes at most.
        return (
            batch if missing == 0 else torch.cat([batch, self._pass(worker, number + 1)[:missing]])
        )

    def weight(self, worker: int, step: int, part: Shard) -> float:
        return 1.0

    def _pass(self, worker: int, number: int) -> Tensor:
        shard = self.shards[worker]
        return shard[_permutation(len(shard), seed_of(self.seed, _SHARD_ORDER, worker, number))]


@dataclass(frozen=True)
class TokenSampler:
    """Sampler that deals batches of different lengths, planned once, in a new order every epoch.

    The gradients of a step are normalised by the number of target tokens of all workers (Ott et al.
    2018): the mean over a batch is weighted by the batch's share of these tokens, so every token
    counts the same. Normalisation needs no communication, because all workers know the plan. If an
    algorithm has no global update, the mean of its workers' models still moves as with an exact
    all-reduce. Asynchronous workers normalise by the tokens of all batches with the same step
    number.
    """

    batches: tuple[Tensor, ...]  #: indices, int64 [B]
    tokens: Tensor  #: int64 [N], per sample
    workers: int
    seed: int

    @functools.cached_property
    def batch_tokens(self) -> list[int]:
        return [int(self.tokens[batch].sum()) for batch in self.batches]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batches) // self.workers

    def indices(self, worker: int, step: int) -> Tensor:
        return self.batches[self.row(step)[worker]]

    def weight(self, worker: int, step: int, part: Shard) -> float:
        indices = self.indices(worker, step)
        tokens = int(self.tokens[indices[part.of(len(indices))]].sum())
        return (
            tokens
            * self.workers
            * part.count
            / sum(self.batch_tokens[batch] for batch in self.row(step))
        )

    def row(self, step: int) -> list[int]:
        """Return the indices of the batches of all workers at ``step``."""
        epoch, r = divmod(step, self.steps_per_epoch)
        order = _permutation(len(self.batches), seed_of(self.seed, _EPOCH_ORDER, epoch))
        numbers: list[int] = order[r * self.workers : (r + 1) * self.workers].tolist()
        return numbers


def deal(
    labels: Tensor, workers: int, at_least: int, alpha: float, seed: int
) -> tuple[Tensor, ...]:
    """Divide ``range(len(labels))`` into disjoint shards (int64) of unequal sizes.

    The samples of each label are divided among the workers in proportions drawn from
    Dirichlet(alpha, ..., alpha). Then, while any shard has fewer than ``at_least`` samples, one
    sample moves from the largest to the smallest shard (ties: the lower worker).
    """
    import numpy
    import torch

    rng = numpy.random.default_rng(seed_of(seed, _DEAL))
    shards: list[list[int]] = [[] for _ in range(workers)]
    for label in sorted(set(labels.tolist())):
        mine = (labels == label).nonzero().flatten().numpy()
        rng.shuffle(mine)
        cuts = (rng.dirichlet([alpha] * workers).cumsum()[:-1] * len(mine)).round().astype(int)
        for shard, part in zip(shards, numpy.split(mine, cuts), strict=True):
            shard.extend(part.tolist())
    for shard in shards:  # otherwise the samples given away below would all be of the last label
        rng.shuffle(shard)
    while len(smallest := min(shards, key=len)) < at_least:
        smallest.append(max(shards, key=len).pop())
    return tuple(torch.tensor(sorted(shard), dtype=torch.int64) for shard in shards)


def deal_equally(labels: Tensor, workers: int, alpha: float, seed: int) -> tuple[Tensor, ...]:
    """Divide the samples into disjoint shards (int64) of equal size; the remainder is left out.

    Each worker draws label proportions from Dirichlet(alpha p), where p is the number of labels
    times the label proportions of the whole set. It then draws samples in these proportions,
    without replacement. When a label is used up, the worker continues with the other labels.
    Workers take turns, one sample each, so the first workers do not use up the labels of the last.
    """
    import numpy
    import torch

    rng = numpy.random.default_rng(seed_of(seed, _DEAL))
    kinds, counts = numpy.unique(labels.numpy(), return_counts=True)
    left = [rng.permutation(numpy.flatnonzero(labels.numpy() == kind)).tolist() for kind in kinds]
    prior = alpha * len(kinds) * counts / counts.sum()
    wanted = rng.dirichlet(prior, size=workers) + 1e-12  # above 0: a label may be the only one left
    shards: list[list[int]] = [[] for _ in range(workers)]
    for _ in range(len(labels) // workers):
        for shard, proportions in zip(shards, wanted, strict=True):
            there = proportions * [bool(rest) for rest in left]
            kind = numpy.searchsorted(there.cumsum(), rng.random() * there.sum(), side="right")
            shard.append(left[kind].pop())
    return tuple(torch.tensor(sorted(shard), dtype=torch.int64) for shard in shards)


@functools.lru_cache(maxsize=8)  # workers of an asynchronous run are spread over a few epochs
def _permutation(samples: int, seed: int) -> Tensor:
    import torch

    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))


def labels_for(split: Labelled, partition: str) -> Tensor:
    """Return the labels of ``split``. Raises ConfigError if it has none."""
    if split.labels is None:
        raise ConfigError(
            "data.partition",
            f"{partition} needs labels; these data have none. Use data.partition=iid.",
        )
    return split.labels


def full_steps(samples: int, workers: int, batch_size: int) -> int:
    """Return the number of steps per epoch. Raises ConfigError if it is less than one."""
    steps = samples // (workers * batch_size)
    if steps < 1:
        most = samples // workers
        fix = (
            f"The largest batch size that works is {most}."
            if most
            else f"Use at most {samples} nodes."
        )
        asked = f"one batch of {batch_size} on each of {workers} nodes"
        raise ConfigError("batch_size", f"{samples} training samples do not fill {asked}. {fix}")
    return steps

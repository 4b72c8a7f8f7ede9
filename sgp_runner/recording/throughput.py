"""Throughput of a node in a real run, between two records and over the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sgp_runner.core.problem import Problem
from sgp_runner.core.worker import Worker
from sgp_runner.data.dataset import TensorSplit
from sgp_runner.data.sampler import TokenSampler
from sgp_runner.data.tasks import LanguageModelling, Translation
from sgp_runner.utils.sums import sum_in_order

RATES = ("samples_per_s", "tokens_per_s", "flops_per_s", "mfu", "waiting_share")


@dataclass(frozen=True)
class Amounts:
    """Work of a node over a period.

    seconds: training time, on the run's clock
    samples: samples of all started gradients
    tokens: tokens of these samples that contribute to the loss; None if unknown
    waited: seconds spent waiting for messages
    """

    seconds: float = 0.0
    samples: int = 0
    tokens: int | None = 0
    waited: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        counted = self.tokens is not None and other.tokens is not None
        return Amounts(
            self.seconds + other.seconds,
            self.samples + other.samples,
            (self.tokens or 0) + (other.tokens or 0) if counted else None,
            self.waited + other.waited,
        )


@dataclass
class Throughput:
    """Rates of one node.

    waited: returns the seconds that this rank has waited for messages so far
    flops: operations per sample, forward and backward; None if unknown
    peak: operations per second of the node's devices; None if unknown
    time_s, gradients, waited_before: state of the node at its last record; ``time_s`` is None if
        rates cannot continue from there
    total: work of the whole run without the first step
    """

    waited: Callable[[], float] = float  # 0
    flops: float | None = None
    peak: float | None = None
    time_s: float | None = 0.0
    gradients: int = 0
    waited_before: float = 0.0
    total: Amounts = field(default_factory=Amounts)

    def since_last_record(
        self, worker: Worker, problem: Problem, now: float
    ) -> dict[str, float | None]:
        """Return the rates between the previous record and a record at the time ``now``."""
        began, first, before = self.time_s, self.gradients, self.waited_before
        self.time_s, self.gradients = now, worker.progress.gradients
        self.waited_before = self.waited()
        if began is None:
            return dict.fromkeys(RATES)
        samples, tokens = amounts(problem, worker.rank, range(first, self.gradients))
        part = Amounts(self.time_s - began, samples, tokens, self.waited_before - before)
        if first:  # the first step also starts libraries and compiles
            self.total += part
        return self.rates(part)

    def rates(self, done: Amounts) -> dict[str, float | None]:
        """Return the rates; None if unknown, or if there was no gradient."""
        if done.seconds <= 0 or not done.samples:
            return dict.fromkeys(RATES)
        samples_per_s = done.samples / done.seconds
        flops_per_s = None if self.flops is None else self.flops * samples_per_s
        mfu = None if self.peak is None or flops_per_s is None else flops_per_s / self.peak
        return {
            "samples_per_s": samples_per_s,
            "tokens_per_s": None if done.tokens is None else done.tokens / done.seconds,
            "flops_per_s": flops_per_s,
            "mfu": mfu,
            "waiting_share": min(1.0, done.waited / done.seconds),
        }

    def restart(self) -> None:
        """Restart at the next record, because ranks were lost or rejoined."""
        self.time_s = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "time_s": self.time_s,
            "gradients": self.gradients,
            "waited": self.waited() - self.waited_before,
            "total": asdict(self.total),
        }

    def load_state_dict(self, saved: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint; checkpoints of earlier versions have no state."""
        if saved is None:
            self.restart()
            return
        self.time_s, self.gradients = saved["time_s"], saved["gradients"]
        self.waited_before = self.waited() - saved["waited"]
        self.total = Amounts(
            **{amount.name: saved["total"][amount.name] for amount in fields(Amounts)}
        )


def amounts(problem: Problem, rank: int, gradients: Sequence[int]) -> tuple[int, int | None]:
    """Return the samples of gradients of a worker, and the tokens that contribute to their losses.

    Only sizes, indices and targets in memory are read. Tokens are None if the task has none, or if
    they are in files.
    """
    sampler, task, train = problem.sampler, problem.dataset.task, problem.dataset.train
    indices = [sampler.indices(rank, number) for number in gradients]
    samples = sum(map(len, indices))
    if isinstance(task, LanguageModelling):
        return samples, samples * task.block
    if not isinstance(task, Translation):
        return samples, None
    if isinstance(sampler, TokenSampler):
        return samples, sum(int(sampler.tokens[batch].sum()) for batch in indices)
    if isinstance(train, TensorSplit):
        return samples, sum(int(task.count(train.targets[batch])) for batch in indices)
    return samples, None


def mean_rates(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean rates of ``nodes``: None if unknown for a node, and {} in simulated time."""
    means: dict[str, float | None] = {}
    for name in RATES:
        values = [node[name] for node in nodes if name in node]
        if values:
            means[name] = None if None in values else sum_in_order(values) / len(values)
    return means

"""The candidates of a search, their runs and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException

from sgp_runner.report.read.naming import short_key
from sgp_runner.studies.study_file import EXAMPLES, RATE
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

ROUND = 4  # candidates that `propose` asks for before it learns their values
T = TypeVar("T")


def doublings(middle: float, times: int = 10) -> tuple[float, ...]:
    """Return ``middle``, halved and doubled up to ``times`` times, in increasing order."""
    return tuple(middle * 2.0**power for power in range(-times, times + 1))


@dataclass(frozen=True, order=True)
class Candidate:
    """Values of the tuned settings.

    value: the value on the ladder; None without a ladder
    others: the other settings, as overrides
    """

    value: float | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A run of a search."""

    candidate: Candidate
    seed: int


class Score(NamedTuple):
    """The result of a run of a search; less is better.

    value: the loss, or the cost to reach the target; infinite if the run diverged or misses it
    loss: the loss, which breaks ties
    """

    value: float
    loss: float


WORST = Score(inf, inf)


@dataclass(frozen=True)
class Space:
    """The search space of an arm.

    key: the setting with a ladder; empty: none
    first: the initial values of the ladder
    combinations: combinations of the other settings, as overrides
    ranges: for the rule ``tpe`` the distribution of each key; then ``combinations`` is an example
    """

    key: str = ""
    first: tuple[float, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ((),)
    ranges: Mapping[str, BaseDistribution] = field(default_factory=dict)

    @property
    def ladder(self) -> tuple[float, ...]:
        return doublings(self.first[0]) if self.first else ()

    def overrides(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the overrides that set the values of a candidate."""
        rate = (f"{self.key}={candidate.value:g}",) if candidate.value is not None else ()
        return (*candidate.others, *rate)

    @property
    def size(self) -> int:
        """The number of candidates tried first; 1: nothing is searched."""
        return ROUND if self.ranges else len(self.combinations) * max(1, len(self.first))

    @property
    def least_budget(self) -> int:
        """The minimum number of runs of a search, with each ladder as short as possible."""
        if self.size == 1:
            return 0
        if not self.first:
            return 1 if self.ranges else self.size
        return self.size + 2 * halved(len(self.combinations))


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    chosen: the candidate that the arm runs with
    losses: the loss of each run; infinite if it diverged
    edges: the searched numbers for which a better value may lie beyond the tried ones
    values: the value of each run that the search compares; empty: the losses
    expected: the value predicted by the parabola, if the choice lies between tried values
    """

    chosen: Candidate
    losses: Mapping[Trial, float] = field(default_factory=dict)
    edges: tuple[str, ...] = ()
    values: Mapping[Trial, float] = field(default_factory=dict)
    expected: float = inf

    @property
    def at_the_edge(self) -> bool:
        return bool(self.edges)

    @property
    def runs(self) -> int:
        """The number of runs of the search."""
        return len(self.losses)

    @property
    def score(self) -> float:
        """The value of the choice: its mean, or its value on the parabola between tried rates."""
        scores = self.scores()
        return fmean(scores[self.chosen]) if self.chosen in scores else self.expected

    def scores(self) -> dict[Candidate, list[float]]:
        """Return the values of each candidate, one per seed."""
        return by_candidate(self.values or self.losses)


def halved(count: int) -> int:
    return -(-count // 2)


def by_candidate(results: Mapping[Trial, T]) -> dict[Candidate, list[T]]:
    out: dict[Candidate, list[T]] = {}
    for trial, result in results.items():
        out.setdefault(trial.candidate, []).append(result)
    return out


def rate_of(candidate: Candidate) -> float:
    return with_rate(candidate).value or 0.0


def distribution(key: str, text: str) -> tuple[object, BaseDistribution]:
    """Return the first value of ``text``, in Hydra's notation, and Optuna's distribution."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    try:
        parsed = OverridesParser.create().parse_override(f"{key}={text}")
        values: Any = parsed.value()
        if not isinstance(values, IntervalSweep):
            listed = [*parsed.sweep_string_iterator()] if parsed.is_sweep_override() else [text]
            return listed[0], CategoricalDistribution(listed)
        whole = isinstance(values.start, int) and isinstance(values.end, int)
        kind: Any = IntDistribution if whole else FloatDistribution
        return values.start, kind(values.start, values.end, log="log" in values.tags)
    except (HydraException, ValueError) as error:
        raise ConfigError(
            f"tune.{key}", f"'{text}' cannot be searched: write {EXAMPLES['tpe']}."
        ) from error


def override(setting: tuple[str, object]) -> str:
    """Return a proposed value as an override; floats have four significant digits."""
    key, value = setting
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


def numbers_of(candidate: Candidate) -> dict[str, float]:
    """Return a candidate's numeric values by key; ``algo.sgp.tau`` becomes ``algo.tau``."""
    rated = with_rate(candidate)
    numbers = {} if rated.value is None else {RATE: rated.value}
    for key, _, text in (word.partition("=") for word in rated.others):
        with suppress(ValueError):
            numbers[f"{key.partition('.')[0]}.{short_key(key)}"] = float(text)
    return numbers


def with_rate(candidate: Candidate) -> Candidate:
    """Return a candidate with its learning rate as value, even if the rate comes from a list."""
    values = dict(word.split("=", 1) for word in candidate.others)
    rate = values.pop(RATE, None) if candidate.value is None else None
    if rate is None:
        return candidate
    return Candidate(float(rate), tuple(f"{key}={text}" for key, text in values.items()))

"""Power of a paired test: the number of seeds for a comparison, chosen before its runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from sgp_runner.studies.statistics import LEVEL

WANTED = 0.8
MAX_SEEDS = 1000  # larger numbers of seeds are not tried
# Of the limit of the spread. With four pilots, 65 % gives a mean power of 0.81 to 0.87 for effects
# of 0.5, 1 and 2 spreads, 70 % one of 0.84 to 0.90; the spread itself gives 0.66 to 0.77.
CONFIDENCE = 0.7


def power(distance: float, spread: float, seeds: int) -> float:
    """Return the probability that the confidence interval lies inside the expected range.

    It follows from Student's noncentral t-distribution. distance: distance of the true effect to
    the nearest bound, above 0. spread: standard deviation of the paired differences, in the same
    unit; if 0, every effect is found.
    """
    from scipy.stats import nct, t

    if spread == 0:
        return 1.0
    freedom = seeds - 1
    return float(nct.sf(t.ppf(1 - LEVEL, freedom), freedom, distance / spread * sqrt(seeds)))


def seeds_needed(distance: float, spread: float) -> int | None:
    """Return the smallest number of seeds, at least 3, with a power of `WANTED`.

    Returns None if even `MAX_SEEDS` seeds have less power.
    """
    if power(distance, spread, MAX_SEEDS) < WANTED:
        return None
    low, high = 2, MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = power(distance, spread, middle) >= WANTED
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def upper_limit(spread: float, seeds: int) -> float:
    """Return the upper limit at `CONFIDENCE` of a standard deviation measured with ``seeds``."""
    from scipy.stats import chi2

    return spread * sqrt((seeds - 1) / float(chi2.ppf(1 - CONFIDENCE, seeds - 1)))


def wanted(distance: float, spread: float) -> str:
    """Return how many seeds would show an effect at ``distance`` from the nearest bound."""
    seeds = seeds_needed(distance, spread) if distance > 0 else None
    return f"about {seeds} seeds" if seeds else f"over {MAX_SEEDS} seeds"


def detectable(seeds: int) -> float:
    """Return the smallest effect that ``seeds`` detect with a power of `WANTED`.

    Its unit is the spread between seeds. It is infinite for a single seed.
    """
    from scipy.optimize import brentq

    if seeds < 2:
        return inf
    return float(brentq(lambda effect: power(effect, 1.0, seeds) - WANTED, 1e-3, 1e3))


@dataclass(frozen=True)
class SeedPlan:
    """A number of seeds, and why the primary comparison needs no more.

    matters: the smallest effect that matters, as the distance to the nearest bound
    spread: standard deviation of the paired differences in the pilot runs
    pilot: a description of the pilot runs
    is_limited: whether the study has a maximum number of seeds

    Raises ValueError if the power with these seeds is below `WANTED` and they are not limited.
    """

    matters: float
    spread: float
    seeds: int
    unit: str
    pilot: str
    is_limited: bool = False

    def __post_init__(self) -> None:
        if self.power < WANTED and not self.is_limited:
            raise ValueError(f"{self.seeds} seeds give a power of only {self.power:.2f}.")

    @property
    def power(self) -> float:
        return power(self.matters, self.spread, self.seeds)

    def measured(self, spread: float) -> str:
        """Return a sentence about the measured ``spread`` and the power at this spread."""
        probability = power(self.matters, spread, self.seeds)
        return (
            f"Measured: a spread of {spread:.2g}, with which the same effect is found with a "
            f"probability of {100 * min(probability, 0.99):.0f} %."
        )

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds: an effect {self.matters:g} {self.unit} from the range's bound is "
            f"found with a probability of at least {100 * min(self.power, 0.99):.0f} %, at a "
            f"spread of {self.spread:.3g} between seeds ({self.pilot})."
        )

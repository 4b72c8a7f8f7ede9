"""Power of a paired test: how many seeds a comparison needs, decided before its runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

LEVEL = 0.025  # of a one-sided test: an interval of 95 % leaves as much on either side
WANTED = 0.8
MAX_SEEDS = 1000  # seeds; more are not looked for


def power(distance: float, spread: float, seeds: int, *, equivalence: bool = False) -> float:
    """Return the probability that an interval lies inside a range, by Student's noncentral t.

    distance: distance of the true effect to the nearest bound, above 0. spread: standard deviation
    of the paired differences, in the same unit. equivalence: the range has a bound at this
    distance on either side; the probability is then a lower bound, exact where it is near 1.
    """
    from scipy.stats import nct, t

    freedom = seeds - 1
    one = float(nct.sf(t.ppf(1 - LEVEL, freedom), freedom, distance / spread * sqrt(seeds)))
    return max(0.0, 2 * one - 1) if equivalence else one


def seeds_needed(distance: float, spread: float, *, equivalence: bool = False) -> int | None:
    """Return the fewest seeds, 3 or more, with a power of `WANTED`; None if over `MAX_SEEDS`."""

    def enough(seeds: int) -> bool:
        return power(distance, spread, seeds, equivalence=equivalence) >= WANTED

    if not enough(MAX_SEEDS):
        return None
    low, high = 2, MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Plan:
    """The number of seeds of a claim, and why it is enough for its primary finding.

    matters: the smallest effect that matters, as the distance to the nearest bound. spread:
    standard deviation of the paired differences in the pilot runs. pilot: which runs these were.
    Raises ValueError if the power of the seeds is below `WANTED`.
    """

    matters: float
    spread: float
    seeds: int
    unit: str
    pilot: str
    equivalence: bool = False

    def __post_init__(self) -> None:
        if self.power < WANTED:
            raise ValueError(f"{self.seeds} seeds have a power of {self.power:.2f} alone.")

    @property
    def power(self) -> float:
        return power(self.matters, self.spread, self.seeds, equivalence=self.equivalence)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The seeds: 1, 2 and so on."""
        return tuple(range(1, self.seeds + 1))

    def measured(self, spread: float) -> str:
        """Compare the ``spread`` that the runs showed with the planned one, in a sentence."""
        found = power(self.matters, spread, self.seeds, equivalence=self.equivalence)
        return (
            f"Measured: a spread of {spread:.2g}, with which the same effect is found with a "
            f"probability of {100 * min(found, 0.99):.0f} %."
        )

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds: an effect {self.matters:g} {self.unit} from the range's bound is "
            f"found with a probability of at least {100 * min(self.power, 0.99):.0f} %, at a "
            f"spread of {self.spread:g} between seeds ({self.pilot})."
        )

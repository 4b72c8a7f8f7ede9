"""Published and our order of the rows of a table: which is better, and which is faster.

Tables of six rows or more have Kendall's rank correlation (tau-b, which allows for ties): 1 for the
same order, -1 for the opposite one, about 0 for none. Smaller tables list their pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

ENOUGH = 6  # rows for a rank correlation


def tau(published: Sequence[float], ours: Sequence[float]) -> float:
    """Kendall's tau-b of two lists of the same rows; nan if all of one are equal."""
    from scipy.stats import kendalltau

    return float(kendalltau(published, ours).statistic)


def agreement(published: Mapping[str, float], samples: Sequence[Mapping[str, float]]) -> str:
    """Compare the order of the published values with that of ours, as a table's cell.

    samples: our values of the same rows, once for each seed, or once where nothing is random.
    """
    rows = list(published)
    if len(rows) >= ENOUGH:
        theirs = [published[row] for row in rows]
        return "tau " + spread([tau(theirs, [sample[row] for row in rows]) for sample in samples])
    means = {row: sum(sample[row] for sample in samples) / len(samples) for row in rows}
    return pairs(published, means)


def spread(values: Sequence[float]) -> str:
    """The mean, and the lowest to highest if there are several."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f} over {len(values)} seeds)"


def pairs(published: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """How many pairs that differ in the paper are in its order here, and which are not."""
    different = [(a, b) for a, b in combinations(published, 2) if published[a] != published[b]]
    turned = [
        (a, b) for a, b in different if (published[a] - published[b]) * (ours[a] - ours[b]) <= 0
    ]
    said = f"{len(different) - len(turned)} of {len(different)} pairs"
    names = ", ".join(f"{a} and {b}" for a, b in turned)
    return f"{said}; not {names}" if turned else said

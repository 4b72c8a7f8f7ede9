"""The range in which a cluster's simulated times were compared with real times."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sgp_runner.cluster.links import Links
from sgp_runner.utils.units import (
    BitsPerSecond,
    Bytes,
    bit_rate,
    bit_rate_range,
    counted,
    num_bytes,
)

#: The settings that limit the range.
LIMITS = ("nodes", "bandwidth", "least_bytes", "most_bytes")


@dataclass(frozen=True)
class Validated:
    """The range in which simulated times were compared with real times.

    A run outside the range gets a warning. A null limit does not apply; if all are null, the times
    were not compared with real times.

    nodes: the largest number of nodes
    bandwidth: bits per second of a node's network interface
    least_bytes: size of the smallest model
    most_bytes: size of the largest model
    fitted_on: published rows (``row`` of their presets) to which a constant of this cluster was
        fitted; the times of other rows are predictions
    """

    nodes: int | None = None
    bandwidth: BitsPerSecond | None = None
    least_bytes: Bytes | None = None
    most_bytes: Bytes | None = None
    fitted_on: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return any(getattr(self, key) is not None for key in LIMITS)

    def beyond(self, name: str, links: Links, nodes: int, model_bytes: float) -> str | None:
        """Return a warning if a run on the cluster ``name`` is outside the range, else None.

        It also covers clusters whose times were never compared with real times.
        """
        if not self.limited:
            return f"The times of cluster={name} were not compared with real times."
        least, most = self.least_bytes or 0.0, self.most_bytes or inf
        rate = self.bandwidth or links.rate
        here = [
            description
            for description, outside in (
                (bit_rate_range(links.rates), any(actual != rate for actual in links.rates)),
                (counted(nodes, "node"), nodes > (self.nodes or inf)),
                (f"a model of {num_bytes(model_bytes)}", not least <= model_bytes <= most),
                ("unequal links", links.unequal),
                ("regions", bool(links.regions)),
            )
            if outside
        ]
        if not here:
            return None
        there = [bit_rate(rate)]
        if self.nodes is not None:
            there.append(f"up to {counted(self.nodes, 'node')}")
        if self.most_bytes is not None:
            sizes = dict.fromkeys((num_bytes(least), num_bytes(most)))
            there.append(f"models of {' to '.join(sizes)}")
        return (
            f"Outside the validated range of cluster={name} "
            f"({', '.join(there)}): {', '.join(here)}."
        )

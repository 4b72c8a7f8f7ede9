"""Regions: groups of nodes that are close to each other, joined by slower links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sgp_runner.cluster.checks import check_not_negative, check_rate
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import BitsPerSecond, Bytes, Seconds


@dataclass(frozen=True)
class Region:
    """A group of nodes close to each other, and the link that joins them to other regions.

    Messages that leave a region share its link, in the order in which they reach it. Messages that
    enter the region share it in the same way; the two directions are independent. Ranks are
    numbered region by region. A single parameter server is in the last region. Several servers are
    assigned to the regions in order, one each; additional servers are in the last region.

    nodes: number of nodes
    bandwidth_up: bits per second that leave the region: one number, or a list with one number per
        region, in order, if they depend on the destination
    bandwidth_down: bits per second that enter the region
    latency_seconds: latency of messages to other regions, which replaces the cluster's latency: one
        number, or a list with one number per region, in order; the entry of the region itself has
        no effect
    window_bytes: largest window of a connection from another region; null: the window of
        ``cluster.links``; 0: no limit
    price_per_gb: price of 10^9 bytes that leave the region, for ``sgp-run plan``: one number, or a
        list with one number per region, in order; null: free
    """

    nodes: int
    bandwidth_up: BitsPerSecond | Sequence[BitsPerSecond]
    bandwidth_down: BitsPerSecond
    latency_seconds: Seconds | Sequence[Seconds]
    window_bytes: Bytes | None = None
    price_per_gb: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        key = "cluster.links.regions"
        if self.nodes < 0:
            raise ConfigError(f"{key}.nodes", f"{self.nodes} must be zero or positive.")
        for rate in as_list(self.bandwidth_up):
            check_rate(f"{key}.bandwidth_up", rate)
        check_rate(f"{key}.bandwidth_down", self.bandwidth_down)
        for seconds in as_list(self.latency_seconds):
            check_not_negative(f"{key}.latency_seconds", seconds)
        if self.window_bytes is not None:
            check_not_negative(f"{key}.window_bytes", self.window_bytes)
        for price in as_list(self.price_per_gb or 0.0):
            check_not_negative(f"{key}.price_per_gb", price)

    def latency_to(self, other: int) -> float:
        return entry(self.latency_seconds, other)

    def rate_to(self, other: int) -> float:
        """Return the bits per second from this region to region ``other``."""
        return entry(self.bandwidth_up, other)

    def price_to(self, other: int) -> float:
        """Return the price of a byte from this region to region ``other``."""
        return entry(self.price_per_gb or 0.0, other) / 1e9


def as_list(values: float | Sequence[float]) -> Sequence[float]:
    return values if isinstance(values, Sequence) else (values,)


def entry(values: float | Sequence[float], region: int) -> float:
    """Return the value for ``region``; a single value holds for all regions."""
    entries = as_list(values)
    return entries[region if len(entries) > 1 else 0]


def byte_prices(regions: Sequence[Region]) -> list[list[float]]:
    """Return the price of a byte from each region to each other region."""
    return [[region.price_to(there) for there in range(len(regions))] for region in regions]


def check_regions(regions: Sequence[Region], nodes: int) -> None:
    """Raise ConfigError unless ``regions`` have ``nodes`` nodes and a latency for each pair.

    An empty list of regions fits any number of nodes.
    """
    key, sizes = "cluster.links.regions", [region.nodes for region in regions]
    for number, region in enumerate(regions):
        for name in ("latency_seconds", "bandwidth_up", "price_per_gb"):
            count = len(as_list(getattr(region, name) or 0.0))
            if count not in (1, len(regions)):
                raise ConfigError(
                    f"{key}[{number}].{name}",
                    f"{count} values for {len(regions)} regions: give one, or one per region.",
                )
    if sizes and sum(sizes) != nodes:
        raise ConfigError(
            key,
            f"the regions have {' + '.join(map(str, sizes))} = {sum(sizes)} nodes, but the run has "
            f"{nodes}: use nodes={sum(sizes)}, or other regions.",
        )


def region_of_each(regions: Sequence[Region], ranks: int) -> list[int]:
    """Return the region of each rank, as described in `Region`. Empty without regions."""
    nodes = [number for number, region in enumerate(regions) for _ in range(region.nodes)]
    last, servers = len(regions) - 1, ranks - len(nodes)
    first = last if servers == 1 else 0
    return nodes + [min(first + i, last) for i in range(servers)] if regions else []


def left_in(regions: Sequence[Region], ranks: Iterable[int]) -> tuple[Region, ...]:
    """Return the regions restricted to the nodes in ``ranks``."""
    region_of = region_of_each(regions, sum(region.nodes for region in regions))
    left = [region_of[rank] for rank in ranks if rank < len(region_of)]
    return tuple(replace(region, nodes=left.count(i)) for i, region in enumerate(regions))

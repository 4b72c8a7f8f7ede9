"""Shards of a batch or a message, one for each device of a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of ``count`` consecutive shards; the last shards may be shorter than the others.

    multiple: number that divides the length of all shards except the shorter ones
    """

    index: int = 0
    count: int = 1
    multiple: int = 1

    def length(self, total: int) -> int:
        """Return the length of the longest shard of ``total`` elements."""
        return -(-total // (self.count * self.multiple)) * self.multiple

    def of(self, total: int) -> slice:
        """Return the positions of this shard among ``total`` elements."""
        length = self.length(total)
        return slice(min(self.index * length, total), min((self.index + 1) * length, total))


WHOLE = Shard()

"""The durations of gradients, drawn for each node from a stream of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator

    from sgp_runner.cluster.machines import ComputeTime

BLOCK = 32  # draws at once, each of which costs a tenth of a single one


class ComputeTimes:
    """The durations of one node's gradients, as if drawn one by one.

    law: around the ``mean`` (seconds).
    """

    __slots__ = ("before", "law", "left", "mean", "random")

    def __init__(self, law: ComputeTime, mean: float, random: Generator) -> None:
        self.law, self.mean, self.random = law, mean, random
        self.before: Any = None  # state of the generator before the present block
        self.left: list[float] = []  # of the block, the next one last

    def draw(self) -> float:
        if not self.left:
            self.before = self.random.bit_generator.state
            self.left = self.law.sample(self.mean, self.random, BLOCK)
            self.left.reverse()
        return self.left.pop()

    @property
    def state(self) -> Any:
        """The state of the generator after the last draw."""
        bits = self.random.bit_generator
        if self.left:
            bits.state = self.before
            self.law.sample(self.mean, self.random, BLOCK - len(self.left))
            self.left = []
        return bits.state

    @state.setter
    def state(self, saved: Any) -> None:
        self.random.bit_generator.state, self.left = saved, []

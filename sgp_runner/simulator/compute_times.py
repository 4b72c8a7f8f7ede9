"""Durations of gradients, from a separate stream of random numbers per node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from sgp_runner.cluster.compute_variation import ComputeTime
from sgp_runner.simulator.machine_model import MachineModel
from sgp_runner.utils.seeding import seed_of

_COMPUTE, _NODE = 201, 202  # streams of random numbers
BLOCK = 32  # draws per call; such a draw costs a tenth of a single one


class ComputeTimes:
    """The durations of one node's gradients, drawn in blocks but equal to single draws.

    law: distribution with mean ``mean``, in seconds.
    """

    __slots__ = ("before", "law", "left", "mean", "random")

    def __init__(self, law: ComputeTime, mean: float, random: Generator) -> None:
        self.law, self.mean, self.random = law, mean, random
        self.before: Any = None  # state of the generator before the present block
        self.left: list[float] = []  # rest of the block in reverse order

    def draw(self) -> float:
        if not self.left:
            self.before = self.random.bit_generator.state
            self.left = self.law.sample(self.mean, self.random, BLOCK)
            self.left.reverse()
        return self.left.pop()

    @property
    def state(self) -> Any:
        """The generator's state after the last draw."""
        bits = self.random.bit_generator
        if self.left:
            bits.state = self.before
            self.law.sample(self.mean, self.random, BLOCK - len(self.left))
            self.left = []
        return bits.state

    @state.setter
    def state(self, saved: Any) -> None:
        self.random.bit_generator.state, self.left = saved, []


class GradientTimes:
    """The durations of the gradients of all nodes.

    slowness: factor of each node. mean_seconds: mean for each node. draw: returns the duration of a
        rank's next gradient.
    """

    def __init__(self, model: MachineModel, draw: Callable[[int], float] | None = None) -> None:
        from numpy.random import default_rng

        cluster, ranks = model.cluster, range(model.size)
        spread = cluster.compute.heterogeneity
        shape = spread**-2 if spread else 0.0
        speeds = [
            default_rng(seed_of(model.run_seed, _NODE, model.original_ranks[rank])).gamma(
                shape, 1 / shape
            )
            if shape
            else 1.0
            for rank in ranks
        ]
        self.mean_seconds = [
            model.step_seconds * float(speeds[rank]) * model.factor(rank) for rank in ranks
        ]
        self.slowness = [float(speeds[rank]) * model.factor(rank) for rank in ranks]
        self.nodes = [
            ComputeTimes(
                cluster.compute_time,
                self.mean_seconds[rank],
                default_rng(seed_of(model.seed, _COMPUTE, rank)),
            )
            for rank in ranks
        ]
        self.draw = draw or self.sampled

    def sampled(self, rank: int) -> float:
        return self.nodes[rank].draw()

    def state_dict(self) -> list[Any]:
        return [node.state for node in self.nodes]

    def load_state_dict(self, state: list[Any]) -> None:
        for node, saved in zip(self.nodes, state, strict=True):
            node.state = saved

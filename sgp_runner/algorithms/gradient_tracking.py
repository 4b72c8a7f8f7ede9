"""Gradient tracking: every node estimates the mean gradient of all nodes.

    y <- W y + g - g_old,  y = g at first;  x <- W (x - lr y)   Koloskova et al. 2021, Alg. 1
    the same y;                             x <- W x - lr y     DIGing, Nedic et al. 2017

The mean of ``y`` over the nodes always equals the mean of ``g``. A message carries ``x`` and ``y``.
``g`` is the direction of the local optimizer, which is the gradient for SGD without momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import gossip
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology


@dataclass(frozen=True)
class GradientTracking(Algorithm):
    """Gossip of models and of estimates of the mean gradient.

    topology: a symmetric graph
    layout: adapt_then_combine (step, then mix), or diging (mix, then step)
    """

    topology: Topology
    layout: Literal["adapt_then_combine", "diging"] = "adapt_then_combine"
    title: ClassVar[str] = "Gradient tracking"
    source: ClassVar[str] = "koloskova2021"
    graph: ClassVar[Literal["symmetric"]] = "symmetric"
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    async def run(self, worker: Worker) -> None:
        import torch

        x = worker.params
        mixed_y = worker.state("tracker", lambda: x.new_zeros(x.shape))  # W y
        old = worker.state("tracked", lambda: x.new_zeros(x.shape))  # g of the last step
        for k in worker.steps():
            g = worker.update(await worker.grad())
            if worker.lr > 0:
                g /= worker.lr
            y = mixed_y + g - old
            old.copy_(g)
            step = worker.lr * y
            adapt_first = self.layout == "adapt_then_combine"
            both = torch.cat([x - step if adapt_first else x, y])
            await gossip(worker, self.topology, k, both)
            new_x, new_y = both.chunk(2)
            x.copy_(new_x if adapt_first else new_x - step)
            mixed_y.copy_(new_y)

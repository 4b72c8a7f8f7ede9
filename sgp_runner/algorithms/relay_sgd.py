"""RelaySGD (Vogels et al. 2021): each node forwards the models of all others along a tree.

In every step, with ``M_ki`` the previous step's message from neighbour k to node i, a sum of
models, and ``n_ki`` the number of these models:

    y_i = x_i - d_i
    M_ij = y_i + sum_{k != j} M_ki;  n_ij = 1 + sum_{k != j} n_ki       to each neighbour j
    x_i <- (y_i + sum_j M_ji + (n - 1 - sum_j n_ji) x_0) / n

A model that is d edges away arrives d - 1 steps late. Therefore, once the number of steps is at
least the diameter of the tree, ``x_i`` is the exact mean of one model from each node, without the
initial parameters ``x_0``. With two nodes this is exact averaging in every step. For models that
have not arrived, the authors' code substitutes ``x_0``, and their description the node's own
``y_i`` (``fill=own``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.trees import is_tree
from sgp_runner.topology.verify import verify
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class RelaySGD(Algorithm):
    """A local step and a mean of delayed models of all nodes.

    topology: a tree
    fill: model used for nodes whose models have not arrived yet: start (the initial model), or own
    """

    topology: Topology
    fill: Literal["start", "own"] = "start"
    title: ClassVar[str] = "RelaySGD"
    source: ClassVar[str] = "vogels2021"

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify(self.topology, nodes, by=self.title, weighted=True)
        if not (self.topology.symmetric and is_tree(self.topology, nodes)):
            raise ConfigError(
                "algo.topology",
                f"{self.title} needs the same tree in every step: use tree, or edges of a tree.",
            )

    async def run(self, worker: Worker) -> None:
        x, y, n = worker.params, worker.push_sum, worker.size  # y: [D + 1], the last one is 1
        neighbours = self.topology.out_peers(worker.rank, n, 0)
        # The start, and the last message of each neighbour: a sum of models and their number.
        x_0, relayed = worker.state(
            "relayed", lambda: (x.clone(), {j: y.new_zeros(y.shape) for j in neighbours})
        )
        for _ in worker.steps():
            await worker.descend()
            total = sum(relayed.values(), y)
            for j in neighbours:
                worker.comm.send(j, total - relayed[j])
            for j in neighbours:
                relayed[j] = await worker.comm.recv(j)
            total = sum(relayed.values(), y)
            filling = (x_0 if self.fill == "start" else x) * (n - total[-1])
            x.copy_(filling.add_(total[:-1]).div_(n))

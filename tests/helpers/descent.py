"""Gradient descent with the mean of all nodes' gradients, as on a complete graph without momentum,
where all models stay equal, while the number of nodes changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sgp_runner.assembly.build import build_problem
from sgp_runner.config.run import Run

Stage = tuple[int, range]  # the number of nodes, and their steps


def descend(run: Run, stages: Iterable[Stage]) -> Iterator[tuple[Tensor, list[float]]]:
    """Yield the parameters after steps of ``stages``, and the losses of the nodes in these."""
    problem = build_problem(run)
    params, buffers = problem.start(), problem.flat.fresh_buffers()
    for nodes, steps in stages:
        divided = problem.subset(nodes, run.batch_size)
        for step in steps:
            pairs = [divided.gradient(params, buffers, rank, step) for rank in range(nodes)]
            gradient = torch.stack([gradient for gradient, _ in pairs]).mean(0)
            params = params - run.optim.lr * (gradient + run.optim.weight_decay * params)
            yield params, [float(loss) for _, loss in pairs]

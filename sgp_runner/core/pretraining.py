"""Pretraining: training of one model before a run, from which all workers then start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sgp_runner.core.optim import Optimizer
from sgp_runner.core.problem import ON_CPU, Problem
from sgp_runner.core.settings import check_range
from sgp_runner.utils.seeding import seed_of

if TYPE_CHECKING:
    from torch import Tensor

WARM_UP = 0.1  # share of the steps in which the learning rate grows linearly
_SEED = 201  # the batches are others than those of the run


@dataclass(frozen=True)
class Pretraining:
    """Plain training of one model before the run, the same for all algorithms.

    steps: steps with batches of all nodes, before the run and its clock start; 0: the run starts
        from random parameters
    lr: learning rate of these steps, constant after a warm-up; other settings are those of optim
    """

    steps: int = 0
    lr: float = 1e-3

    def __post_init__(self) -> None:
        check_range("not negative", "pretrain", self, "steps")
        check_range("positive", "pretrain", self, "lr")

    def train(self, problem: Problem, optim: Optimizer, batch: int) -> tuple[Tensor, list[Tensor]]:
        """Return the model's parameters [D] and buffers after all steps.

        Gradients are in the precision of the parameters, without autocast. ``batch``: samples per
        step
        """
        import torch

        compute = replace(ON_CPU, device=problem.compute.device)
        plain = replace(problem, seed=seed_of(problem.seed, _SEED), compute=compute)
        plain = plain.subset(1, batch)
        x, buffers = problem.start(), problem.flat.fresh_buffers()
        moments = optim.buffers(x)
        with torch.random.fork_rng(devices=[]):
            for step in range(self.steps):
                lr = self.lr * min(1.0, (step + 1) / (WARM_UP * self.steps))
                g, _ = plain.gradient(x, buffers, 0, step)
                x -= optim.direction(g, x, moments, lr, problem.flat.shapes)
        return x, buffers

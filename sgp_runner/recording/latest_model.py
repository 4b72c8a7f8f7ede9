"""Evaluation of models that may be equal, such as all workers' models after an exact average."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sgp_runner.core.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LatestModel:
    """Model that was evaluated last in a simulation; an equal model is not evaluated again.

    parts: parameters [D] and buffers, without the seeds of dropout, which evaluations do not use
    """

    clock: Literal["simulated", "wall"]
    parts: list[Tensor] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def evaluate(self, problem: Problem, params: Tensor, buffers: list[Tensor]) -> dict[str, float]:
        """Return the metrics of a model on the whole validation set."""
        import torch

        if self.clock == "wall" or params.is_meta:
            return problem.evaluate(params, buffers)
        seeds = problem.flat.seeds
        parts = [params, *(buffer for i, buffer in enumerate(buffers) if i not in seeds)]
        if not self.parts or not all(map(torch.equal, self.parts, parts)):
            self.metrics = problem.evaluate(params, buffers)
            self.parts = [part.clone() for part in parts]
        return dict(self.metrics)

    def evaluate_re_estimated(self, problem: Problem, params: Tensor) -> dict[str, float]:
        """Return the metrics of an averaged model, whose BatchNorm statistics are estimated."""
        if problem.flat.has_batch_norm:
            return problem.evaluate_re_estimated(params)
        return self.evaluate(problem, params, problem.flat.fresh_buffers())

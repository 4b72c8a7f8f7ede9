"""The tiny problem with parameters that are several tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.tiny import STEPS, Result, run, sgd, tiny_problem

# A matrix of 4 x 6, a vector, and a square matrix that is not contiguous with the first.
SHAPES = {"a": (4, 2, 3), "b": (2,), "c": (3, 3)}
SPANS = {"a": slice(0, 24), "b": slice(24, 26), "c": slice(26, 35)}
D = 35
random = np.random.default_rng(11)
SCALES, CENTERS = random.uniform(0.3, 1.0, (3, STEPS, D)), random.normal(size=(3, STEPS, D))
START = random.normal(size=D)
PLAIN, OPTIM = sgd(lr=0.2), sgd(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)


def gradient(i: int, k: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(SCALES[i, k % STEPS] ** 2 * (x - CENTERS[i, k % STEPS]))


def trained(algo: Any, n: int = 3, steps: int = STEPS, optim: Any = OPTIM, **how: Any) -> Result:
    problem = tiny_problem(SCALES, CENTERS, START)
    return run(algo, n, steps, optim, problem=problem, shapes=SHAPES, **how)

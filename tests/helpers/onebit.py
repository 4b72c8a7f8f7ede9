"""The recursion of means by signs, with numpy, and an algorithm that only takes such means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from helpers.shaped import D
from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.two_phase import SignMean
from sgp_runner.core.worker import Worker


class OneBit:
    """The errors of ``n`` workers, and of all chunks that they serve."""

    def __init__(self, n: int, spans: Mapping[str, slice], scale: str) -> None:
        self.n, self.spans, self.scale = n, spans, scale
        self.forget()

    def forget(self) -> None:
        self.error, self.served = np.zeros((self.n, D)), np.zeros(D)

    def coded(self, x: np.ndarray) -> np.ndarray:
        s = np.abs(x).mean() if self.scale == "l1" else np.sqrt((x**2).mean())
        return np.where(x >= 0, 1.0, -1.0) * float(np.float32(s))

    def mean(self, z: np.ndarray) -> np.ndarray:
        """Return the mean [D] of ``z`` [n, D]."""
        z = z + self.error
        out = np.zeros(D)
        for span in self.spans.values():
            c = np.stack([self.coded(of_worker[span]) for of_worker in z])
            self.error[:, span] = z[:, span] - c
            w = c.mean(axis=0) + self.served[span]
            width = 8 * -(-len(w) // (8 * self.n))
            chunks = [w[begin : begin + width] for begin in range(0, len(w), width)]
            out[span] = np.concatenate([self.coded(chunk) for chunk in chunks])
            self.served[span] = w - out[span]
        return out


@dataclass(frozen=True)
class Means(Algorithm):
    """Means of gradients at the same parameters; their sum, and that of the gradients, is state."""

    codec: Sign
    title: ClassVar[str] = "Means"

    async def run(self, worker: Worker) -> None:
        onebit = SignMean(worker, self.codec)
        given, returned = (
            worker.state(name, lambda: torch.zeros_like(worker.params))
            for name in ("given", "returned")
        )
        for _ in worker.steps():
            g = await worker.grad()
            given += g
            returned += await onebit(g)

"""ACCO (Nabli et al. 2024): all-reduces that overlap the next gradient, without delayed updates.

An optimizer step uses two gradients of each worker. The first, G', is taken at parameters x' that
are predicted while the second, G, is computed:

    during G at x:        mean G';  x' = x - U(mean G')              (the optimizer's state is kept)
    during G' at x':      mean G;   x <- x - U((mean G' + mean G) / 2)

Each G' is the first gradient of the next step. The first G' of a run is taken at x, without
overlap. If a run ends with a G', it is dropped. The authors' code divides the optimizer's state
among the workers, and a mean is a reduce-scatter and an all-gather; an all-reduce sends as many
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.optim.wrapped import WrappedOptimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ACCO(Algorithm):
    """Optimizer steps on two gradients, the first at predicted parameters."""

    title: ClassVar[str] = "ACCO"
    source: ClassVar[str] = "nabli2024"

    def check(self, nodes: int, optim: Optimizer) -> None:
        if isinstance(optim, WrappedOptimizer):
            what = f"{self.title} undoes steps"
            raise ConfigError("algo", f"{what}, and a PyTorch optimizer cannot: use sgp-run.")

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 2)]

    async def run(self, worker: Worker) -> None:
        x, state, all_reduce = worker.params, worker.state, worker.comm.all_reduce
        for _ in worker.steps():
            if "pending" not in state:
                state["pending"] = await worker.grad()  # G'
                continue
            under_way = all_reduce(state["pending"].clone())
            if "first_mean" not in state:
                state["pending"] = await worker.grad()  # G
                state["first_mean"] = await under_way
                state["predicted"] = x - step_without_state(worker, state["first_mean"].clone())
            else:
                state["pending"] = await worker.grad(state["predicted"])  # G'
                x -= worker.update(state.pop("first_mean").add_(await under_way).div_(2))
        if "first_mean" in state:
            mean = await all_reduce(state.pop("pending"))
            x -= worker.update(state.pop("first_mean").add_(mean).div_(2))


def step_without_state(worker: Worker, g: Tensor) -> Tensor:
    """Return the step to subtract [D] for the gradient ``g``; restore the optimizer's state."""
    copies = {name: buffer.clone() for name, buffer in worker.buffers.items()}
    d = worker.update(g)
    for name, buffer in worker.buffers.items():
        buffer.copy_(copies[name])
    return d

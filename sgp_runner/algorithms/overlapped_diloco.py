"""DiLoCo with overlapped outer steps (Kale et al. 2025): each all-reduce overlaps the next period.

With ``Delta`` the weighted change ``theta - x`` of a worker in this period, ``last`` that of the
period before, and ``S`` the mean of ``last`` over the workers, both 0 in the first period, the
outer gradient is

    delayed: S
    eager:   S + (Delta - last) / n, with which theta_i differ

By our definition, a run ends by applying the mean in flight. For ``delayed`` this is a last outer
step. For ``eager`` it is theta_i <- theta_i - lr (S - last / n), and then theta is the mean of all
theta_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sgp_runner.core.outer import outer_state, outer_step
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


async def run_overlapped(
    worker: Worker,
    period: int,
    change_of: Callable[[Worker, Tensor], Tensor],
    outer: tuple[float, float, bool],
    eager: bool,
) -> None:
    """Run DiLoCo with overlapped outer steps.

    change_of: returns the weighted ``theta - x`` [D] of a worker
    outer: learning rate, momentum, and whether to use Nesterov momentum
    """
    x, n, (theta, v) = worker.params, worker.size, outer_state(worker)
    in_flight: list[Any] = worker.state("in_flight", list)  # S, at most one
    for k in worker.steps():
        await worker.descend()
        if (k + 1) % period == 0 or worker.done:
            change = change_of(worker, theta)
            delta = await in_flight.pop() if in_flight else x.new_zeros(x.shape)
            in_flight.append(worker.comm.all_reduce(change.clone()))
            if eager:
                last = worker.state("last_change", lambda: x.new_zeros(x.shape))
                delta = delta.add(change - last, alpha=1 / n)
                last.copy_(change)
            outer_step(theta, v, delta, *outer)
            x.copy_(theta)
    for mean in worker.state.pop("in_flight"):
        if eager:
            last = worker.state.pop("last_change")
            theta.sub_((await mean).sub(last, alpha=1 / n), alpha=outer[0])
            theta.copy_(await worker.comm.all_reduce(theta.clone()))
        else:
            outer_step(theta, v, await mean, *outer)
        x.copy_(theta)

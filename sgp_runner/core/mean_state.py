"""Conversion of the states of all workers to a state for another number of workers.

All workers continue from one model: the mean of the former workers, weighted by their push-sum
weights. The state of the optimizer, BatchNorm's statistics, and the algorithm states in `HAS_MEAN`
are averaged; integers, such as counts of steps, are those of rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgp_runner.core.state import State, outline

#: Named state of algorithms whose mean over the ranks is the state of a rank among fewer or more.
HAS_MEAN = {
    *("outer", "outer_momentum"),  # DiLoCo
    *("slowmo_x0", "slowmo_u", "slowmo_start"),
    "quasi_global_momentum",
}


def mean(values: Sequence[Any]) -> Any:
    """Average the floating-point tensors in plain data; take all other values from the first."""
    from torch import Tensor

    first = values[0]
    if isinstance(first, dict):
        return {name: mean([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(map(mean, zip(*values, strict=True)))
    if isinstance(first, Tensor) and first.is_floating_point():
        return sum(values[1:], first) / len(values)
    return first


def mean_worker(workers: Sequence[State], title: str) -> State:
    """Return the state of every new worker, from the states of all former workers by rank.

    title: title of the algorithm. Raises ValueError, whose message has no full stop, if the states
        cannot be averaged
    """
    import torch

    for worker in workers:
        without_rule = sorted(worker["state"].keys() - HAS_MEAN)
        if without_rule or worker["comm"]["mailbox"]:
            what = ", ".join(without_rule) or "messages in flight"
            raise ValueError(f"{title} cannot convert {what} to another number of ranks")
    check_alike("states", [since_start(worker) for worker in workers])
    check_alike("numbers of steps", [worker["taken"] for worker in workers])
    weights = torch.stack([worker["push_sum"][-1] for worker in workers])
    shares = weights / weights.sum() * len(workers)
    push_sum = mean([w["push_sum"] * share for w, share in zip(workers, shares, strict=True)])
    push_sum[-1] = 1
    names = ("state", "model_buffers", "buffers")
    averaged = {name: mean([worker[name] for worker in workers]) for name in names}
    return {**workers[0], **averaged, "push_sum": push_sum}


def since_start(worker: State) -> State:
    """Return the named state, with SlowMo's first step counted back from the current step.

    After a loss, survivors have taken different numbers of steps, because dropped steps count.
    """
    state: State = worker["state"]
    if "slowmo_start" not in state:
        return state
    return {**state, "slowmo_start": worker["steps_taken"] - state["slowmo_start"]}


def check_alike(what: str, values: Sequence[object]) -> None:
    """Raise ValueError unless the plain data of all ranks have the same structure."""
    if len({str(dict(outline(value))) for value in values}) > 1:
        raise ValueError(f"the ranks have different {what}")


def continued_step(step: int, before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return the step of the new run before which as much of the epoch is read as before ``step``.

    before, after: (number of nodes, steps per epoch), with batches of one size. If the batches of
    the epoch that were read do not divide among the new nodes, fewer batches than there are new
    nodes are left out.
    """
    epoch, steps = divmod(step, before[1])
    return epoch * after[1] + min(-(-steps * before[0] // after[0]), after[1])

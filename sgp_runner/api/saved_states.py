"""States of `Averager`: their check, and states for another number of ranks.

All ranks continue from one model: the mean of the former ranks, weighted by their push-sum weights.
The state of the optimizer, BatchNorm's statistics, and the state of an algorithm that has a rule
become their means; whole numbers are those of rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgp_runner.core.state import State, outline
from sgp_runner.utils.errors import ConfigError

#: Named state of algorithms whose mean over the ranks is the state of a rank among fewer or more.
HAS_MEAN = {
    *("outer", "outer_momentum"),  # DiLoCo
    *("slowmo_x0", "slowmo_u", "slowmo_start"),
    "quasi_global_momentum",
}
PARTS = ("worker", "optimizer")  # of a state: what is replaced


def check_state(state: object, identity: State) -> None:
    """Raise ConfigError unless a state is as it was saved, with the same identity."""
    saved: State = state if isinstance(state, dict) else {}
    here, there = (
        dict(outline({key: values.get(key) for key in identity})) for values in (identity, saved)
    )
    for key in {**here, **there}:
        if here.get(key) != there.get(key):
            was, value = (str(values.get(key)).strip("\"'") for values in (there, here))
            raise ConfigError("state", f"its {key} is {was}, but this {key} is {value}.")
    then, now = saved.get("outline"), dict(outline({key: saved.get(key) for key in PARTS}))
    then = then if isinstance(then, dict) else {}
    for key in {**then, **now}:
        if now.get(key) != then.get(key):
            raise ConfigError(
                "state",
                f"it is damaged: {key} was {then.get(key)} when it was saved, and is "
                f"{now.get(key)}.",
            )


def mean(values: Sequence[Any]) -> Any:
    """Return the mean of plain data of one shape, in its floating-point tensors."""
    first = values[0]
    if isinstance(first, dict):
        return {name: mean([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(map(mean, zip(*values, strict=True)))
    if isinstance(first, Tensor) and first.is_floating_point():
        return sum(values[1:], first) / len(values)
    return first


def resized(states: Sequence[State], title: str) -> State:
    """Return the parts of a state of any rank, from those of all former ranks, by rank.

    title: of the algorithm. Raises ConfigError if there is no rule for what the states contain
    """
    workers = [state["worker"] for state in states]
    for worker in workers:
        without_rule = sorted(worker["state"].keys() - HAS_MEAN)
        if without_rule or worker["comm"]["mailbox"]:
            what = ", ".join(without_rule) or "messages in flight"
            raise ConfigError(
                "states",
                f"{title} has no rule for {what} among another number of ranks: continue with "
                f"{len(states)} ranks, or start an averager from the mean model.",
            )
    parts = [
        (state["optimizer"], worker["state"]) for state, worker in zip(states, workers, strict=True)
    ]
    counts = [[worker["steps_taken"], worker["taken"]] for worker in workers]
    for what, values in (("states", parts), ("numbers of steps", counts)):
        if len({str(dict(outline(value))) for value in values}) > 1:
            raise ConfigError("states", f"the ranks have different {what}: save them together.")
    weights = torch.stack([worker["push_sum"][-1] for worker in workers])
    shares = weights / weights.sum() * len(workers)
    push_sum = mean([w["push_sum"] * share for w, share in zip(workers, shares, strict=True)])
    push_sum[-1] = 1
    averaged = {name: mean([w[name] for w in workers]) for name in ("state", "model_buffers")}
    worker = {**workers[0], **averaged, "push_sum": push_sum}
    return {"worker": worker, "optimizer": mean([state["optimizer"] for state in states])}


def by_rank(states: Sequence[State], identity: State) -> list[State]:
    """Return the states of all former ranks in their order.

    identity: of the averager that loads them. Raises ConfigError if one is missing or damaged, or
    does not belong here
    """
    for state in states:
        former = state.get("rank") if isinstance(state, dict) else None
        check_state(state, {**identity, "rank": former})
    ordered = sorted(states, key=lambda state: int(state["rank"][0]))
    ranks = [state["rank"] for state in ordered]
    if not states or ranks != [[rank, len(states)] for rank in range(len(states))]:
        which = ", ".join(f"{rank} of {size}" for rank, size in ranks) or "none"
        raise ConfigError("states", f"of the ranks {which}: pass one state of each former rank.")
    return ordered

"""States of `Averager`: checks, and conversion to a different number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from sgp_runner.core.mean_state import check_alike, mean, mean_worker
from sgp_runner.core.state import State, outline
from sgp_runner.utils.errors import ConfigError

PARTS = ("worker", "optimizer")  # of a state: what is replaced


def check_state(state: object, identity: State) -> None:
    """Raise ConfigError if a state is damaged or has a different identity."""
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
                f"damaged: {key} was {then.get(key)} when it was saved, and is {now.get(key)}.",
            )


def resized(states: Sequence[State], title: str) -> State:
    """Return the parts of a state for any rank, from the states of all former ranks by rank.

    title: of the algorithm. Raises ConfigError if the states cannot be averaged
    """
    optimizers = [state["optimizer"] for state in states]
    way_out = f"continue with {len(states)} ranks, or start an averager from the mean model"
    try:
        worker = mean_worker([state["worker"] for state in states], title)
        check_alike("states", optimizers)
    except ValueError as error:
        raise ConfigError("states", f"{error}: {way_out}.") from error
    return {"worker": worker, "optimizer": mean(optimizers)}


def by_rank(states: Sequence[State], identity: State) -> list[State]:
    """Return the states of all former ranks, sorted by rank.

    identity: of the averager that loads them. Raises ConfigError if a state is missing, damaged or
        has a different identity
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

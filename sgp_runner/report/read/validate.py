"""Checks of the files of a run before a report relies on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sgp_runner.config.schema import is_part
from sgp_runner.recording.throughput import RATES
from sgp_runner.utils.errors import printable

CLOCKS = ("simulated", "wall")
METRICS = ("accuracy", "bleu", "loss")
CONSENSUS = "consensus_distance"
# Keys that every summary must have; ``time_s`` and the other costs come with them.
NAMES = ("algorithm", "model", "data", "network", "label")
FACTS = (
    "algorithm",
    "model",
    "data",
    "nodes",
    "network",
    "seed",
    "epochs",
    "clock",
    "label",
    "server",
)
COSTS = (
    *("time_s", "steps", "bytes_per_node", "ms_per_iteration", "ms_per_iteration_fastest", "hours"),
    *RATES,
)
NUMBERS = {
    "eval": ("rank", "epoch", "time_s"),
    "average": ("epoch", "time_s"),
    "train": ("rank", "time_s", "bytes_sent"),
}
MAX_NUMBER = 1e15  # seconds, bytes, steps
MIN_COST = 1e-15
MAX_QUALITY = 1e100
MAX_NAME_LENGTH = 100  # characters
MAX_LABEL_LENGTH = 400
MAX_NODES = 2**20


class Damaged(Exception):
    """A run folder that cannot be used, with the reason."""


def check_settings(config: Mapping[str, Any]) -> None:
    """Raise Damaged if a stored configuration has values that no setting can have.

    Also raises Damaged if a part of the configuration, such as ``cluster``, is not a mapping.
    """
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            kinds = {type(name) for name in value}
            if kinds - {str, int} or len(kinds) > 1 or (not key and int in kinds):
                raise Damaged(f"its config.yaml has names of settings that are not text{at(key)}.")
            waiting += [
                (f"{key}.{name}" if key else str(name), inner) for name, inner in value.items()
            ]
        elif isinstance(value, list):
            waiting += [(key or "settings", inner) for inner in value]
        elif not isinstance(value, str | int | float | None):
            raise Damaged(f"its config.yaml has a value that no setting can have{at(key)}.")
    for key, value in config.items():
        if is_part(key) and not isinstance(value, dict):
            raise Damaged(f"its config.yaml has {cut(repr(value))} for the settings of {key}.")
    if not is_between(config.get("batch_size"), 1, MAX_NUMBER):
        raise Damaged("batch_size in its config.yaml is not a number.")


def at(key: str) -> str:
    return f", {key}," if key else ""


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise Damaged for a summary with missing or impossible values."""
    if missing := [key for key in FACTS if key not in facts]:
        raise Damaged(f"its summary.json lacks {', '.join(missing)}.")
    valid = {
        **{key: is_name(facts[key], MAX_NAME_LENGTH) for key in NAMES if key != "label"},
        "label": is_name(facts["label"], MAX_LABEL_LENGTH),
        "nodes": is_whole(facts["nodes"], 1, MAX_NODES),
        "seed": is_whole(facts["seed"], 0, 2**63),
        "epochs": is_between(facts["epochs"], 0, MAX_NUMBER),
        "clock": facts["clock"] in CLOCKS,
        "server": isinstance(facts["server"], bool),
        "metric": facts.get("metric") in (None, *METRICS),
        "row": facts.get("row") is None or is_name(facts["row"], MAX_NAME_LENGTH),
        "average": facts.get("average") is None
        or is_between(facts["average"], -MAX_QUALITY, MAX_QUALITY),
        **{
            key: facts.get(key) in (None, 0) or is_between(facts[key], MIN_COST, MAX_NUMBER)
            for key in COSTS
        },
    }
    if wrong := [key for key, right in valid.items() if not right]:
        values = ", ".join(f"{key} {cut(repr(facts[key]))}" for key in wrong)
        raise Damaged(f"its summary.json has invalid values: {values}.")


def checked(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of the evaluation and training records that a report uses.

    Raises Damaged for a value that is not a number but should be.
    """
    out = []
    for record in records:
        kind = record["kind"]
        names = NUMBERS.get(kind) if isinstance(kind, str) else None
        if names is None:
            continue
        for name in names:
            if not is_between(record.get(name), 0, MAX_NUMBER):
                raise Damaged(f"its records have an invalid {name}: {cut(repr(record.get(name)))}.")
        for name in METRICS:
            if (value := record.get(name)) is not None and not is_between(
                value, -MAX_QUALITY, MAX_QUALITY
            ):
                raise Damaged(f"its records have an invalid {name}: {cut(repr(value))}.")
        if not is_between(record.get(CONSENSUS) or 0, 0, MAX_NUMBER):
            raise Damaged(
                f"its records have an invalid {CONSENSUS}: {cut(repr(record[CONSENSUS]))}."
            )
        fields = (*names, *METRICS, CONSENSUS) if kind != "train" else names
        out.append({"kind": kind, **{name: record[name] for name in fields if name in record}})
    return out


def is_name(value: object, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and printable(value) == value


def is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and is_between(value, least, most)


def is_between(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"

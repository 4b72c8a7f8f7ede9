"""The settings of a report: the main ones in words, those that differ, and those that all share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgp_runner.report.read.naming import group_by
from sgp_runner.report.read.run_groups import RunGroup, words
from sgp_runner.utils.errors import printable
from sgp_runner.utils.units import number

HAVE_COLUMNS = ("algo.name", "model.name", "data.name", "network.name", "nodes")
MAIN = ("cluster.name", "cluster.bandwidth", "optim.lr", "batch_size", "epochs")


@dataclass(frozen=True)
class WhatWasRun:
    """The box at the top of a report.

    facts: names and values, with all values of what differs
    shared: the other settings that all runs have in common, as on the command line
    """

    facts: Sequence[tuple[str, str]]
    shared: Sequence[str]


def what_was_run(settings: Sequence[RunGroup]) -> WhatWasRun:
    facts: Mapping[str, Sequence[object]] = {
        "model and data": [f"{each.model} on {each.data}" for each in settings],
        "cluster": [cluster_of(each) for each in settings],
        "timed as": [timed_as(each.settings) for each in settings],
        "nodes": [int(each.nodes) for each in settings],
        "batch size": [f"{each.batch_size} per node" for each in settings],
        "learning rate": values(settings, "optim.lr"),
        "optimizer": values(settings, "optim.name"),
        "epochs": [float(each.epochs) for each in settings],
        "seeds": [seed for each in settings for seed in each.seeds],
    }
    rows = [(name, listed(each)) for name, each in facts.items()]
    return WhatWasRun([(name, text) for name, text in rows if text], shared(settings))


def cluster_of(setting: RunGroup) -> str:
    """Return the modelled machines, or the network of a real run."""
    if setting.clock == "wall":
        return f"measured, network={setting.network}"
    return setting.cluster


def timed_as(settings: Mapping[str, Any]) -> str:
    """Describe the training that simulated time models, if it is not the real one."""
    model, count, size = (
        settings.get(f"timed_as.{key}") for key in ("model", "num_parameters", "batch_size")
    )
    parts = [printable(str(model))] if model is not None else []
    parts += [f"{count:,} parameters"] if number(count) else []
    parts += [f"batch size {size} per node"] if number(size) else []
    return ", ".join(parts)


def values(settings: Sequence[RunGroup], key: str) -> list[object]:
    return [each.settings[key] for each in settings if key in each.settings]


def listed(found: Iterable[object]) -> str:
    """Write the distinct values, numbers in their order."""
    distinct = [each for each in dict.fromkeys(map(plain, found)) if each != ""]
    numbers = [each for each in distinct if isinstance(each, int | float)]
    if len(numbers) == len(distinct):
        numbers.sort()
        return ", ".join(f"{each:.6g}" for each in numbers)
    texts = list(map(str, distinct))
    return ("; " if any("," in each for each in texts) else ", ").join(texts)


def plain(value: object) -> object:
    return value if isinstance(value, int | float) else printable(str(value))


def differing(settings: Sequence[RunGroup]) -> list[str]:
    """Return the settings that differ beyond the choices that have them, in their order.

    Settings of a choice, such as algo.tau, are compared among the runs that have the same choice.
    """
    keys = dict.fromkeys(key for each in settings for key in each.settings)
    return [key for key in keys if key not in HAVE_COLUMNS and differs(settings, key)]


def differs(settings: Sequence[RunGroup], key: str) -> bool:
    groups = group_by(settings, lambda each: choices_around(each.settings, key))
    return any(
        len({repr(each.settings.get(key)) for each in members}) > 1 for members in groups.values()
    )


def choices_around(settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the choices that a setting lies in: those of algo and algo.topology for its peers."""
    parts = key.split(".")
    names = [".".join([*parts[:depth], "name"]) for depth in range(1, len(parts))]
    return tuple(str(settings.get(name)) for name in names if name != key)


def shared(settings: Sequence[RunGroup]) -> list[str]:
    """Return the settings that all have in common, as on the command line."""
    first: Mapping[str, Any] = settings[0].settings
    same = [
        key
        for key, value in first.items()
        if all(key in each.settings and each.settings[key] == value for each in settings)
    ]
    return words(first, same)


def columns(setting: RunGroup, keys: Iterable[str]) -> dict[str, object]:
    """Return the main settings and those that differ, as columns of a table."""
    found: Mapping[str, object] = setting.settings
    return {key: found.get(key) for key in dict.fromkeys([*MAIN, *keys])}

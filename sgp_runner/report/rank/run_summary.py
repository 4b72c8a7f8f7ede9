"""Summary of the settings of a report: main, differing and shared settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgp_runner.report.read.naming import group_by
from sgp_runner.report.read.run_groups import RunGroup, as_overrides
from sgp_runner.utils.errors import printable
from sgp_runner.utils.units import number

HAVE_COLUMNS = ("algo.name", "model.name", "data.name", "network.name", "nodes")
MAIN = ("cluster.name", "cluster.links.bandwidth", "optim.lr", "batch_size", "epochs")


@dataclass(frozen=True)
class RunSummary:
    """The box at the top of a report.

    facts: names and values; if the runs differ in a setting, all its values are listed
    shared: the other settings that all runs have in common, as on the command line
    """

    facts: Sequence[tuple[str, str]]
    shared: Sequence[str]


def run_summary(settings: Sequence[RunGroup]) -> RunSummary:
    facts: Mapping[str, Sequence[object]] = {
        "model and data": [f"{setting.model} on {setting.data}" for setting in settings],
        "cluster": [
            f"measured, network={setting.network}" if setting.clock == "wall" else setting.cluster
            for setting in settings
        ],
        "timed as": [timed_as(setting.settings) for setting in settings],
        "nodes": [int(setting.nodes) for setting in settings],
        "batch size": [f"{setting.batch_size} per node" for setting in settings],
        "learning rate": values(settings, "optim.lr"),
        "optimizer": values(settings, "optim.name"),
        "epochs": [float(setting.epochs) for setting in settings],
        "seeds": [seed for setting in settings for seed in setting.seeds],
    }
    rows = [(name, listed(items)) for name, items in facts.items()]
    return RunSummary([(name, text) for name, text in rows if text], shared(settings))


def timed_as(settings: Mapping[str, Any]) -> str:
    """Describe the training whose time is simulated, if it differs from the training of the run."""
    model, count, size = (
        settings.get(f"timed_as.{key}") for key in ("model", "num_parameters", "batch_size")
    )
    parts = (
        printable(str(model)) if model is not None else "",
        f"{count:,} parameters" if number(count) else "",
        f"batch size {size} per node" if number(size) else "",
    )
    return ", ".join(filter(None, parts))


def values(settings: Sequence[RunGroup], key: str) -> list[object]:
    return [setting.settings[key] for setting in settings if key in setting.settings]


def listed(values: Iterable[object]) -> str:
    """Return the distinct values as text; numbers are sorted."""
    distinct = dict.fromkeys(
        value if isinstance(value, int | float) else printable(str(value)) for value in values
    )
    distinct.pop("", None)
    numbers = [value for value in distinct if isinstance(value, int | float)]
    if len(numbers) == len(distinct):
        return ", ".join(f"{value:.6g}" for value in sorted(numbers))
    texts = list(map(str, distinct))
    return ("; " if any("," in text for text in texts) else ", ").join(texts)


def differing(settings: Sequence[RunGroup]) -> list[str]:
    """Return the keys that differ between the settings and have no column, in the order of keys.

    A key that belongs to a choice, such as algo.tau, is compared only among runs with that choice.
    """
    keys = dict.fromkeys(key for setting in settings for key in setting.settings)
    return [key for key in keys if key not in HAVE_COLUMNS and differs(settings, key)]


def differs(settings: Sequence[RunGroup], key: str) -> bool:
    groups = group_by(settings, lambda setting: choices_around(setting.settings, key))
    return any(
        len({repr(setting.settings.get(key)) for setting in members}) > 1
        for members in groups.values()
    )


def choices_around(settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the choices that enclose a key: of algo and algo.topology for algo.topology.peers."""
    parts = key.split(".")
    names = [".".join([*parts[:depth], "name"]) for depth in range(1, len(parts))]
    return tuple(str(settings.get(name)) for name in names if name != key)


def shared(settings: Sequence[RunGroup]) -> list[str]:
    """Return the settings that all runs have in common, as on the command line."""
    first: Mapping[str, Any] = settings[0].settings
    same = [
        key
        for key, value in first.items()
        if all(key in setting.settings and setting.settings[key] == value for setting in settings)
    ]
    return as_overrides(first, same)


def columns(setting: RunGroup, keys: Iterable[str]) -> dict[str, object]:
    """Return the values of the main keys and of the differing ``keys``, as columns of a table."""
    settings: Mapping[str, object] = setting.settings
    return {key: settings.get(key) for key in dict.fromkeys([*MAIN, *keys])}

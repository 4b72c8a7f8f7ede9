"""Settings of clusters by the flat names of earlier versions.

A setting of a cluster is in a group, ``cluster.links.bandwidth``; in earlier versions it was
``cluster.bandwidth``. Flat names remain valid in overrides, files and stored runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.validated import LIMITS
from sgp_runner.utils.messages import logger

KEY = "cluster"
GROUPS: Mapping[str, type[Any]] = {
    name: hint
    for name, hint in get_type_hints(Cluster).items()
    if is_dataclass(hint) and isinstance(hint, type)
}
#: Flat name -> name in its group. ``codecs`` and the limits of ``validated`` always were in theirs.
NAMES = {
    field.metadata.get("was", field.name): f"{group}.{field.name}"
    for group, cls in GROUPS.items()
    for field in fields(cls)
    if group != "codecs" and (group != "validated" or field.name not in LIMITS)
}
FLAT = {name: flat for flat, name in NAMES.items()}
SHORT = ("bandwidth", "latency_seconds", "step_seconds")  # not reported: documented short names


@functools.cache
def warn_of_new_name(old: str, new: str) -> None:
    """Warn once in a process that ``old`` has a new name."""
    logger.warning(f"{old} is now called {new}.")


def renamed(override: str) -> str:
    """Return an override with the present name of its key; warn once of each earlier name."""
    found = re.match(rf"([+~]*){KEY}\.(\w+)(?=[.=]|$)", override)
    if found is None or found[2] not in NAMES:
        return override
    if found[2] not in SHORT:
        warn_of_new_name(f"{KEY}.{found[2]}", f"{KEY}.{NAMES[found[2]]}")
    return f"{found[1]}{KEY}.{NAMES[found[2]]}{override[found.end() :]}"


def grouped(cluster: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the settings of a cluster with each setting in its group."""
    out = {key: value for key, value in cluster.items() if key not in NAMES}
    for key in [key for key in cluster if key in NAMES]:
        group, _, name = NAMES[key].partition(".")
        inner = out.get(group, {})
        if isinstance(inner, Mapping):
            out[group] = {**inner, name: cluster[key]}
        else:
            out[key] = cluster[key]
    return out


def flattened(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cluster by their flat names, which identify runs."""
    out: dict[str, Any] = {}
    for key, value in cluster.items():
        if key in GROUPS and isinstance(value, Mapping):
            names = {name: f"{key}.{name}" for name in value}
            out |= {FLAT.get(full, full): value[name] for name, full in names.items()}
        else:
            out[key] = value
    return out


def grouped_file(tree: Mapping[Any, Any], group: str, where: str) -> dict[Any, Any]:
    """Return the contents of a file with each setting of a cluster in its group.

    The first time that the file ``where`` has earlier names, a warning says what to write.

    group: the group of choices that the file belongs to
    """
    tree = dict(tree)
    if group == KEY:
        warn_of_groups(where, tuple(key for key in tree if key in NAMES))
        tree = grouped(tree)
    if isinstance(inner := tree.get(KEY), Mapping):
        warn_of_groups(where, tuple(key for key in inner if key in NAMES))
        tree[KEY] = grouped(inner)
    return tree


@functools.cache
def warn_of_groups(where: str, flat: tuple[str, ...]) -> None:
    """Warn once of the flat names in a file, unless all of them are short names."""
    if not set(flat) <= set(SHORT):
        groups = grouped(dict.fromkeys(flat))
        new = ", ".join(f"{group}: {{{', '.join(names)}}}" for group, names in groups.items())
        logger.warning(f"{where} has settings of an earlier version: write {new}.")

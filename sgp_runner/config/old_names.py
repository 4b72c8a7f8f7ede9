"""Flat names of a cluster's settings.

A setting of a cluster is in a group, ``cluster.links.bandwidth``. Its flat name is ``bandwidth``:
the identity of a run has flat names, as in version 0.1, and overrides may have three of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.validated import LIMITS

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
SHORT = ("bandwidth", "latency_seconds", "step_seconds")  # in overrides


def renamed(override: str) -> str:
    """Return an override with the full name of its key, which may be one of `SHORT`."""
    match = re.match(rf"([+~]*){KEY}\.(\w+)(?=[.=]|$)", override)
    if match is None or match[2] not in SHORT:
        return override
    return f"{match[1]}{KEY}.{NAMES[match[2]]}{override[match.end() :]}"


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

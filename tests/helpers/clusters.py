"""Clusters from a few settings, by their flat names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sgp_runner.cluster.compute_variation import ComputeTime
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.links import Links
from sgp_runner.cluster.nodes import StepTimes
from sgp_runner.config.old_names import NAMES


def cluster_of(
    step_seconds: Mapping[str, float],
    compute_time: ComputeTime,
    bandwidth: float,
    latency_seconds: float,
    node_factors: Mapping[int, float] | None = None,
    step_batch: Mapping[str, int] | None = None,
    **others: Any,
) -> Cluster:
    compute = StepTimes(step_seconds, step_batch or {}, node_factors=node_factors or {})
    return changed(Cluster(compute_time, compute, Links(bandwidth, latency_seconds)), **others)


def changed(cluster: Cluster, **settings: Any) -> Cluster:
    """``cluster`` with other settings, for example ``bandwidth``."""
    direct = {name: value for name, value in settings.items() if name not in NAMES}
    groups: dict[str, dict[str, Any]] = {}
    for name in settings.keys() - direct.keys():
        group, _, inner = NAMES[name].partition(".")
        groups.setdefault(group, {})[inner] = settings[name]
    parts = {group: replace(getattr(cluster, group), **inner) for group, inner in groups.items()}
    return replace(cluster, **direct, **parts)

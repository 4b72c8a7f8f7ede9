"""Settings: groups of runs that differ only in the seed, named by method, nodes and kind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.report.read.runs import DIVERGED, FINISHED, UNFINISHED, Runs
from sgp_runner.utils.errors import printable
from sgp_runner.utils.units import bit_rate, bit_rate_range, counted, number

MEASURED = ("epoch", "time_s", "fastest_s", "bytes", "quality", "consensus")
METRIC_NAMES = {"bleu": "BLEU"}  # of those that are not words
HIGHER_IS_BETTER = {"accuracy": True, "bleu": True, "loss": False}
CLUSTER = "cluster."
LINKS = f"{CLUSTER}links."
CLUSTER_NAME = f"{CLUSTER}name"
# Say nothing about the machines.
ABOUT_THE_PROFILE = f"{CLUSTER}validated"
INSTANT_RATE = 1e15  # bit/s; profiles that neglect the network have such rates
MAX_OVERRIDE_LENGTH = 300  # characters of a setting that are shown


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one setting; a column of ``runs`` with one common value is also an attribute.

    overrides: the settings that distinguish it from the algorithm's other runs in this report
    cluster: the modelled machines, for example ``ethernet_10g (10 Gbit/s)``; empty for real runs
    runs: rows of ``Runs.table``, one per seed
    curves: rows of ``Runs.curves`` for these runs
    curve: the means of ``MEASURED`` over the seeds, and the range ``low`` to ``high`` of the
        quality, at each epoch that every seed has
    """

    overrides: Sequence[str]
    cluster: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    curve: pd.DataFrame
    means: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        """Return the value of a column of ``runs`` that all runs have in common."""
        if name.startswith("_") or name not in self.runs:
            raise AttributeError(name)
        value = self.__dict__[name] = self.runs[name].iloc[0]  # found first from now on
        return value

    @property
    def method(self) -> str:
        """The algorithm with its overrides."""
        return " ".join([self.algorithm, *self.overrides])

    @property
    def seeds(self) -> list[int]:
        return [int(seed) for seed in self.runs["seed"]]

    @property
    def finished(self) -> bool:
        return self.state not in (UNFINISHED, DIVERGED)

    def mean(self, column: str) -> float:
        """Return the mean of a column over the seeds; NaN if all values are unknown."""
        if column not in self.means:
            values = self.runs[column].astype(float)
            self.means[column] = float(values.mean() if len(values) > 1 else values.iloc[0])
        return self.means[column]

    def range(self, column: str) -> tuple[float, float]:
        values = self.runs[column].astype(float)
        return float(values.min()), float(values.max())

    @property
    def iteration_range(self) -> tuple[float, float]:
        """The lowest and highest ms per iteration, over seeds and link rates."""
        low, high = self.range("ms_per_iteration")
        return float(np.fmin(low, self.range("ms_per_iteration_fastest")[0])), high

    @property
    def utilisation(self) -> float:
        """Mean share of the iteration time spent computing the gradient.

        NaN unless the setting is timed as a language model in simulated time.
        """
        model = str(self.settings.get("timed_as.model"))
        if self.clock != "simulated" or model not in LANGUAGE_MODELS:
            return math.nan
        default = LANGUAGE_MODELS[model].step_seconds
        seconds = number(self.settings.get(f"{CLUSTER}compute.step_seconds.{model}", default))
        return 1000 * (seconds or math.nan) / self.mean("ms_per_iteration")

    @property
    def better(self) -> float:
        """1 if higher quality values are better, -1 if lower values are."""
        return 1.0 if HIGHER_IS_BETTER[self.metric] else -1.0

    @property
    def best(self) -> float:
        """The best quality that every seed reached; NaN if the setting was never evaluated."""
        if self.curves.empty or self.metric is None:
            return math.nan
        return float(
            self.better
            * (self.better * self.curves["quality"]).groupby(self.curves["folder"]).max().min()
        )

    @property
    def ranged(self) -> bool:
        """Whether the simulated links have a range of rates."""
        return bool(
            self.curve["fastest_s"].notna().any()
            or self.runs["ms_per_iteration_fastest"].notna().any()
        )

    def times_to(self, target: float, column: str = "time_s") -> list[float]:
        """Return the seconds until the target, for each seed that reaches it.

        column: ``fastest_s`` for the times at the highest rate of the links, if there is a range
        """
        times = (
            crossing(list(self.better * (curve["quality"] - target)), list(curve[column]))
            for _, curve in self.curves.groupby("folder")
        )
        return [time for time in times if time is not None and not math.isnan(time)]

    def evaluations_before(self, target: float) -> int:
        """Return the fewest evaluations before the target, over the seeds that reach it."""
        ahead = (self.better * (self.curves["quality"] - target) >= 0).groupby(
            self.curves["folder"]
        )
        return int(min(reached.argmax() for _, reached in ahead if reached.any()))


def crossing(ahead: Sequence[float], times: Sequence[float]) -> float | None:
    """Return the time at which a curve first reaches 0, linear between its points.

    If the first point is not negative, this is its time. None: no point reaches 0.
    """
    there = next((index for index, by in enumerate(ahead) if by >= 0), None)
    if there is None:
        return None
    if there == 0:
        return float(times[0])
    behind = -ahead[there - 1]
    share = behind / (behind + ahead[there])
    return float(times[there - 1] + share * (times[there] - times[there - 1]))


def settings_in(runs: Runs) -> list[RunGroup]:
    """Return the settings, sorted by method (in the order of the runs), model, data and nodes."""
    table = runs.table
    keys = [
        json.dumps([line["settings"], line["row"], line["state"]], sort_keys=True, default=str)
        for _, line in table.iterrows()
    ]
    lines_in_order = list(table.to_dict("records"))
    clusters = cluster_names(lines_in_order)
    overrides = overrides_of(lines_in_order, clusters)
    out = []
    evaluated = set(runs.curves["folder"])
    none = runs.curves.iloc[:0]
    without = none, mean_curve(none, 1)
    for _, lines in table.groupby(keys, sort=False):
        curves, curve = without
        if not evaluated.isdisjoint(lines["folder"]):
            curves = runs.curves[runs.curves["folder"].isin(lines["folder"])]
            curve = mean_curve(curves, len(lines))
        line = lines.index[0]
        out.append(RunGroup(overrides[line], clusters[line], lines, curves, curve))
    first = {setting.method: int(setting.runs.index[0]) for setting in reversed(out)}
    return sorted(
        out,
        key=lambda setting: (
            first[setting.method],
            str(setting.model),
            str(setting.data),
            int(setting.nodes),
            not setting.finished,
        ),
    )


def mean_curve(curves: pd.DataFrame, seeds: int) -> pd.DataFrame:
    """Return the mean of the curves at each epoch that all ``seeds`` have, and their range."""
    curve = curves.groupby("epoch", as_index=False)[list(MEASURED[1:])].mean()
    quality = curves.groupby("epoch")["quality"]
    curve["low"], curve["high"] = quality.min().to_numpy(), quality.max().to_numpy()
    return curve[(quality.count() == seeds).to_numpy()]


def cluster_names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the modelled machines of each run by profile and bandwidth; empty for real runs.

    If different machines would have the same name, the name also gives the settings that differ.
    """
    machines = [
        {
            key: value
            for key, value in line["settings"].items()
            if key.startswith(CLUSTER)
            and not key.startswith(ABOUT_THE_PROFILE)
            and line["clock"] == "simulated"
        }
        for line in lines
    ]
    names = [cluster_name(machine) for machine in machines]
    alike: dict[str, list[Mapping[str, object]]] = {}
    for name, machine in zip(names, machines, strict=True):
        alike.setdefault(name, []).append(machine)
    keys = {name: distinguishing(members, ()) for name, members in alike.items()}
    return [
        " ".join([name, *as_overrides(machine, keys[name])])
        for name, machine in zip(names, machines, strict=True)
    ]


def cluster_name(machines: Mapping[str, object]) -> str:
    """Name a cluster by its profile, link rates, slowest node and regions."""
    name = machines.get(CLUSTER_NAME)
    if name is None:
        return ""
    bandwidth = machines.get(f"{LINKS}bandwidth")
    ends = [end for end in map(number, bandwidth) if end] if isinstance(bandwidth, list) else []
    both = min(ends, default=number(bandwidth))
    up, down = (number(machines.get(f"{LINKS}{key}")) for key in ("bandwidth_up", "bandwidth_down"))
    up, down = up or both, down or both
    rates, rate = [], math.inf
    if up and down:
        rate = min(up, down)
        text = bit_rate_range(ends if up == down == both and ends else [up])
        text += f" up, {bit_rate(down)} down" if up != down else ""
        rates.append(text if rate < INSTANT_RATE else "instant messages")
    single = [
        number(value)
        for key, value in machines.items()
        if key.startswith((f"{LINKS}node_bandwidth_up.", f"{LINKS}node_bandwidth_down."))
    ]
    if (slowest := min((node_rate for node_rate in single if node_rate), default=rate)) < rate:
        rates.append(f"slowest node {bit_rate(slowest)}")
    sizes, least = regions_in(machines.get(f"{LINKS}regions"))
    if len(sizes) > 1:
        rates = rates if min(rate, slowest) <= least else []
        alike = sizes[:1] if len({*sizes}) == 1 else sizes
        of_sizes = " + ".join(f"{size:g}" for size in alike)
        rates.append(f"{len(sizes)} regions of {of_sizes}, {bit_rate(least)} between")
    return printable(f"{name}"[:MAX_OVERRIDE_LENGTH]) + (f" ({', '.join(rates)})" if rates else "")


def regions_in(value: object) -> tuple[list[float], float]:
    """Return the nodes of each non-empty region, and the lowest bandwidth of a link (bit/s)."""
    regions = (
        [region for region in value if isinstance(region, dict)] if isinstance(value, list) else []
    )
    limits = [
        [lowest(region.get(key)) for key in ("nodes", "bandwidth_up", "bandwidth_down")]
        for region in regions
    ]
    inhabited = [region for region in limits if min(region) > 0]
    return [nodes for nodes, *_ in inhabited], min(
        (rate for _, *rates in inhabited for rate in rates), default=math.inf
    )


def lowest(value: object) -> float:
    """Return a number, or the smallest number of a list; 0 if there is none."""
    return (
        min((number(item) or 0 for item in value), default=0)
        if isinstance(value, list)
        else (number(value) or 0)
    )


def overrides_of(lines: Sequence[Mapping[str, Any]], clusters: Sequence[str]) -> list[list[str]]:
    """Return, for each run, a few settings that distinguish it from similar runs.

    Similar runs have the same algorithm, task, cluster and nodes.
    """
    keys: dict[tuple[str, ...], list[str]] = {}
    cells: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    for line, cluster in zip(lines, clusters, strict=True):
        where = *task(line), cluster, str(line["nodes"])
        cells.setdefault(where, []).append(line["settings"])
    for cell, members in cells.items():
        preferred = keys.setdefault(cell[:-2], [])
        preferred += [key for key in distinguishing(members, preferred) if key not in preferred]
    return [as_overrides(line["settings"], keys[task(line)]) for line in lines]


def task(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key of a run; overrides distinguish runs with the same key."""
    return tuple(str(line[key]) for key in ("algorithm", "model", "data", "network"))


def distinguishing(members: Sequence[Mapping[str, object]], preferred: Sequence[str]) -> list[str]:
    """Choose keys whose values together distinguish all members; prefer the keys in ``preferred``.

    A key is chosen only if it separates members that the previous keys do not separate.
    """
    chosen: list[str] = []
    groups = 1
    keys = dict.fromkeys([*preferred, *(key for member in members for key in member)])
    # A cluster's name is clearer than its numbers, so it comes first.
    for key in sorted(keys, key=lambda key: key != CLUSTER_NAME):
        values = {repr([member.get(name) for name in (*chosen, key)]) for member in members}
        if len(values) > groups:
            chosen.append(key)
            groups = len(values)
    return chosen


def as_overrides(settings: Mapping[str, object], keys: Sequence[str]) -> list[str]:
    """Format settings as on the command line: ``algo.tau=2 algo.topology=ring``."""
    out = []
    for key in keys:
        if key not in settings:
            continue
        value = settings[key]
        text = f"{value:g}" if isinstance(value, float) else str(value)
        text = json.dumps(value) if value is None or isinstance(value, bool) else text
        out.append(printable(f"{key.removesuffix('.name')}={text}"[:MAX_OVERRIDE_LENGTH]))
    return out


def labels(settings: Sequence[RunGroup]) -> list[str]:
    """Name each setting by its method and all other differences between ``settings``."""
    texts: dict[str, Callable[[RunGroup], str]] = {
        "model": lambda setting: setting.model,
        "data": lambda setting: f"on {setting.data}",
        "nodes": lambda setting: counted(setting.nodes, "node"),
        "kind": lambda setting: setting.kind,
        "network": lambda setting: setting.network,
        "cluster": lambda setting: setting.cluster,
    }
    differing = [key for key in texts if len({getattr(setting, key) for setting in settings}) > 1]
    if len({(setting.kind, setting.network) for setting in settings}) == len(
        {setting.kind for setting in settings}
    ):
        differing = [key for key in differing if key != "network"]  # the kind says as much
    states = [[] if setting.state == FINISHED else [setting.state] for setting in settings]
    return [
        " · ".join(
            [setting.method, *filter(None, (texts[key](setting) for key in differing)), *state]
        )
        for setting, state in zip(settings, states, strict=True)
    ]

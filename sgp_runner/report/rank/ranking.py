"""Settings ranked by the time to a target, and timing studies by their time per iteration.

Settings are ranked together only if they share the task, the clock, the cluster, and the model
that determines their simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from sgp_runner.report.read.naming import BASELINE, distinguishing_overrides, group_by, timed_models
from sgp_runner.report.read.run_groups import METRIC_NAMES, RunGroup
from sgp_runner.report.read.runs import FINISHED, TIMING
from sgp_runner.utils.sums import sum_in_order
from sgp_runner.utils.units import counted

# Fewer evaluations before a target make the time to it too coarse to rank by.
MIN_EVALUATIONS = 5
MAX_TARGET_GAP = (
    0.1  # of what half of the settings reach: how far below it the target of all may lie
)


@dataclass(frozen=True)
class Target:
    """A quality; a ranking compares the times to reach it.

    rule: the reason for the choice of the target, for example ``as asked``
    """

    value: float
    metric: str
    rule: str

    @property
    def text(self) -> str:
        """The target in words, for example ``98 % accuracy``."""
        return {
            "accuracy": f"{100 * self.value:g} % accuracy",
            "bleu": f"{self.value:g} BLEU",
        }.get(self.metric, f"a loss of {self.value:g}")


@dataclass(frozen=True)
class Row:
    """A setting in a ranking.

    rank: 1, 2, ...; None for a setting that never reaches the target, or, in a ranking by
        quality, has not finished
    overrides: the settings that distinguish it from the algorithm's other rows of the ranking
    times: seconds to the target of each seed that reaches it, or the seconds per iteration of each
        seed of a timing study
    speed_up: time of the setting named ``over`` divided by the time of this setting; None if this
        setting has none
    """

    rank: int | None
    overrides: Sequence[str]
    setting: RunGroup
    times: Sequence[float]
    speed_up: float | None
    over: str

    @property
    def name(self) -> str:
        return " ".join([self.setting.algorithm, *self.overrides])

    @property
    def note(self) -> str:
        """Return the overrides, followed by the state unless it is finished."""
        state = [] if self.setting.state == FINISHED else [f"({self.setting.state})"]
        return " ".join([*self.overrides, *state])

    @property
    def time(self) -> float:
        """Mean of the times; NaN if there are none."""
        return sum_in_order(self.times) / len(self.times) if self.times else math.nan

    @property
    def missing(self) -> int:
        """Number of seeds that never reach the target."""
        return len(self.setting.seeds) - len(self.times)


@dataclass(frozen=True)
class Ranking:
    """The rows of one task on one cluster, the best first.

    task: model and data, for example ``mlp on digits``
    cluster: the modelled machines; empty for real runs
    timed: the model that determines the simulated time, for example ``ResNet-50``; empty if it is
        the trained model
    target: the target of all rows; None for timing studies, which are ranked separately for each
        number of nodes
    by_quality: whether the times are `too_coarse` to rank by
    """

    task: str
    cluster: str
    clock: str
    timed: str
    target: Target | None
    rows: Sequence[Row]
    by_quality: bool = False

    @property
    def ranked_by(self) -> str:
        """``time``, or the metric of a ranking by quality."""
        return str(self.settings[0].metric) if self.by_quality else "time"

    @property
    def reason(self) -> str:
        """The reason for a ranking by quality, in a sentence; empty for a ranking by time."""
        by = METRIC_NAMES.get(self.ranked_by, self.ranked_by)
        few = f"Fewer than five evaluations before the target: ranked by {by}."
        return few if self.by_quality else ""

    @property
    def settings(self) -> list[RunGroup]:
        return [row.setting for row in self.rows]

    @property
    def name_parts(self) -> tuple[str, ...]:
        """Strings that make the names of the ranking's files unique."""
        return tuple(filter(None, (self.task, self.timed, self.cluster, self.clock)))


def rankings(settings: Sequence[RunGroup], target: float | None = None) -> list[Ranking]:
    """Rank the settings of each task on each cluster, timing studies last.

    If ``target`` is None, a target is chosen for each task.
    """
    out = []
    for (model, data, metric, study), members in group_by(
        settings,
        lambda setting: (setting.model, setting.data, setting.metric, setting.kind == TIMING),
    ).items():
        goal = None if study or metric is None else target_of(members, target)
        for (cluster, clock, timed), group in group_by(
            members, lambda setting: (setting.cluster, setting.clock, timed_models([setting]))
        ).items():
            coarse = goal is not None and too_coarse(group, goal.value)
            rows = ranked(group, goal, coarse)
            out.append(Ranking(f"{model} on {data}", cluster, clock, timed, goal, rows, coarse))
    return sorted(out, key=lambda ranking: ranking.target is None)


def too_coarse(settings: Sequence[RunGroup], target: float) -> bool:
    """Return whether the evaluations are too infrequent to rank by the time to the target.

    This is the case if at least half of the settings that reach the target have few evaluations
    before it: the time between two evaluations at which it is reached is unknown.
    """
    before = [
        setting.evaluations_before(target) for setting in settings if setting.times_to(target)
    ]
    return bool(before) and median_low(before) < MIN_EVALUATIONS


def ranked(settings: Sequence[RunGroup], target: Target | None, by_quality: bool) -> list[Row]:
    """Return the rows, with ranks and speed-ups."""
    times = [times_of(setting, target) for setting in settings]
    rows = [
        Row(None, distinguishing_overrides(setting, settings), setting, seconds, None, "")
        for setting, seconds in zip(settings, times, strict=True)
    ]
    # An iteration on more nodes covers more samples, so each number of nodes has its own ranks.
    by_nodes = target is None
    rows.sort(key=lambda row: (by_nodes * int(row.setting.nodes), *order(row, by_quality)))
    return [
        with_rank(row, rank, rows, by_quality)
        for members in group_by(rows, lambda row: by_nodes * int(row.setting.nodes)).values()
        for rank, row in enumerate(members, 1)
    ]


def times_of(setting: RunGroup, target: Target | None) -> list[float]:
    if target is not None:
        return setting.times_to(target.value)
    times = setting.runs["ms_per_iteration"].astype(float) / 1000
    return [float(time) for time in times if time > 0]


def order(row: Row, by_quality: bool) -> tuple[float, ...]:
    """Return the sort key of a row.

    Rows with a time come first, ordered by the number of seeds without a time and then by time.
    Rows with equal times, and the other rows, which follow, have the best quality first. In a
    ranking by quality, all finished rows are sorted this way."""
    quality = row.setting.mean("quality")
    worst = math.isnan(quality)
    by_value = worst, 0.0 if worst else -row.setting.better * quality
    times = (row.missing, row.time) if row.times else (math.inf, math.inf)
    return (not row.setting.finished, *by_value, *times) if by_quality else (*times, *by_value)


def with_rank(row: Row, rank: int, rows: Iterable[Row], by_quality: bool) -> Row:
    """Return the row with its rank, and its speed-up over the baseline on as many nodes.

    The baseline is the variant of AR-SGD with the most similar settings, and without a codec if
    there is one. Without AR-SGD, the baseline is the slowest setting.
    """
    ranked = row.setting.finished if by_quality else bool(row.times)
    if not row.times:
        return replace(row, rank=rank if ranked else None)
    peers = [other for other in rows if other.times and other.setting.nodes == row.setting.nodes]
    baselines = [other for other in peers if other.setting.algorithm == BASELINE]
    if baselines:
        base = max(baselines, key=lambda other: (exact(other), equal(other, row), -other.time))
    else:
        base = max(peers, key=lambda other: other.time)
    speed_up = base.time / row.time if row.time else None  # on ideal machines no time may pass
    return replace(row, rank=rank if ranked else None, speed_up=speed_up, over=base.name)


def exact(row: Row) -> bool:
    """Return whether a row of AR-SGD has no codec."""
    return str(row.setting.settings.get("algo.codec.name", "none")) == "none"


def equal(one: Row, other: Row) -> int:
    """Return the number of settings with the same value in both rows."""
    theirs: Mapping[str, object] = other.setting.settings
    return sum(theirs.get(key, theirs) == value for key, value in one.setting.settings.items())


def target_of(settings: Sequence[RunGroup], asked: float | None) -> Target:
    """Return the target that the user ``asked`` for or, by default, a quality that is reached.

    The default is the best quality that all settings reach with every seed. If the worst setting
    lowers this too much, the default is the best quality that half of the settings reach with every
    seed. Unfinished settings count only if no setting has finished.
    """
    metric = settings[0].metric
    if asked is not None:
        return Target(asked, metric, "as asked")
    done = [setting for setting in settings if setting.finished] or settings
    better = settings[0].better
    best = sorted(
        (setting.best for setting in done if setting.best == setting.best),
        key=lambda q: -better * q,
    )
    of_half = best[math.ceil(len(best) / 2) - 1] if best else math.nan
    if not best:
        return Target(of_half, metric, "no setting was evaluated")
    if abs(best[-1] - of_half) <= MAX_TARGET_GAP * abs(of_half):
        few = {1: "the setting reaches", 2: "both settings reach"}
        all_reach = few.get(len(best), f"all {len(best)} settings reach")
        rule = f"the best that {all_reach} with every seed"
        return Target(easier(best[-1], metric), metric, rule)
    rule = f"the best that at least half of {counted(len(best), 'setting')} reach with every seed"
    return Target(easier(of_half, metric), metric, rule)


def easier(quality: float, metric: str) -> float:
    """Round to an easier target: whole percent, tenths of a BLEU point, or two digits of a loss."""
    if metric == "loss":
        unit = 10.0 ** (math.floor(math.log10(quality)) - 1) if quality > 0 else 1.0
        return float(f"{math.ceil(round(quality / unit, 9)) * unit:.6g}")
    scale = 100 if metric == "accuracy" else 10
    return math.floor(round(quality * scale, 9)) / scale

"""The tables of a study: the ranked comparison, and the budget of each arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from statistics import fmean

import pandas as pd

from sgp_runner.console.summary import plain_lines
from sgp_runner.report.rank.tables import Cell, ReportTable, text
from sgp_runner.report.read.naming import short_key
from sgp_runner.report.render.terminal import grid, without_notes
from sgp_runner.studies.comparisons import (
    Compared,
    Comparison,
    between,
    divergence,
    p_text,
    signed,
)
from sgp_runner.studies.conduct import ArmResult, Conducted
from sgp_runner.studies.statistics import mean_of
from sgp_runner.utils.units import counted, duration

MARKS = {"better": "▲", "worse": "▼", "equal": "=", "undecided": "~"}
EDGE = "†"
MEANING = (
    "Small: the difference to the baseline with its 95 % interval, paired by seed, and p; p is "
    "adjusted for all comparisons but the primary one, and intervals are not. ▲ better, ▼ "
    "worse, = differs by less than what matters, ~ undecided. Bold: the best of a column. A rank "
    "is 1 plus the number of arms that tests of all pairs show to be better."
)
EDGE_MEANING = f"{EDGE} The best value lies at the edge of those that were tried."


def ranked(done: Conducted, compared: Sequence[Compared]) -> list[ArmResult]:
    """Return the arms sorted by rank, then by mean among arms that share a rank."""
    first = compared[0]
    return sorted(
        done.arms, key=lambda arm: (first.ranks[arm.arm.name], *first.order(arm.arm.name))
    )


def comparison_table(
    done: Conducted, compared: Sequence[Compared], clusters: Sequence[str], clock: str
) -> ReportTable:
    """Return the ranked table, with a column for each measure on each cluster."""
    arms = ranked(done, compared)
    heads = [head_of(column, clusters, clock) for column in compared]
    rows = [
        [
            text(compared[0].ranks[arm.arm.name]),
            arm_cell(done, arm),
            *(value_cell(column, arm.arm.name) for column in compared),
        ]
        for arm in arms
    ]
    study = done.study
    note = f"{counted(len(done.seeds), 'seed')}."
    if len(arms) > 1:
        note += (
            f" {study.primary} against {study.baseline} by {heads[0]} is tested alone, all others "
            "by Holm's method."
        )
    note = " ".join(filter(None, (note, divergence(done, compared[0]))))
    raw = [line for arm in arms for line in raw_lines(done, arm, compared, clusters, clock)]
    return ReportTable(
        "table", "Comparison", note, pd.DataFrame(raw), ["#", "arm", *heads], rows, ("arm",)
    )


def head_of(column: Compared, clusters: Sequence[str], clock: str) -> str:
    where = f", {clusters[column.cluster]}" if column.by_cluster else ""
    return f"{column.measure.on(clock)}{where}"


def arm_cell(done: Conducted, arm: ArmResult) -> Cell:
    name = arm.arm.name
    settings = " ".join(arm.settings) + (f" {EDGE}" if arm.tuned.at_the_edge else "")
    role = {done.study.baseline: "baseline", done.study.primary: "under study"}.get(name, "")
    cell = text(name, ", ".join(filter(None, (role, settings.strip()))))
    return replace(cell, strong=name == done.study.primary)


def value_cell(column: Compared, name: str) -> Cell:
    """Return the mean over seeds, or the median, with the difference from the baseline below."""
    value = column.centre(name)
    notes = [reached_note(column, name), difference_note(column.comparisons.get(name))]
    best = isfinite(value) and value == column.centre(column.best)
    return replace(text(column.text(name), "; ".join(filter(None, notes))), strong=best)


def reached_note(column: Compared, name: str) -> str:
    """Return how many runs reach the target; empty if all runs of all arms do."""
    share = column.share(name)
    if not share or not column.reached[name].count:
        return share
    return f"{share}, median {column.measure.text(column.reached[name].median)}, restricted mean"


def difference_note(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    effect, measure = comparison.effect, comparison.measure
    if abs(effect.mean) == inf:
        return "diverged"
    mark = MARKS[comparison.verdict]
    if comparison.p is None:
        return f"{mark} {signed(measure, effect.mean)} for every seed"
    note = "" if comparison.primary else ", unadjusted"
    return (
        f"{mark} {signed(measure, effect.mean, unit=False)} ({between(measure, effect)}{note}), "
        f"p {p_text(comparison.p)}"
    )


def raw_lines(
    done: Conducted,
    arm: ArmResult,
    compared: Sequence[Compared],
    clusters: Sequence[str],
    clock: str,
) -> Iterator[dict[str, object]]:
    """Yield a line for each measure of an arm on each cluster, in SI units and shares."""
    name = arm.arm.name
    for column in compared:
        values = column.values[name]
        comparison, reached = column.comparisons.get(name), column.reached.get(name)
        interval = mean_of(values) if all(map(isfinite, values)) else None
        effect = comparison.effect if comparison else None
        yield {
            "rank": column.ranks[name],
            "arm": name,
            "settings": " ".join(arm.settings),
            "at_the_edge": arm.tuned.at_the_edge,
            "search_runs": arm.tuned.runs,
            "measure": str(column.measure),
            "cluster": clusters[column.cluster],
            "clock": clock if column.measure.cost == "time" else "",
            "seeds": len(values),
            "mean": fmean(values),
            "mean_low": interval.low if interval else None,
            "mean_high": interval.high if interval else None,
            "reached": reached.count if reached else None,
            "median": reached.median if reached else None,
            "difference": effect.mean if effect else None,
            "difference_low": effect.low if effect else None,
            "difference_high": effect.high if effect else None,
            "p": comparison.p if comparison else None,
            "primary": bool(comparison and comparison.primary),
            "verdict": comparison.verdict if comparison else "baseline",
            "values": " ".join(f"{value:.9g}" for value in values),
        }


def budget_table(done: Conducted) -> ReportTable:
    """Return what each arm used: search runs, runs that decide, steps, and time."""
    raw, by = [], done.study.tune.by
    for arm in done.arms:
        summaries = [run.job.summary or {} for run in arm.runs[0]]
        steps = max((float(str(summary.get("steps", 0))) for summary in summaries), default=0.0)
        seconds = sum(float(str(summary.get("real_s", 0))) for summary in summaries)
        raw.append(
            {
                "arm": arm.arm.name,
                "search runs": arm.tuned.runs,
                "budget": done.study.tune.budget if arm.space.size > 1 else 0,
                "runs that decide": len(done.seeds),
                "steps of a node": int(steps),
                "their time, one by one": duration(seconds),
                "search": "; ".join(
                    f"{' '.join(map(short_key, arm.space.overrides(candidate)))}: "
                    f"{by.text(fmean(values)) if by else f'{fmean(values):.4g}'} ({len(values)})"
                    for candidate, values in sorted(arm.tuned.scores().items())
                ),
                "chosen": " ".join(arm.settings) + (f" {EDGE}" if arm.tuned.at_the_edge else ""),
            }
        )
    head = [*raw[0]]
    scores = "validation losses" if by is None else f"values of the {by.title}"
    return ReportTable(
        "budget",
        "Budget used",
        "Every arm may use the same number of runs in its search. Scores are mean "
        f"{scores}, with the number of seeds behind each.",
        pd.DataFrame(raw),
        head,
        [[text(value if value != "" else "-") for value in line.values()] for line in raw],
        ("arm", "search", "chosen"),
    )


def table_text(table: ReportTable) -> str:
    """Return the table for an 80-column terminal, without the notes below its cells."""
    return "\n".join(plain_lines(grid(without_notes(table))))

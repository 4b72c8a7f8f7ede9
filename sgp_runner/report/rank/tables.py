"""The tables of a report: raw numbers for CSV, and cells with links for Markdown and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from sgp_runner.recording.throughput import RATES
from sgp_runner.report.rank.run_summary import columns, differing
from sgp_runner.report.rank.throughput_columns import known_rates, rate_columns
from sgp_runner.report.read.naming import CLOCK
from sgp_runner.report.read.published import COMPARABLE, UNITS, Pair
from sgp_runner.report.read.run_groups import (
    CLUSTER,
    MAX_OVERRIDE_LENGTH,
    RunGroup,
    as_overrides,
    labels,
)
from sgp_runner.report.read.runs import PUBLISHED, TIMING
from sgp_runner.utils.errors import printable
from sgp_runner.utils.units import duration, num_bytes, percent

MEANS = ("averaged", "time_s", "ms_per_iteration", "bytes_per_node")
WORDS = ("kind", "cluster", "seeds", "commit")
LOG = "metrics.jsonl"
# Maps the folder of a run and the name of a file in it (or "") to a path relative to the report.
Linker: TypeAlias = Callable[[str, str], str]


@dataclass(frozen=True)
class CellLink:
    """A text and its link target, relative to the report."""

    text: str
    href: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    kind: kind of the result in the cell
    note: text below the links
    strong: whether the links are in bold
    """

    links: Sequence[CellLink]
    kind: str | None = None
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    raw: the values of ``cells``, in SI units
    text_columns: the columns that are not numbers
    """

    name: str
    title: str
    note: str
    raw: pd.DataFrame
    head: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    text_columns: Sequence[str]


def tables(settings: Sequence[RunGroup], pairs: Sequence[Pair], link: Linker) -> list[ReportTable]:
    """Return the tables of a report; without pairs, the table of published figures is omitted."""
    published = [of_pairs(pairs, link)] if pairs else []
    keys = differing(settings)
    return [of_settings(settings, keys, link), *published, of_runs(settings, keys, link)]


def of_settings(settings: Sequence[RunGroup], keys: Sequence[str], link: Linker) -> ReportTable:
    raw, cells, rate_names = [], [], known_rates(settings)
    setting_keys = [key for key in keys if not key.startswith(CLUSTER)]  # a cluster has its column
    clusters, rates = len({setting.cluster for setting in settings}) > 1, rate_columns(settings)
    for label, setting in zip(labels(settings), settings, strict=True):
        low, high = setting.range("quality")
        facts = {
            "setting": label,
            "method": setting.method,
            "model": setting.model,
            "data": setting.data,
            "nodes": setting.nodes,
            "kind": setting.kind,
            "state": setting.state,
            "clock": setting.clock,
            "seeds": joined(setting.seeds),
            "metric": setting.metric,
            "quality": setting.mean("quality"),
            "quality_min": low,
            "quality_max": high,
            **{key: setting.mean(key) for key in MEANS},
        }
        files = {
            "commits": joined(commits(setting.runs)),
            "logs": joined(link(path, LOG) for path in setting.runs["folder"]),
        }
        facts |= {name: setting.mean(name) for name in rate_names}
        raw.append({**facts, **columns(setting, keys), **facts, **files})
        cells.append(
            [
                text(setting.algorithm, f"{setting.model} on {setting.data}"),
                Cell([CellLink(setting.kind)], setting.kind),
                text(setting.nodes),
                *([text(setting.cluster)] if clusters else []),
                *(
                    text("".join(as_overrides(setting.settings, [key])).partition("=")[2])
                    for key in setting_keys
                ),
                text(
                    quality_text(facts["quality"], setting.metric),
                    quality_range(low, high, setting.metric),
                ),
                text(quality_text(facts["averaged"], setting.metric)),
                time_cell(setting),
                text(if_known(facts["ms_per_iteration"] or math.nan, "{:.4g}".format)),
                sent_cell(setting),
                *(text(rate(setting)) for _, rate in rates),
                Cell(
                    [
                        CellLink(f"{seed}", link(path, LOG))
                        for seed, path in zip(setting.seeds, setting.runs["folder"], strict=True)
                    ]
                ),
                text(joined(commits(setting.runs))),
            ]
        )
    head = [
        "algorithm",
        "kind",
        "nodes",
        *(["cluster"] if clusters else []),
        *(printable(key.removesuffix(".name")[:MAX_OVERRIDE_LENGTH]) for key in setting_keys),
        "workers",
        "averaged model",
        "time",
        "ms per iteration",
        "sent per node",
        *(name for name, _ in rates),
    ]
    note = (
        "Means over the seeds; below them, the lowest seed and the highest. "
        "Each seed links to its run's raw log. A commit with + had uncommitted changes."
    )
    head += WORDS[2:]
    return ReportTable(
        "settings", "Settings", note, pd.DataFrame(raw), head, cells, ("algorithm", *WORDS)
    )


def of_runs(settings: Sequence[RunGroup], keys: Sequence[str], link: Linker) -> ReportTable:
    lines = pd.concat([setting.runs for setting in settings])
    methods = [setting.method for setting in settings for _ in setting.seeds]
    unknown = set(RATES) - set(known_rates(settings))
    facts = lines.drop(columns=["settings", *unknown]).assign(
        folder=[link(path, "") for path in lines["folder"]],
        cluster=[setting.cluster for setting in settings for _ in setting.seeds],
    )
    more = [columns(setting, keys) for setting in settings for _ in setting.seeds]
    raw = facts.join(pd.DataFrame(more, facts.index).drop(columns=facts.columns, errors="ignore"))
    cells = [
        [
            Cell([CellLink(line["run"], link(line["folder"], ""))]),
            text(method),
            Cell([CellLink(line["kind"])], line["kind"]),
            text(line["state"]),
            text(line["nodes"]),
            text(line["seed"]),
            text(
                quality_text(line["quality"], line["metric"]),
                quality_range(line["low"], line["high"], line["metric"]),
            ),
            text(quality_text(line["averaged"], line["metric"])),
            text(if_known(line["time_s"], duration), CLOCK[line["clock"]].removesuffix(" time")),
            Cell(
                [
                    CellLink("log", link(line["folder"], LOG)),
                    CellLink("settings", link(line["folder"], "config.yaml")),
                ]
            ),
            text(commit_text(line["commit"], line["dirty"])),
        ]
        for method, line in zip(methods, lines.to_dict("records"), strict=True)
    ]
    return ReportTable(
        "runs",
        "Runs",
        "Below the mean over the workers, the lowest worker and the highest. Links to files work "
        "while the folders of the runs exist.",
        raw.reset_index(drop=True),
        [
            "run",
            "method",
            "kind",
            "state",
            "nodes",
            "seed",
            "workers",
            "averaged model",
            "time",
            "files",
            "commit",
        ],
        cells,
        ("run", "method", "kind", "state", "files", "commit"),
    )


def of_pairs(pairs: Sequence[Pair], link: Linker) -> ReportTable:
    raw, cells = [], []
    for pair in pairs:
        figure, setting = pair.published, pair.setting
        logs = [link(path, LOG) for path in setting.runs["folder"]]
        raw.append(
            {
                "row": pair.row,
                "metric": pair.metric,
                "unit": figure.unit,
                "published": figure.value,
                "published_spread": figure.spread,
                "ours": pair.ours,
                "ours_min": pair.low,
                "ours_max": pair.high,
                "ours_averaged": pair.averaged,
                "error_percent": pair.error,
                "ours_is": pair.ours_is,
                "source": figure.origin,
                "seeds": joined(setting.seeds),
                "commits": joined(commits(setting.runs)),
                "logs": joined(logs),
            }
        )
        averaged = f"{pair.averaged:.4g} averaged model" if pair.averaged is not None else ""
        cells.append(
            [
                text(pair.row),
                text(
                    COMPARABLE[pair.metric]
                    + (f" {UNITS[pair.metric]}" if UNITS[pair.metric] else "")
                ),
                Cell(
                    [
                        CellLink(
                            f"{figure.value:.4g}"
                            + (f" ± {figure.spread:g}" if figure.spread is not None else "")
                        )
                    ],
                    PUBLISHED,
                ),
                text(f"{pair.ours:.4g}", averaged),
                text("" if pair.error is None else f"{pair.error:+.1f} %"),
                Cell([CellLink(pair.ours_is)], pair.kind),
                text(figure.origin),
                Cell(
                    [
                        CellLink(str(seed), log)
                        for seed, log in zip(setting.seeds, logs, strict=True)
                    ]
                ),
                text(joined(commits(setting.runs))),
            ]
        )
    head = ["row", "metric", "published", "ours", "error", "ours is", "source", "seeds", "commit"]
    return ReportTable(
        "published",
        "Published beside ours",
        "Errors are in percent of the published figure. "
        "Derived: computed from published hours, epochs and batch size.",
        pd.DataFrame(raw),
        head,
        cells,
        ("row", "metric", *head[5:]),
    )


def text(value: object, note: str = "") -> Cell:
    return Cell([CellLink(str(value))], note=note)


def if_known(value: float | None, form: Callable[[float], str]) -> str:
    """Return a number as text; empty for None and NaN."""
    return "" if value is None or math.isnan(value) else form(value)


def quality_text(value: float, metric: str | None) -> str:
    forms = {"accuracy": percent, "bleu": "{:.1f} BLEU".format}
    return if_known(value, forms.get(metric or "", "{:.4g}".format))


def quality_range(low: float, high: float, metric: str | None) -> str:
    """Return the range as text; empty if both ends are equal."""
    ends = [quality_text(value, metric) for value in (low, high)]
    return " – ".join(ends) if ends[0] != ends[1] else ""


def time_cell(setting: RunGroup) -> Cell:
    """Return the time of a setting; a timing study predicts the time of the whole schedule."""
    clock = CLOCK[setting.clock].removesuffix(" time")
    if (hours := setting.mean("hours")) > 0:
        return text(f"{hours:.2f} h", f"{clock}, whole schedule")
    return text(
        if_known(setting.mean("time_s"), duration),
        clock if setting.finished else f"{clock}, {setting.state}",
    )


def sent_cell(setting: RunGroup) -> Cell:
    study = setting.kind == TIMING
    sent = sent_text(setting, study)
    return text(sent, "per iteration" if study and sent else "")


def sent_text(setting: RunGroup, per_iteration: bool) -> str:
    """Return the bytes that a node sent; empty if unknown."""
    sent = setting.mean("bytes_per_node") / (setting.mean("steps") if per_iteration else 1)
    return if_known(sent, num_bytes)


def commits(lines: pd.DataFrame) -> list[str]:
    """Return the distinct commits as text."""
    return list(dict.fromkeys(map(commit_text, lines["commit"], lines["dirty"])))


def commit_text(commit: str | None, dirty: bool | None) -> str:
    """Return an abbreviated commit; a + marks a commit with uncommitted changes."""
    return f"{commit[:9]}{'+' if dirty else ''}" if commit else "unknown"


def joined(values: Iterable[object], between: str = " ") -> str:
    return between.join(map(str, values))

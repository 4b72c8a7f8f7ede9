"""The tables of a report: raw numbers for CSV, and cells with links for Markdown and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from sgp_runner.report.rank.run_summary import columns, differing
from sgp_runner.report.read.comparison import COMPARABLE, UNITS, Pair
from sgp_runner.report.read.naming import CLOCK
from sgp_runner.report.read.run_groups import CLUSTER, MAX_OVERRIDE_LENGTH, RunGroup, labels, words
from sgp_runner.report.read.runs import PUBLISHED, TIMING
from sgp_runner.utils.errors import printable
from sgp_runner.utils.units import duration, num_bytes, percent

WORDS = ("kind", "cluster", "seeds", "commit")
LOG = "metrics.jsonl"
# Maps the folder of a run and the name of a file in it (or "") to a path relative to the report.
Linker: TypeAlias = Callable[[str, str], str]


@dataclass(frozen=True)
class CellLink:
    """A text and its target, relative to the report."""

    text: str
    href: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    kind: of the result that the cell names
    note: text below the links
    """

    links: Sequence[CellLink]
    kind: str | None = None
    note: str = ""


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    raw: a line for each line of ``cells``, in SI units
    words: the columns that are not numbers
    """

    name: str
    title: str
    note: str
    raw: pd.DataFrame
    head: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    words: Sequence[str]


def tables(settings: Sequence[RunGroup], pairs: Sequence[Pair], link: Linker) -> list[ReportTable]:
    """Return the tables of a report, with the one of pairs if there are any."""
    out = [of_settings(settings, link)]
    if pairs:
        out.append(of_pairs(pairs, link))
    return [*out, of_runs(settings, link)]


def of_settings(settings: Sequence[RunGroup], link: Linker) -> ReportTable:
    raw, cells, keys = [], [], differing(settings)
    shown = [key for key in keys if not key.startswith(CLUSTER)]  # a cluster has its column
    clusters = len({each.cluster for each in settings}) > 1
    for label, each in zip(labels(settings), settings, strict=True):
        low, high = each.range("quality")
        common = {
            "method": each.method,
            "model": each.model,
            "data": each.data,
            "nodes": each.nodes,
            "kind": each.kind,
        }
        means = {
            key: each.mean(key)
            for key in ("averaged", "time_s", "ms_per_iteration", "bytes_per_node")
        }
        quality = {
            "metric": each.metric,
            "quality": each.mean("quality"),
            "quality_min": low,
            "quality_max": high,
        }
        facts = {
            "setting": label,
            **common,
            "state": each.state,
            "clock": each.clock,
            "seeds": joined(each.seeds),
            **quality,
            **means,
        }
        files = {
            "commits": joined(commits(each.runs)),
            "logs": joined(link(path, LOG) for path in each.runs["folder"]),
        }
        raw.append(facts | beside(facts, columns(each, keys)) | files)
        cells.append(
            [
                text(each.algorithm, f"{each.model} on {each.data}"),
                kind_cell(each.kind),
                text(each.nodes),
                *([text(each.cluster)] if clusters else []),
                *(text(value_text(each.settings, key)) for key in shown),
                text(
                    quality_text(quality["quality"], each.metric),
                    quality_range(low, high, each.metric),
                ),
                text(quality_text(means["averaged"], each.metric)),
                time_cell(each),
                text(f"{means['ms_per_iteration']:.4g}" if means["ms_per_iteration"] > 0 else ""),
                text(*sent_words(each)),
                Cell(
                    [
                        CellLink(f"{seed}", link(path, LOG))
                        for seed, path in zip(each.seeds, each.runs["folder"], strict=True)
                    ]
                ),
                text(joined(commits(each.runs))),
            ]
        )
    head = [
        "algorithm",
        "kind",
        "nodes",
        *(["cluster"] if clusters else []),
        *(printable(key.removesuffix(".name")[:MAX_OVERRIDE_LENGTH]) for key in shown),
        "workers",
        "averaged model",
        "time",
        "ms per iteration",
        "sent per node",
    ]
    note = (
        "Means over the seeds; below them, the lowest seed and the highest. "
        "Each seed links to its run's raw log. A commit with + had uncommitted changes."
    )
    head += WORDS[2:]
    return ReportTable(
        "settings", "Settings", note, pd.DataFrame(raw), head, cells, ("algorithm", *WORDS)
    )


def of_runs(settings: Sequence[RunGroup], link: Linker) -> ReportTable:
    lines = pd.concat([each.runs for each in settings])
    methods = [each.method for each in settings for _ in each.seeds]
    keys = differing(settings)
    facts = lines.drop(columns=["settings"]).assign(
        folder=[link(path, "") for path in lines["folder"]],
        cluster=[each.cluster for each in settings for _ in each.seeds],
    )
    more = [beside(facts, columns(each, keys)) for each in settings for _ in each.seeds]
    raw = facts.join(pd.DataFrame(more, facts.index))
    cells = [
        [
            Cell([CellLink(line["run"], link(line["folder"], ""))]),
            text(method),
            kind_cell(line["kind"]),
            text(line["state"]),
            text(line["nodes"]),
            text(line["seed"]),
            text(
                quality_text(line["quality"], line["metric"]),
                quality_range(line["low"], line["high"], line["metric"]),
            ),
            text(quality_text(line["averaged"], line["metric"])),
            text(time_text(line["time_s"]), CLOCK[line["clock"]].removesuffix(" time")),
            Cell(
                [
                    CellLink("log", link(line["folder"], LOG)),
                    CellLink("settings", link(line["folder"], "config.yaml")),
                ]
            ),
            text(joined(commits(lines.iloc[[number]]))),
        ]
        for number, (method, line) in enumerate(zip(methods, lines.to_dict("records"), strict=True))
    ]
    head = [
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
    ]
    note = (
        "Below the mean over the workers, the lowest worker and the highest. Links to files work "
        "where the folders of the runs are."
    )
    return ReportTable(
        "runs",
        "Runs",
        note,
        raw.reset_index(drop=True),
        head,
        cells,
        ("run", "method", "kind", "state", "files", "commit"),
    )


def of_pairs(pairs: Sequence[Pair], link: Linker) -> ReportTable:
    raw, cells = [], []
    for pair in pairs:
        figure, each = pair.published, pair.setting
        logs = [link(path, LOG) for path in each.runs["folder"]]
        raw.append(raw_pair(pair) | {"logs": joined(logs)})
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
                    [CellLink(str(seed), log) for seed, log in zip(each.seeds, logs, strict=True)]
                ),
                text(joined(commits(each.runs))),
            ]
        )
    head = ["row", "metric", "published", "ours", "error", "ours is", "source", "seeds", "commit"]
    note = (
        "Errors are in percent of the published figure. "
        "Derived: computed from published hours, epochs and batch size."
    )
    return ReportTable(
        "published",
        "Published beside ours",
        note,
        pd.DataFrame(raw),
        head,
        cells,
        ("row", "metric", *head[5:]),
    )


def raw_pair(pair: Pair) -> dict[str, object]:
    figure = pair.published
    facts = {
        "row": pair.row,
        "metric": pair.metric,
        "unit": figure.unit,
        "published": figure.value,
        "published_spread": figure.spread,
    }
    ours = {
        "ours": pair.ours,
        "ours_min": pair.low,
        "ours_max": pair.high,
        "ours_averaged": pair.averaged,
        "error_percent": pair.error,
    }
    made = {"seeds": joined(pair.setting.seeds), "commits": joined(commits(pair.setting.runs))}
    return {**facts, **ours, "ours_is": pair.ours_is, "source": figure.origin, **made}


def beside(facts: Container[object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings without those whose columns would have the names of ``facts``."""
    return {key: value for key, value in settings.items() if key not in facts}


def value_text(settings: Mapping[str, object], key: str) -> str:
    """Return a setting as on the command line; empty where there is none."""
    return "".join(words(settings, [key])).partition("=")[2]


def text(value: object, note: str = "") -> Cell:
    return Cell([CellLink(str(value))], note=note)


def kind_cell(kind: str) -> Cell:
    return Cell([CellLink(kind)], kind)


def quality_text(value: float, metric: str | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return {"accuracy": percent(value), "bleu": f"{value:.1f} BLEU"}.get(
        metric or "", f"{value:.4g}"
    )


def quality_range(low: float, high: float, metric: str | None) -> str:
    """Return the range as text, empty if both ends are equal."""
    ends = [quality_text(value, metric) for value in (low, high)]
    return " – ".join(ends) if ends[0] != ends[1] else ""


def time_cell(setting: RunGroup) -> Cell:
    """Return the time; that of a timing study is predicted from a sample of the schedule."""
    clock = CLOCK[setting.clock].removesuffix(" time")
    if (hours := setting.mean("hours")) > 0:
        return text(f"{hours:.2f} h", f"{clock}, whole schedule")
    return text(
        time_text(setting.mean("time_s")),
        clock if setting.finished else f"{clock}, {setting.state}",
    )


def sent_words(setting: RunGroup) -> tuple[str, str]:
    sent = setting.mean("bytes_per_node")
    if math.isnan(sent):
        return "", ""
    return (
        (num_bytes(sent / setting.mean("steps")), "per iteration")
        if setting.kind == TIMING
        else (num_bytes(sent), "")
    )


def time_text(seconds: float | None) -> str:
    return "" if seconds is None or math.isnan(seconds) else duration(seconds)


def commits(lines: pd.DataFrame) -> list[str]:
    """Return the distinct commits, abbreviated, with a + where files differed."""
    known = zip(lines["commit"], lines["dirty"], strict=True)
    return list(
        dict.fromkeys(
            f"{commit[:9]}{'+' if dirty else ''}" if commit else "unknown"
            for commit, dirty in known
        )
    )


def joined(words: Iterable[object], between: str = " ") -> str:
    return between.join(map(str, words))

"""The tables of a report: raw numbers for CSV, and cells with links for Markdown and the page."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sgp_runner.report.figure import GLYPHS
from sgp_runner.report.plots import CLOCK
from sgp_runner.report.settings import labels
from sgp_runner.units import duration, num_bytes, percent

if TYPE_CHECKING:
    from sgp_runner.report.comparison import Pair
    from sgp_runner.report.settings import Setting


@dataclass(frozen=True)
class Link:
    """A text, and where it leads, relative to the report."""

    text: str
    href: str | None = None


@dataclass(frozen=True)
class Cell:
    """kind: of the result that is named in it."""

    links: Sequence[Link]
    kind: str | None = None


@dataclass(frozen=True)
class Table:
    """raw: a line for each line of ``cells``, in SI units. left: how many columns, from the first, are words."""

    name: str
    title: str
    note: str
    raw: pd.DataFrame
    head: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    left: int


def tables(settings: Sequence[Setting], pairs: Sequence[Pair], folder: Path) -> list[Table]:
    """folder: where the report will be, from which links are relative."""
    out = [of_settings(settings, folder)]
    if pairs:
        out.append(of_pairs(pairs, folder))
    return [*out, of_runs(settings, folder)]


def of_settings(settings: Sequence[Setting], folder: Path) -> Table:
    raw, cells = [], []
    for label, each in zip(labels(settings), settings, strict=True):
        low, high = each.range("quality")
        common = {"method": each.method, "model": each.model, "data": each.data, "nodes": each.nodes, "kind": each.kind}
        means = {key: each.mean(key) for key in ("averaged", "time_s", "ms_per_iteration", "bytes_per_node")}
        quality = {"metric": each.metric, "quality": each.mean("quality"), "quality_min": low, "quality_max": high}
        raw.append(
            {"setting": label, **common, "state": each.state, "clock": each.clock, "seeds": joined(each.seeds), **quality, **means}
            | {"commits": joined(commits(each.runs)), "logs": joined(log_of(path, folder) for path in each.runs["folder"])}
        )
        spread = f"{quality_text(low, each.metric)} – {quality_text(high, each.metric)}" if len(each.seeds) > 1 else ""
        cells.append(
            [
                text(each.method),
                text(f"{each.model} on {each.data}"),
                kind_cell(each.kind),
                text(each.nodes),
                *(text(quality_text(value, each.metric)) for value in (means["averaged"], quality["quality"])),
                text(spread if low == low else ""),
                text(time_text(means["time_s"], each.clock) if each.finished else f"unfinished after {duration(means['time_s'])}"),
                text(f"{means['ms_per_iteration']:.4g}" if means["ms_per_iteration"] > 0 else ""),
                text(num_bytes(means["bytes_per_node"]) if means["bytes_per_node"] >= 0 else ""),
                Cell([Link(f"{seed}", log_of(path, folder)) for seed, path in zip(each.seeds, each.runs["folder"], strict=True)]),
                text(joined(commits(each.runs))),
            ]
        )
    head = ["method", "task", "kind", "nodes", "averaged model", "workers", "range of seeds", "time", "ms per iteration", "sent per node"]
    note = "Means over the seeds. Each seed links to its run's raw log. A commit with + had changes that were not committed."
    return Table("settings", "Settings", note, pd.DataFrame(raw), [*head, "seeds", "commit"], cells, 3)


def of_runs(settings: Sequence[Setting], folder: Path) -> Table:
    lines = pd.concat([each.runs for each in settings])
    methods = [each.method for each in settings for _ in each.seeds]
    raw = lines.drop(columns=["settings", "predicted"]).assign(folder=[linked(path, folder) for path in lines["folder"]])
    cells = [
        [
            Cell([Link(line["run"], linked(line["folder"], folder))]),
            text(method),
            kind_cell(line["kind"]),
            text(line["state"]),
            text(line["nodes"]),
            text(line["seed"]),
            text(quality_text(line["averaged"], line["metric"])),
            text(quality_range(line)),
            text(time_text(line["time_s"], line["clock"])),
            Cell([Link("log", log_of(line["folder"], folder)), Link("settings", linked(Path(line["folder"], "config.yaml"), folder))]),
            text(joined(commits(lines.iloc[[number]]))),
        ]
        for number, (method, line) in enumerate(zip(methods, lines.to_dict("records"), strict=True))
    ]
    head = ["run", "method", "kind", "state", "nodes", "seed", "averaged model", "workers, lowest – highest", "time", "files", "commit"]
    return Table("runs", "Runs", "", raw.reset_index(drop=True), head, cells, 4)


def of_pairs(pairs: Sequence[Pair], folder: Path) -> Table:
    raw, cells = [], []
    for pair in pairs:
        figure, each = pair.published, pair.setting
        source = figure.source + (" (derived)" if figure.derived else "")
        facts = {"row": pair.row, "metric": pair.metric, "unit": figure.unit, "published": figure.value, "published_spread": figure.spread}
        ours = {"ours": pair.ours, "ours_min": pair.low, "ours_max": pair.high, "ours_averaged": pair.averaged, "error_percent": pair.error}
        logs = [log_of(path, folder) for path in each.runs["folder"]]
        versions = {"seeds": joined(each.seeds), "commits": joined(commits(each.runs)), "logs": joined(logs)}
        raw.append({**facts, **ours, "ours_is": pair.verdict, "source": source, **versions})
        averaged = f" ({pair.averaged:.4g} averaged model)" if pair.averaged is not None else ""
        cells.append(
            [
                text(pair.row),
                text(f"{pair.metric.replace('_', ' ')}" + (f", {figure.unit}" if figure.unit not in (pair.metric, "ms") else "")),
                Cell([Link(f"{figure.value:.4g}" + (f" ± {figure.spread:g}" if figure.spread is not None else ""))], "published"),
                Cell([Link(f"{pair.ours:.4g}{averaged}")]),
                text("" if pair.error is None else f"{pair.error:+.1f} %"),
                Cell([Link(pair.verdict)], pair.kind),
                text(source),
                Cell([Link(str(seed), log) for seed, log in zip(each.seeds, logs, strict=True)]),
                text(joined(commits(each.runs))),
            ]
        )
    head = ["row", "metric", "published", "ours", "error", "ours is", "source", "seeds", "commit"]
    note = "Errors are in percent of the published figure. Derived: computed from published hours, epochs and batch size."
    return Table("published", "Published beside ours", note, pd.DataFrame(raw), head, cells, 2)


def markdown(table: Table) -> str:
    def line(words: Iterable[str]) -> str:
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    def cell(each: Cell) -> str:
        words = " ".join(link.text if link.href is None else f"[{link.text}]({link.href})" for link in each.links)
        return f"{GLYPHS[each.kind]} {words}" if each.kind else words

    rules = ["---" if number < table.left else "---:" for number in range(len(table.head))]
    lines = [f"# {table.title}", "", *([table.note, ""] if table.note else []), line(table.head), line(rules)]
    return "\n".join([*lines, *(line(map(cell, row)) for row in table.cells)]) + "\n"


def terminal_rows(settings: Sequence[Setting]) -> list[dict[str, object]]:
    """Settings as ``console.comparison_table`` takes them: like summaries."""
    out = []
    for label, each in zip(labels(settings), settings, strict=True):
        job = [word.replace(" nodes", "") for word in label.split(" · ")[1:] if not word.endswith(" nodes")]
        seeds = f"seed={joined(each.seeds, ',')}"
        row: dict[str, object] = {"algorithm": each.method, "nodes": int(each.nodes), "job": "\n".join([*job, seeds]), "clock": each.clock}
        if not each.finished:
            out.append(row | {"unfinished": True})
            continue
        low, high = each.range("low")[0], each.range("high")[1]
        row |= {"metric": each.metric or "loss", "average": each.mean("averaged"), "worker_min": low, "worker_max": high}
        row |= {key: each.mean(key) for key in ("time_s", "bytes_per_node")}
        out.append({key: value for key, value in row.items() if value == value})
    return out


def text(value: object) -> Cell:
    return Cell([Link(str(value))])


def kind_cell(kind: str) -> Cell:
    return Cell([Link(kind)], kind)


def quality_text(value: float, metric: str | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return {"accuracy": percent(value), "bleu": f"{value:.1f} BLEU"}.get(metric or "", f"{value:.4g}")


def quality_range(line: Mapping[str, float]) -> str:
    low, high = (quality_text(line[key], str(line["metric"])) for key in ("low", "high"))
    return low if low == high else f"{low} – {high}"


def time_text(seconds: float | None, clock: str) -> str:
    return "" if seconds is None or math.isnan(seconds) else f"{duration(seconds)} {CLOCK[clock].removesuffix(' time')}"


def commits(lines: pd.DataFrame) -> list[str]:
    """The different ones, short, with a + where files differed."""
    known = zip(lines["commit"], lines["dirty"], strict=True)
    return list(dict.fromkeys(f"{commit[:9]}{'+' if dirty else ''}" if commit else "unknown" for commit, dirty in known))


def joined(words: Iterable[object], between: str = " ") -> str:
    return between.join(map(str, words))


def linked(path: str | Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def log_of(path: str | Path, folder: Path) -> str:
    return linked(Path(path, "metrics.jsonl"), folder)

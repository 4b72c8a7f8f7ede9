"""Tables of a report as CSV and Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from sgp_runner.report.plots.figure import GLYPHS
from sgp_runner.report.rank.tables import Cell, ReportTable

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how one begins


def inert(value: object) -> object:
    """Return ``value``, quoted if it is text that a spreadsheet would evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def csv(table: ReportTable) -> str:
    return str(table.raw.map(inert).rename(columns=inert).to_csv(index=False))


def save_tables(tables: Iterable[ReportTable], folder: Path) -> None:
    """Write ``<name>.csv`` and ``<name>.md`` of each table."""
    for table in tables:
        (folder / f"{table.name}.csv").write_text(csv(table), encoding="utf-8")
        (folder / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")


def markdown_table(
    head: Sequence[str], rows: Iterable[Iterable[str]], numbers: Collection[str] = ()
) -> str:
    """Return a table in Markdown; columns whose titles are in ``numbers`` are right-aligned."""
    rules = ["---:" if title in numbers else "---" for title in head]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rules, *rows))


def markdown(table: ReportTable) -> str:
    def row(cells: Sequence[Cell]) -> Iterator[str]:
        for name, content in zip(table.head, cells, strict=True):
            text = cell(content)
            yield str(inert(text)) if name in table.text_columns else text

    def cell(content: Cell) -> str:
        text = " ".join(
            literal(link.text) if link.href is None else f"[{literal(link.text)}]({link.href})"
            for link in content.links
        )
        text = f"**{text}**" if content.strong else text
        text += f" ({literal(content.note)})" if content.note else ""
        return f"{GLYPHS[content.kind]} {text}" if content.kind else text

    def literal(text: str) -> str:
        return re.sub(r"[\\|`<\[\]]", r"\\\g<0>", text)

    def without_tags(text: str) -> str:
        return text.replace("<", r"\<")

    titles = {name: literal(str(inert(name))) for name in table.head}
    numbers = [title for name, title in titles.items() if name not in table.text_columns]
    head = [titles[name] for name in table.head]
    note = f"{without_tags(table.note)}\n\n" if table.note else ""
    body = markdown_table(head, map(row, table.cells), numbers)
    return f"# {without_tags(table.title)}\n\n{note}{body}\n"

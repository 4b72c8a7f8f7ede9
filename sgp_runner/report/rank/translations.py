"""A table of validation sentences: the translations of each setting beside the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sgp_runner.recording.recorder import read_summary
from sgp_runner.report.rank.tables import ReportTable, text
from sgp_runner.report.read.run_groups import RunGroup, labels
from sgp_runner.utils.errors import printable

MAX_LENGTH = 1000  # characters of a sentence that are shown
NOTE = (
    "The first seed of each setting translated these sentences of the validation set with its "
    "final averaged model, by greedy decoding."
)


def translation_tables(settings: Sequence[RunGroup]) -> list[ReportTable]:
    """Return the table, or nothing if no setting has translated."""
    lines: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, setting in zip(labels(settings), settings, strict=True):
        for source, reference, translation in sentences(setting):
            start = [("source", source), ("reference", reference)]
            lines.setdefault((source, reference), start).append((label, translation))
    rows = [
        (number, by, sentence)
        for number, translations in enumerate(lines.values(), 1)
        for by, sentence in translations
    ]
    if not rows:
        return []
    head = ("sentence", "by", "text")
    cells = [[text(number if by == "source" else ""), text(by), text(x)] for number, by, x in rows]
    raw = pd.DataFrame(rows, columns=[*head])
    return [ReportTable("translations", "Translations", NOTE, raw, head, cells, ("by", "text"))]


def sentences(setting: RunGroup) -> Iterator[tuple[str, str, str]]:
    """Yield source, reference and translation, as recorded by the first run of ``setting``."""
    recorded: Any = (read_summary(Path(setting.folder)) or {}).get("translations")
    for example in recorded if isinstance(recorded, list) else ():
        if isinstance(example, dict):
            source, reference, translation = (
                printable(str(example.get(name, "")))[:MAX_LENGTH]
                for name in ("source", "reference", "translation")
            )
            yield source, reference, translation

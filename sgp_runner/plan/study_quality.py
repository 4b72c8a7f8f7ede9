"""The loss of quality by H, as measured by a study of the user's own small model.

The figures are shown as measured at that size. They are neither extrapolated to other sizes nor
used in the answer of a plan.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import counted

RECORD, TABLE = "study.json", "table.csv"
LARGEST = 50_000_000  # bytes of a file of a study
STEPS = re.compile(r"\balgo\.(?:period|tau)=(\d+)\b")


@dataclass(frozen=True)
class MeasuredLoss:
    """The validation loss of an arm of a study.

    period: H, the steps between exchanges; 1 if the arm does not set H
    low, high: 95 % interval of the mean over seeds; None with one seed
    """

    arm: str
    words: str
    period: int
    loss: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def text(self) -> str:
        span = "" if self.low is None else f", 95 % from {self.low:.4g} to {self.high:.4g}"
        return f"{self.arm}, H {self.period}: {self.loss:.4g} ({counted(self.seeds, 'seed')}{span})"


@dataclass(frozen=True)
class StudyQuality:
    """The losses of a study by H.

    name: name of the study. setting: model, data and nodes of its runs
    """

    name: str
    setting: str
    losses: Sequence[MeasuredLoss]


def read_quality(path: Path) -> StudyQuality:
    """Return the losses in the folder or the ``study.zip`` of a study. Raises ConfigError."""
    try:
        texts = texts_of(path)
        content = json.loads(texts[RECORD])["versions"][-1]["content"]
        losses = losses_of(content["arms"], [*csv.DictReader(io.StringIO(texts[TABLE]))])
        setting = ", ".join(
            f"{key}={content[key]}" for key in ("model", "data", "nodes") if key in content
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, BadZipFile) as error:
        raise ConfigError(
            "quality", f"{path} is neither the folder nor the study.zip of a finished study."
        ) from error
    if not losses:
        raise ConfigError("quality", f"{path} has no loss: add loss to the measures of the study.")
    name = path.resolve().parent.name if path.suffix == ".zip" else path.resolve().name
    return StudyQuality(name, setting, losses)


def texts_of(path: Path) -> dict[str, str]:
    """Return the record and the table of a study."""
    if path.is_dir():
        return {name: (path / name).read_text(encoding="utf-8") for name in (RECORD, TABLE)}
    with ZipFile(path) as archive:
        texts = {}
        for member in sorted(archive.infolist(), key=lambda member: member.filename.count("/")):
            name = member.filename.rpartition("/")[2]
            if name in (RECORD, TABLE) and name not in texts and member.file_size <= LARGEST:
                texts[name] = archive.read(member).decode("utf-8")
    return texts


def losses_of(
    arms: Mapping[str, Any], lines: Sequence[Mapping[str, str]]
) -> tuple[MeasuredLoss, ...]:
    """Return the losses of the arms on the first cluster, in the order of H."""
    losses: dict[str, MeasuredLoss] = {}
    for line in lines:
        name = line["arm"]
        if line["measure"] != "loss" or name in losses:
            continue
        overrides = " ".join([str(arms.get(name, "")), line["settings"]]).strip()
        steps = STEPS.search(overrides)
        low, high = (float(line[key]) if line[key] else None for key in ("mean_low", "mean_high"))
        losses[name] = MeasuredLoss(
            name, overrides, int(steps[1]) if steps else 1, float(line["mean"]), low, high,
            int(line["seeds"]),
        )  # fmt: skip
    return tuple(sorted(losses.values(), key=lambda loss: loss.period))

"""Studies whose runs have results that a test sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sgp_runner.studies.candidates import Candidate, Space, Tuned
from sgp_runner.studies.conduct import ArmResult, Conducted
from sgp_runner.studies.measures import RunResult
from sgp_runner.studies.study_file import study_of

CONTENT: dict[str, Any] = {
    "question": "Does SGP save time & bytes?",
    "model": "mlp",
    "model.hidden": [8],
    "nodes": 2,
    "epochs": 0.1,
    "eval_every": 0.05,
    "arms": {"SGP": "algo=sgp", "AD-PSGD": "algo=ad_psgd"},
    "tune": {"optim.lr": "ladder(0.05, 0.1)", "budget": 4},
    "seeds": 2,
    "clusters": ["laptop", "laptop bandwidth=1Mbit/s"],
    "measures": ["loss", "time", "time_to_loss(0.01)"],
}


class Finished:
    """A run with these results, as if it had been made; one with an infinite loss diverged."""

    def __init__(self, folder: Path, loss: float, seconds: float) -> None:
        self.folder, self.name, self.diverged = folder, folder.name, loss == inf
        self.cores, self.memory, self.due = 1, 0, False
        self.summary = {"average_loss": loss, "time_s": seconds, "steps": 8, "real_s": 1.0}
        folder.mkdir(parents=True)
        records = [
            {"kind": "average", "epoch": epoch, "time_s": epoch * seconds, "loss": value}
            for epoch, value in ((0.5, 2.0), (1.0, loss))
            if value < inf
        ]
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")

    def perform(self) -> str:
        return ""


def conducted(
    folder: Path,
    losses: Mapping[str, Sequence[float]],
    measures: Sequence[str],
    seconds: Mapping[str, float] = MappingProxyType({}),
) -> Conducted:
    """Return a study of these losses by arm and seed; the runs of an arm take 10 s, or others."""
    content = {**CONTENT, "measures": [*measures], "matters": 0.5, "clusters": ["laptop"]}
    content["arms"] = {name: f"algo={name}" for name in losses}
    study = study_of(content, "pretended")
    arms = [
        ArmResult(
            study.arm(name),
            Space(),
            Tuned(Candidate(None)),
            [
                [
                    RunResult(Finished(folder / f"{name}{n}", loss, seconds.get(name, 10.0)), 10)
                    for n, loss in enumerate(arm_losses)
                ]
            ],
        )
        for name, arm_losses in losses.items()
    ]
    seeds = tuple(range(1, 1 + len(arms[0].runs[0])))
    return Conducted(study, arms, seeds, None)

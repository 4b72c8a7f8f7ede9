"""Run folders with known numbers, as runs leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from sgp_runner.config.experiment import FORMAT
from sgp_runner.report.plots.figure import Plot
from sgp_runner.report.plots.sections import sections
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.read.run_groups import RunGroup, settings_in
from sgp_runner.report.read.runs import read_runs

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def settings_of(root: Path) -> list[RunGroup]:
    return settings_in(read_runs([root]))


def plots_of(root: Path, target: float | None = None) -> dict[str, Plot]:
    settings = settings_of(root)
    found = sections(settings, rankings(settings, target), [])
    return {plot.name: plot for section in found for plot in section.plots}


def write_run(
    root: Path,
    name: str,
    accuracy: Sequence[Sequence[float]] = (),
    *,
    algorithm: str = "SGP",
    nodes: int = 2,
    seed: int = 1,
    seconds: float = 10.0,
    clock: str = "simulated",
    data: str = "digits",
    finished: bool = True,
    settings: Mapping[str, object] | None = None,
    consensus: Sequence[float] = (),
    early: int = 0,
    **summary: object,
) -> Path:
    """A run of one step per epoch of ``seconds`` each, in which each node sends 1000 bytes;
    ``accuracy`` [epochs, workers].

    Without accuracies it only times messages, for four steps. summary: what else the summary says.
    consensus: the consensus distance of each epoch. early: evaluations in the first epoch, of an
    accuracy of 0, so that the time to a target is ranked.
    """
    folder = root / name
    folder.mkdir(parents=True)
    kind = {"wall": "measured on this machine"}.get(
        clock, f"rehearsal on {data}; time simulated" if accuracy else "timing only; time simulated"
    )
    steps = len(accuracy) or 4
    facts = {
        "algorithm": algorithm,
        "model": "mlp" if accuracy else "timing_only",
        "data": data,
        "nodes": nodes,
        "seed": seed,
        "network": "sim" if clock == "simulated" else "gloo",
        "epochs": steps,
        "clock": clock,
        "label": kind,
        "server": False,
    }
    config: dict[str, object] = {
        "format": FORMAT,
        "algo": {"name": algorithm},
        "network": {"name": facts["network"]},
        "nodes": nodes,
        "epochs": float(steps),
        "batch_size": 32,
        "seed": seed,
        "name": name,
    }
    (folder / "config.yaml").write_text(
        yaml.safe_dump(config | dict(settings or {}), sort_keys=False)
    )
    (folder / "environment.json").write_text(json.dumps({"git": {"commit": COMMIT, "dirty": True}}))
    records: list[dict[str, object]] = [
        {"kind": "eval", "time_s": seconds * share, "clock": clock, "epoch": share, "rank": rank}
        | {"loss": 1.0, "accuracy": 0.0}
        for share in (round(0.1 * (number + 1), 1) for number in range(early))
        for rank in range(len(accuracy[0]))
    ]
    for step in range(steps):
        stamp = {"time_s": seconds * (step + 1), "clock": clock, "epoch": step + 1}
        sent = {"step": step, "bytes_sent": 1000 * (step + 1)}
        records += [{"kind": "train", **stamp, "rank": rank, **sent} for rank in range(nodes)]
        if accuracy:
            records += [
                {"kind": "eval", **stamp, "rank": rank, "loss": 1.0, "accuracy": value}
                for rank, value in enumerate(accuracy[step])
            ]
            distance = {"consensus_distance": consensus[step]} if consensus else {}
            average = {"loss": 1.0, "accuracy": max(accuracy[step]), **distance}
            records.append({"kind": "average", **stamp, **average})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        costs = {"time_s": seconds * steps, "steps": steps, "bytes_per_node": 1000 * steps}
        (folder / "summary.json").write_text(json.dumps({**facts, **costs, **summary}))
    return folder

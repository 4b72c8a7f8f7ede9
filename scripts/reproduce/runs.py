"""The runs of the papers' tables, and how the tables show them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from claims.timing import MODELS, pipe_study
from reproduce.archives import archived
from reproduce.order import stated
from sgp_runner.jobs.job_pool import RunJob, outdated
from sgp_runner.report.read.published import Published, published

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "reproduced"
PARTS = ("timing", "rehearsal")
SEEDS = (1, 2, 3)
SCALED = ("sgp_ar_sgd_90", "sgp_sgp_90", "sgp_osgp_270", "sgp_ad_psgd_270")
CLUSTERS = ("sgp_ethernet", "sgp_infiniband")
# Titles of the accuracy tables by the beginning of the names of their rows.
TABLES = {
    "sgp": "SGP paper, ResNet-50 on ImageNet, 32 nodes",
    "slowmo_cifar10": "SlowMo paper, Table 1, ResNet-18 on CIFAR-10, 32 nodes",
    "slowmo_imagenet": "SlowMo paper, Table 1, ResNet-50 on ImageNet, 32 nodes",
    "slowmo_wmt16": "SlowMo paper, Table 1, Transformer big on WMT'16 English-German, 8 nodes",
    "goyal": "Goyal et al., ResNet-50 on ImageNet",
}
METRICS = {"val_top1": "top-1 accuracy, %", "top1_error": "top-1 error, %", "bleu": "BLEU"}
PIPE_SGD = (
    "pipesgd_ps_sync",
    "pipesgd_d_sync",
    "pipesgd_pipe_sgd",
    "pipesgd_pipe_sgd_truncate16",
    "pipesgd_pipe_sgd_quantize8",
)


def job(name: str, *overrides: str) -> RunJob:
    return RunJob(name, overrides, OUT.relative_to(ROOT))


def timing(row: str) -> RunJob:
    return job(f"timing-{row}", f"experiment={row}", "model=timing_only", "log_every=480")


def scaling(row: str, nodes: int, cluster: str) -> RunJob:
    overrides = (
        f"experiment={row}",
        "model=timing_only",
        f"nodes={nodes}",
        f"cluster={cluster}",
        "row=null",
        "log_every=480",
    )
    return job(f"scaling-{row}-{cluster}-n{nodes}", *overrides)


def pipe_sgd(row: str, model: str) -> RunJob:
    return pipe_study(OUT.relative_to(ROOT), row, model)


def rehearsal(row: str, seed: int) -> RunJob:
    return job(
        f"rehearsed-{row}-s{seed}",
        f"experiment={row}",
        "rehearsal=true",
        f"seed={seed}",
        "log_every=100",
    )


def rows_with(*metrics: str) -> list[str]:
    return [
        row for row, figures in published().items() if any(metric in figures for metric in metrics)
    ]


def jobs(parts: Sequence[str]) -> Iterator[RunJob]:
    if "timing" in parts:
        yield from map(timing, rows_with("ms_per_iteration"))
        for row, nodes in product(SCALED, (4, 8, 16)):
            yield scaling(row, nodes, "sgp_ethernet")
        for row, nodes in product(SCALED, (4, 8, 16, 32)):
            yield scaling(row, nodes, "sgp_infiniband")
        for row, model in product(PIPE_SGD, MODELS):
            yield pipe_sgd(row, model)
    if "rehearsal" in parts:
        for seed, table in product(SEEDS, TABLES):
            yield from (rehearsal(row, seed) for row in rows_of(table))
        for row, seed in product(rows_stated(), SEEDS):
            yield rehearsal(row, seed)


def rows_of(table: str) -> list[str]:
    return [row for row in rows_with(*METRICS) if row.startswith(f"{table}_")]


def rows_stated() -> list[str]:
    """Return the rows whose order by loss a paper states in words."""
    every = [order for order in stated() if order.measure == "loss"]
    return list(dict.fromkeys(row for order in every for row in (order.better, order.worse)))


def before_corrections(jobs: Iterable[RunJob]) -> str:
    """Return a paragraph about the runs made before a correction of the code; empty without any."""
    sentence = outdated(jobs)
    return f"{sentence}\n\n" if sentence else ""


def real(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def rounded_figure(figure: Published) -> str:
    return f"{'~' if figure.derived else ''}{figure.value:.0f}"


def relative(job: RunJob) -> str:
    return f"{archived(ROOT / job.folder).relative_to(ROOT / 'results').as_posix()}/metrics.jsonl"


def log_of(job: RunJob) -> str:
    return f"[log]({relative(job)})"


def commit(job: RunJob) -> str:
    facts = json.loads((job.folder / "environment.json").read_text(encoding="utf-8"))
    return str((facts["git"] or {}).get("commit") or "unknown")[:9]

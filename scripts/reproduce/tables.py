"""The papers' tables: the runs behind them, and ``results/README.md`` with the report of those that
have finished.

Times of every published row come from timing studies on the papers' cluster profiles; accuracies
from rehearsals on small data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from claims import pipeline
from reproduce.archives import archived
from sgp_runner.report.published import Published, published
from sgp_runner.session.job_pool import Job, outdated

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "reproduced"
PARTS = ("timing", "rehearsal")
SEEDS = (1, 2, 3)
SCALED = ("sgp_ar_sgd_90", "sgp_sgp_90", "sgp_osgp_270", "sgp_ad_psgd_270")
CLUSTERS = ("sgp_ethernet", "sgp_infiniband")
# The accuracy tables, by how their rows begin.
TABLES = {
    "goyal": "Goyal et al., ResNet-50 on ImageNet",
    "sgp": "SGP paper, ResNet-50 on ImageNet, 32 nodes",
    "slowmo_cifar10": "SlowMo paper, Table 1, ResNet-18 on CIFAR-10, 32 nodes",
    "slowmo_imagenet": "SlowMo paper, Table 1, ResNet-50 on ImageNet, 32 nodes",
    "slowmo_wmt16": "SlowMo paper, Table 1, Transformer big on WMT'16 English-German, 8 nodes",
}
METRICS = {"val_top1": "top-1 accuracy, %", "top1_error": "top-1 error, %", "bleu": "BLEU"}
PIPE_SGD = (
    "pipesgd_ps_sync",
    "pipesgd_d_sync",
    "pipesgd_pipe_sgd",
    "pipesgd_pipe_sgd_truncate16",
    "pipesgd_pipe_sgd_quantize8",
)


def job(name: str, *words: str) -> Job:
    return Job(name, words, OUT.relative_to(ROOT))


def timing(row: str) -> Job:
    return job(f"timing-{row}", f"experiment={row}", "model=timing_only", "log_every=480")


def scaling(row: str, nodes: int, cluster: str) -> Job:
    words = (
        f"experiment={row}",
        "model=timing_only",
        f"nodes={nodes}",
        f"cluster={cluster}",
        "row=null",
        "log_every=480",
    )
    return job(f"scaling-{row}-{cluster}-n{nodes}", *words)


def pipe_sgd(row: str, model: str) -> Job:
    return pipeline.study(OUT.relative_to(ROOT), row, model)


def rehearsal(row: str, seed: int) -> Job:
    return job(
        f"rehearsal-{row}-s{seed}",
        f"experiment={row}",
        "rehearsal=true",
        f"seed={seed}",
        "log_every=100",
    )


def rows_with(*metrics: str) -> list[str]:
    return [
        row for row, figures in published().items() if any(metric in figures for metric in metrics)
    ]


def jobs(parts: Sequence[str]) -> Iterator[Job]:
    if "timing" in parts:
        yield from map(timing, rows_with("ms_per_iteration"))
        for row, nodes in product(SCALED, (4, 8, 16)):
            yield scaling(row, nodes, "sgp_ethernet")
        for row, nodes in product(SCALED, (4, 8, 16, 32)):
            yield scaling(row, nodes, "sgp_infiniband")
        for row, model in product(PIPE_SGD, pipeline.MODELS):
            yield pipe_sgd(row, model)
    if "rehearsal" in parts:
        for seed, table in product(SEEDS, TABLES):
            yield from (rehearsal(row, seed) for row in rows_of(table))


def rows_of(table: str) -> list[str]:
    return [row for row in rows_with(*METRICS) if row.startswith(f"{table}_")]


# Tables, of the runs that have finished.


def write_tables() -> None:
    from sgp_runner.report.write import write_report

    OUT.mkdir(parents=True, exist_ok=True)
    parts = [
        timing_section(),
        scaling_section(),
        pipe_sgd_section(),
        *map(rehearsal_section, TABLES),
    ]
    if done := [job.folder for job in jobs(PARTS) if job.summary]:
        write_report(
            done,
            OUT / "report",
            title="Published results, reproduced as far as one machine can",
            kept=archived,
        )
    (ROOT / "results" / "README.md").write_text(
        readme([part for part in parts if part]), encoding="utf-8"
    )


def timing_section() -> str:
    lines, errors = [], []
    for row in rows_with("ms_per_iteration"):
        summary = timing(row).summary
        if summary is None:
            continue
        figures = published()[row]
        error = percent_off(summary["ms_per_iteration"], figures["ms_per_iteration"])
        hours = figures.get("hours")
        if not summary["fitted"]:
            errors.append(abs(error))
        times = [
            shown(figures["ms_per_iteration"]),
            f"{real(summary['ms_per_iteration']):.0f}",
            f"{error:+.1f} %",
        ]
        both = [
            f"{hours.value:g}" if hours else "",
            f"{real(summary['hours']):.2f}" if summary["hours"] is not None else "",
        ]
        lines.append(
            [
                row,
                *times,
                *both,
                "fitted" if summary["fitted"] else "predicted",
                log(timing(row)),
                commit(timing(row)),
            ]
        )
    if not lines:
        return ""
    head = [
        "row",
        "published, ms",
        "simulated, ms",
        "error",
        "published, h",
        "simulated, h",
        "our time is",
        "log",
        "commit",
    ]
    verdict = (
        f"Of the {len(errors)} predicted rows the largest error is {max(errors):.1f} %, the mean "
        f"{sum(errors) / len(errors):.1f} %."
    )
    return "\n".join(
        [
            "## Time per iteration: simulated",
            "",
            "Event simulation of the papers' clusters (`configs/cluster/sgp_ethernet.yaml`, "
            "`slowmo_ethernet.yaml`), at most three fitted",
            f"constants for each paper. {verdict} What kind of machine it is (half or full "
            "duplex, which",
            "all-reduce, what the host does) was chosen knowing all rows; the profiles say why. A "
            "tilde marks a time derived from hours.",
            "",
            "AD-PSGD is timed as the authors' implementation ran it, with half an average per "
            "gradient; Algorithm 1's one per gradient",
            "takes as long, since both hide behind the gradients.",
            "",
            *table(head, lines),
            "",
            *before_corrections(map(timing, rows_with("ms_per_iteration"))),
            f"Repeat one: `{timing('sgp_ar_sgd_90').command}`.",
        ]
    )


def scaling_section() -> str:
    lines = []
    for row, cluster in product(SCALED, CLUSTERS):
        summaries = [scaling(row, nodes, cluster).summary for nodes in (4, 8, 16, 32)]
        if cluster == "sgp_ethernet":
            summaries[-1] = timing(row).summary
        known = [summary for summary in summaries if summary]
        if len(known) == len(summaries):
            times = [f"{real(summary['ms_per_iteration']):.0f}" for summary in known]
            lines.append(
                [str(known[0]["algorithm"]), cluster, *times, log(scaling(row, 4, cluster))]
            )
    if not lines:
        return ""
    head = [
        "algorithm",
        "cluster profile",
        *(f"{nodes} nodes, ms" for nodes in (4, 8, 16, 32)),
        "log of 4 nodes",
    ]
    return "\n".join(
        [
            "## Time per iteration at other sizes and on InfiniBand: simulated, and no published "
            "number is available here",
            "",
            *table(head, lines),
            "",
            *before_corrections(
                scaling(row, nodes, cluster)
                for row, nodes, cluster in product(SCALED, (4, 8, 16), CLUSTERS)
            ),
            f"Repeat one: `{scaling('sgp_ar_sgd_90', 8, 'sgp_infiniband').command}`.",
        ]
    )


def pipe_sgd_section() -> str:
    lines = []
    for row in PIPE_SGD:
        both = [pipe_sgd(row, model).summary for model in pipeline.MODELS]
        slowest = [pipe_sgd(PIPE_SGD[0], model).summary for model in pipeline.MODELS]
        cells = []
        for summary, base in zip(both, slowest, strict=True):
            if summary is None or base is None:
                return ""
            ours, theirs = real(summary["ms_per_iteration"]), real(base["ms_per_iteration"])
            cells += [f"{ours:.0f}", f"{theirs / ours:.1f}"]
        lines.append([row, *cells, log(pipe_sgd(row, "resnet18")), log(pipe_sgd(row, "alexnet"))])
    figure = published()["pipesgd_pipe_sgd"]["speedup"]
    head = ["row", "ResNet-18, ms", "times PS-Sync", "AlexNet, ms", "times PS-Sync", "log", "log"]
    return "\n".join(
        [
            "## Pipe-SGD against PS-Sync and D-Sync on 4 nodes: simulated",
            "",
            f"Published: up to {figure.value:g} times faster ({figure.source}). The models and "
            "times behind that number are not available",
            "here and compute times are derived from operation counts "
            "(`configs/cluster/pipesgd_titanxp.yaml`), so these are not errors.",
            "",
            *table(head, lines),
            "",
            f"Repeat one: `{pipe_sgd(PIPE_SGD[2], 'alexnet').command}`.",
        ]
    )


def rehearsal_section(name: str) -> str:
    lines = []
    data = set()
    for row in rows_of(name):
        done = [job for job in (rehearsal(row, seed) for seed in SEEDS) if job.summary is not None]
        if not done:
            continue
        summaries = [job.summary or {} for job in done]
        metric = next(metric for metric in METRICS if metric in published()[row])
        data |= {
            f"{summary['model']} on {summary['data']}, {real(summary['epochs']):g} epochs"
            for summary in summaries
        }
        averaged = [quality(summary, "average", metric) for summary in summaries]
        workers = [quality(summary, "worker_mean", metric) for summary in summaries]
        seeds = " ".join(
            f"[{summary['seed']}]({relative(job)})"
            for job, summary in zip(done, summaries, strict=True)
        )
        ours = (
            [spread(averaged), spread(workers)] if None not in workers else [spread(averaged), ""]
        )
        lines.append(
            [
                row,
                f"{published()[row][metric].value:g}",
                *ours,
                seeds,
                " ".join(dict.fromkeys(map(commit, done))),
            ]
        )
    if not lines:
        return ""
    metric = next(metric for metric in METRICS if metric in published()[rows_of(name)[0]])
    head = [
        "row",
        f"published {METRICS[metric]}",
        "ours, averaged model",
        "ours, mean of workers",
        "seeds and logs",
        "commits",
    ]
    return "\n".join(
        [
            f"## {TABLES[name]}: rehearsal, not comparable with the published numbers",
            "",
            f"Ours: {' and '.join(sorted(data))}; the same algorithms and settings, other data "
            "and models. Mean over the seeds, and",
            "lowest to highest.",
            "",
            *table(head, lines),
            "",
            *before_corrections(
                rehearsal(row, seed) for row, seed in product(rows_of(name), SEEDS)
            ),
            f"Repeat one: `{rehearsal(rows_of(name)[0], 1).command}`.",
        ]
    )


def readme(sections: Sequence[str]) -> str:
    return "\n".join(
        [
            "<!-- Generated by scripts/reproduce.py. -->",
            "# Results",
            "",
            "- [paper/](paper): the published numbers, each with its source.",
            "- [reproduced/](reproduced): ours, made by `make reproduce` on one machine without a "
            "GPU; every run with its settings, raw",
            "  log and versions in an archive in `reproduced/logs/`, a table of all runs, "
            "`reproduced/runs.csv`, and those of these tables",
            "  in one page, `reproduced/report/index.html`. The link of a log names the archive "
            "and, behind #, the file in it; `make logs`",
            "  unpacks all archives into `reproduced/runs/`.",
            "",
            "What these are, plainly:",
            "",
            "- **Reproduced here, for real:** nothing of ImageNet, CIFAR or WMT'16. No published "
            "accuracy has been reproduced.",
            "- **Only simulated:** times per iteration and hours, from models of the papers' "
            "clusters.",
            "- **Rehearsed:** whether the published settings train, and how the algorithms "
            "compare on small data. A rehearsal's accuracy",
            "  says nothing about ImageNet's, and on digits, where nearly every row ends near its "
            "ceiling, little about their order;",
            "  [claims.md](reproduced/claims.md) compares them on harder data, with intervals.",
            "- **Needs a cluster and the data:** every published accuracy; the presets in "
            "`configs/experiment/` are the commands, for",
            "  example `sbatch --nodes=32 --gpus-per-node=8 slurm/run.sbatch "
            "experiment=sgp_sgp_90 network=nccl`.",
            "",
            *("\n\n".join(sections).split("\n")),
            "",
        ]
    )


def before_corrections(jobs: Iterable[Job]) -> Iterator[str]:
    """A paragraph that says which of these runs an earlier version made."""
    if sentence := outdated(jobs):
        yield from (sentence, "")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rules = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (head, rules, *lines)]


def real(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def percent_off(ours: object, figure: Published) -> float:
    return round(100 * (real(ours) / figure.value - 1), 1) + 0.0  # no minus zero


def shown(figure: Published) -> str:
    return f"{'~' if figure.derived else ''}{figure.value:.0f}"


def quality(summary: Mapping[str, object], key: str, metric: str) -> float | None:
    """In the published unit; BLEU is only known of the averaged model."""
    if metric == "bleu":
        return real(summary["bleu"]) if key == "average" else None
    return 100 - 100 * real(summary[key]) if metric == "top1_error" else 100 * real(summary[key])


def spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    note = f"{min(known):.1f} to {max(known):.1f}" if len(known) > 1 else "one seed"
    return f"{sum(known) / len(known):.1f} ({note})"


def relative(job: Job) -> str:
    return f"{archived(ROOT / job.folder).relative_to(ROOT / 'results').as_posix()}/metrics.jsonl"


def log(job: Job) -> str:
    return f"[log]({relative(job)})"


def commit(job: Job) -> str:
    facts = json.loads((job.folder / "environment.json").read_text(encoding="utf-8"))
    return str((facts["git"] or {}).get("commit") or "unknown")[:9]

"""Rehearsals on generated data: the published order by quality, compared with ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log

from claims.timing import MODELS
from reproduce.order import agreement, ranks, stated
from reproduce.runs import (
    METRICS,
    SEEDS,
    TABLES,
    before_corrections,
    pipe_sgd,
    real,
    rehearsal,
    relative,
    rounded_figure,
    rows_of,
    rows_stated,
    rows_with,
    timing,
)
from sgp_runner.data.grammar import BYTES
from sgp_runner.data.shapes import CLASSES
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.report.read.published import Published, published
from sgp_runner.report.render.text_tables import markdown_table

REHEARSAL = """\
## {title}: published order and ours

{data}Loss: of the averaged model on the validation set, nats, mean over the seeds, and lowest to
highest; a diverged run counts as the loss of guessing. Ranks: 1 is best, or fastest. The accuracy
is that of the generated data and says nothing about the published one.

{table}

- Quality: {quality}.
- Time per iteration, simulated: {time}.

{missing}{outdated}Repeat one: `{command}`."""
STATED = """\
## Orders that papers state without numbers

From [orderings.csv](paper/orderings.csv), in our words.

{table}

{missing}"""
TO_RUN = "to be run"
MISSING = "**{count} of {all} runs are still to be made:** `scripts/reproduce.py rehearsal`.\n"


@dataclass(frozen=True)
class Rehearsed:
    """The finished rehearsals of a row, with every seed.

    guess: loss of random guessing, which also replaces the loss of a diverged run
    """

    jobs: Sequence[RunJob]
    guess: float

    @property
    def summaries(self) -> list[Mapping[str, object]]:
        return [summary for job in self.jobs if (summary := job.summary) is not None]

    @property
    def losses(self) -> list[float]:
        """The validation loss of the averaged model in nats, for each seed."""
        every = [job.summary for job in self.jobs]
        return [
            self.guess if summary is None else real(summary["average_loss"]) for summary in every
        ]

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    @property
    def accuracy(self) -> str:
        """The mean accuracy in percent; empty for a language model and if a run diverged."""
        if any(job.diverged for job in self.jobs):
            return ""
        if any(summary["metric"] != "accuracy" for summary in self.summaries):
            return ""
        values = [real(summary["average"]) for summary in self.summaries]
        return f"{100 * sum(values) / len(values):.1f}"


def rehearsed(row: str) -> Rehearsed | None:
    """Return the rehearsals of a row; None unless all seeds have finished."""
    jobs = [rehearsal(row, seed) for seed in SEEDS]
    guess = log(BYTES if row.startswith("slowmo_wmt16") else CLASSES)
    return Rehearsed(jobs, guess) if all(job.finished for job in jobs) else None


def rehearsal_section(name: str) -> str:
    rows = rows_of(name)
    ours = {row: done for row in rows if (done := rehearsed(row))}
    errors = badness(name)
    figures = {row: published()[row] for row in rows}
    times = {row: figure["ms_per_iteration"].value for row, figure in timed(name).items()}
    simulated = {
        row: real(summary["ms_per_iteration"]) for row in times if (summary := timing(row).summary)
    }
    theirs, order = ranks(errors), ranks({row: done.loss for row, done in ours.items()})
    slow, slow_here = ranks(times), ranks(simulated)
    metric = metric_of(name)
    lines = []
    for row in rows:
        done = ours.get(row)
        lines.append(
            [
                row,
                f"{figures[row][metric].value:g}",
                str(theirs[row]),
                *(
                    [spread(done.losses), str(order[row]), done.accuracy, seeds_of(done.jobs)]
                    if done
                    else [TO_RUN, "", "", ""]
                ),
                *(
                    [rounded_figure(figures[row]["ms_per_iteration"]), str(slow[row])]
                    if row in times
                    else ["", ""]
                ),
                *([f"{simulated[row]:.0f}", str(slow_here[row])] if row in simulated else ["", ""]),
            ]
        )
    head = [
        "row",
        f"published {METRICS[metric]}",
        "rank",
        "our loss",
        "rank",
        "our accuracy, %",
        "seeds and logs",
        "published ms",
        "rank",
        "simulated ms",
        "rank",
    ]
    both = {row: times[row] for row in simulated}
    runs = [rehearsal(row, seed) for row, seed in product(rows, SEEDS)]
    return REHEARSAL.format(
        title=TABLES[name],
        data=task_of(ours.values()),
        table=markdown_table(head, lines, head[1:]),
        quality=agreement(errors, {row: ours[row].loss for row in rows})
        if len(ours) == len(rows)
        else "not known until all runs are made",
        time=agreement(both, simulated) if len(both) > 1 else "the paper has none",
        missing=missing(runs),
        outdated=before_corrections(runs),
        command=runs[0].command,
    )


def badness(name: str) -> dict[str, float]:
    """Return the published figures of a table, with signs chosen so that lower is better."""
    metric = metric_of(name)
    sign = 1 if metric == "top1_error" else -1
    return {row: sign * published()[row][metric].value for row in rows_of(name)}


def metric_of(name: str) -> str:
    return next(metric for metric in METRICS if metric in published()[rows_of(name)[0]])


def timed(name: str) -> Mapping[str, Mapping[str, Published]]:
    return {row: published()[row] for row in rows_with("ms_per_iteration") if row in rows_of(name)}


def task_of(every: Iterable[Rehearsed]) -> str:
    """Return a sentence about the model and data of rehearsals; empty without rehearsals."""
    tasks = dict.fromkeys(
        f"{one['model']} on {one['data']}" for group in every for one in group.summaries
    )
    return f"Ours: {' and '.join(tasks)}. " if tasks else ""


def seeds_of(jobs: Sequence[RunJob]) -> str:
    return " ".join(f"[{seed}]({relative(job)})" for seed, job in zip(SEEDS, jobs, strict=True))


def missing(jobs: Sequence[RunJob]) -> str:
    """Return a paragraph about the runs that are still missing; empty if there are none."""
    count = sum(not job.finished for job in jobs)
    return MISSING.format(count=count, all=len(jobs)) + "\n" if count else ""


def stated_section() -> str:
    """Return the orders that papers state in words, each with the result of our runs."""
    lines = []
    for order in stated():
        result = lower_loss(order.better, order.worse)
        if order.measure == "time":
            result = less_time(order.better, order.worse)
        lines.append(
            [order.statement, order.source, f"{order.better} before {order.worse}", result]
        )
    runs = [rehearsal(row, seed) for row, seed in product(rows_stated(), SEEDS)]
    head = ["statement", "source", "rows", "here"]
    return STATED.format(
        table=markdown_table(head, lines, head[1:]), missing=missing(runs)
    ).rstrip()


def lower_loss(better: str, worse: str) -> str:
    """Return whether one row ends at a lower loss than another row, and for how many seeds."""
    one, other = rehearsed(better), rehearsed(worse)
    if one is None or other is None:
        return TO_RUN
    wins = sum(a < b for a, b in zip(one.losses, other.losses, strict=True))
    answer = "yes" if one.loss < other.loss else "no"
    return f"{answer}: loss {one.loss:.3f} and {other.loss:.3f}; {wins} of {len(SEEDS)} seeds"


def less_time(better: str, worse: str) -> str:
    """Return whether an iteration of one row takes less simulated time than of another row."""
    parts = []
    for model in MODELS:
        one, other = pipe_sgd(better, model).summary, pipe_sgd(worse, model).summary
        if one is None or other is None:
            return TO_RUN
        ratio = real(other["ms_per_iteration"]) / real(one["ms_per_iteration"])
        parts.append(f"{'yes' if ratio > 1 else 'no'}: {ratio:.1f} times as fast with {model}")
    return "; ".join(parts)


def spread(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"

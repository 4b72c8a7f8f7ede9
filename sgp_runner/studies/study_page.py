"""The page of a study, ``index.html``, with its tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from sgp_runner.config.experiment import flat
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.report.plots.sections import Section
from sgp_runner.report.rank.tables import ReportTable
from sgp_runner.report.read.run_groups import cluster_name
from sgp_runner.report.render.text_tables import save_tables
from sgp_runner.report.render.write import rendered, save_pictures
from sgp_runner.studies.arms import RunMaker, has_holdout, unnamed_differences
from sgp_runner.studies.audit import gain_of
from sgp_runner.studies.comparisons import Compared, answer, compare, headline
from sgp_runner.studies.conduct import Conducted
from sgp_runner.studies.study_latex import write_latex
from sgp_runner.studies.study_plots import loss_plots, tuning_plots
from sgp_runner.studies.study_record import StudyRecord
from sgp_runner.studies.study_table import (
    EDGE_MEANING,
    MEANING,
    budget_table,
    comparison_table,
    table_text,
)
from sgp_runner.studies.tuning import FIRST_SEED
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import installed
from sgp_runner.utils.units import counted


@dataclass(frozen=True)
class Findings:
    """The comparisons and tables of a study, computed from its runs alone.

    clusters: name of each cluster
    clock: simulated | wall
    answer: the answer to the question in a sentence
    headline: the best arm in a sentence
    """

    done: Conducted
    compared: Sequence[Compared]
    clusters: Sequence[str]
    clock: str
    table: ReportTable
    budget: ReportTable
    answer: str
    headline: str


@dataclass(frozen=True)
class StudyPage:
    """A finished study.

    page: path of the page; ``study.zip`` is in the same folder
    answer: the answer in a sentence
    headline: the best arm in a sentence
    table: one line for each arm, measure and cluster; the columns of ``table.csv``
    text: the comparison for a terminal
    """

    page: Path
    answer: str
    headline: str
    table: pd.DataFrame
    text: str


def findings_of(maker: RunMaker, done: Conducted, record: StudyRecord) -> Findings:
    """Return the comparisons and tables of a study whose runs are complete."""
    clusters, clock = cluster_names(maker), maker.run(done.study.arms[0]).network.clock
    compared = compare(done, record.looks, record.by_ranks)
    gain = gain_of(done, compared[0])
    sentences = answer(done, compared[0], clusters[0], clock), "" if gain is None else str(gain)
    return Findings(
        done,
        compared,
        clusters,
        clock,
        comparison_table(done, compared, clusters, clock),
        budget_table(done),
        " ".join(filter(None, sentences)),
        headline(done, compared[0], clusters[0], clock),
    )


def write_study(maker: RunMaker, findings: Findings, record: StudyRecord) -> StudyPage:
    """Write the page, the tables, the figures and the LaTeX files into the study's folder."""
    done, table, budget = findings.done, findings.table, findings.budget
    study, out, clock = done.study, done.study.folder, findings.clock
    sections = [
        Section(
            "Loss against time",
            "The averaged model is evaluated. "
            + ("Times are simulated." if clock == "simulated" else "Times are measured."),
            [*loss_plots(done, findings.clusters, clock)],
            "All runs diverged.",
        ),
        Section(
            "Searches",
            f"The rule and the budget are the same for all arms; seeds begin at {FIRST_SEED}.",
            [*tuning_plots(done, clock)],
            "No learning rate or other number was searched, or none has a result.",
        ),
    ]
    page = out / "index.html"
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        save_tables((table, budget), out)
        write_latex(maker, done, findings.compared, table.head[2:], record)
        save_pictures((plot for section in sections for plot in section.plots), out / "plots")
        if sections[0].plots and installed("matplotlib"):
            from sgp_runner.report.render.pictures import save

            save(sections[0].plots, out, "figure", ("pdf", "svg"))
        html = rendered(
            "study.html",
            [plot for section in sections for plot in section.plots],
            title=study.question,
            headline=findings.headline,
            answer=findings.answer,
            verdict=getattr(findings.compared[0].comparisons.get(study.primary), "verdict", ""),
            table=table,
            legend=legend(done),
            file=yaml.safe_dump(dict(study.content), sort_keys=False, allow_unicode=True),
            sections=sections,
            budget=budget,
            facts=[*facts(done, record)],
            deviations=[*deviations(maker, done, record, findings.compared)],
            glyphs={},
        )
        page.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ConfigError("results", f"cannot write to {out}: {error.strerror}.") from error
    return StudyPage(page, findings.answer, findings.headline, table.raw, table_text(table))


def legend(done: Conducted) -> str:
    """Return an explanation of the marks in the table."""
    edges = any(arm.tuned.at_the_edge for arm in done.arms)
    return " ".join([MEANING] * (len(done.arms) > 1) + [EDGE_MEANING] * edges)


def cluster_names(maker: RunMaker) -> list[str]:
    """Return the name of each cluster with its bandwidth; empty for real runs."""
    arm = maker.study.arms[0]
    names = []
    for number in range(len(maker.study.clusters)):
        experiment = maker.experiment(maker.plain(arm, number), arm.name)
        simulated = experiment.run.network.clock == "simulated"
        machines = dict(flat({"cluster": experiment.config["cluster"]})) if simulated else {}
        names.append(cluster_name(machines))
    return names


def facts(done: Conducted, record: StudyRecord) -> Iterator[tuple[str, str]]:
    """Yield sentences about what was recorded before the first run."""
    study = done.study
    yield "set down", record.set_down.replace("T", " ").replace("+00:00", " UTC")
    if record.commit:
        yield "commit", record.commit
    for key in ("published", "transfer"):
        if text := study.content.get(key):
            yield key, str(text)
    if len(study.arms) > 1:
        yield "under study", f"{study.primary}, against {study.baseline}"
    yield "seeds that decide", ", ".join(map(str, done.seeds))
    if done.plan is not None:
        yield "number of seeds", str(done.plan)


def deviations(
    maker: RunMaker, done: Conducted, record: StudyRecord, compared: Sequence[Compared]
) -> Iterator[str]:
    """Yield a sentence for each fact that a reader needs to judge the result."""
    study = done.study
    if differences := unnamed_differences(maker):
        yield differences
    for when, why in record.amendments:
        yield f"The file was changed after the first run, at {when}: {why}"
    if record.looks > 1:
        yield (
            f"Results were known before a change: {record.looks} looks share the level of 5 %, so "
            f"a test has {5 / record.looks:.2g} %."
        )
    if record.sources:
        yield (
            f"Merged from {'; '.join(record.sources)}. Only the primary comparison was set down "
            "before its runs."
        )
    for arm in done.arms:
        name = arm.arm.name
        if arm.tuned.at_the_edge:
            yield (
                f"The search of {name} ended at the edge of the tried values of "
                f"{', '.join(arm.tuned.edges)}; a value beyond it may be better."
            )
        seeds = max(map(len, arm.tuned.scores().values()), default=0)
        if seeds == 1 and not arm.space.ranges:
            yield f"The budget of {name} ended before its best values got a second seed."
        if arm.diverged:
            yield (
                f"{counted(arm.diverged, 'run')} of {name} diverged, and counts as the worse of "
                "guessing and the worst other run; no target is reached."
            )
        if count := sum("lost_state" in (run.job.summary or {}) for run in arm.runs[0]):
            yield (
                f"{counted(count, 'run')} of {name} resumed without state of the algorithm that "
                "its checkpoints do not have: repeat the runs, or keep it with worker.state."
            )
        if len(study.clusters) > 1 and isinstance(arm.runs[1][0].job, RunJob):
            yield f"{name} depends on time, so it was trained again on each cluster."
    if any(arm.space.size > 1 for arm in done.arms) and not has_holdout(maker.run(study.arms[0])):
        yield "The searches validate on the same samples as the runs that decide."
    steps = {str((run.job.summary or {}).get("steps")) for arm in done.arms for run in arm.runs[0]}
    if len(steps - {"None"}) > 1:
        yield "The arms take different numbers of steps."
    if done.plan is not None:
        spread = compared[0].comparisons[study.primary].effect.spread
        yield done.plan.measured(spread)

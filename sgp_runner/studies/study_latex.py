"""A study in LaTeX: its table, its settings, a paragraph on its protocol, and the references.

``table.tex`` and ``settings.tex`` need the packages booktabs and longtable, ``methods.tex`` cites
the entries of ``references.bib``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from math import isfinite

import pandas as pd

from sgp_runner._version import __version__
from sgp_runner.config.experiment import flat
from sgp_runner.config.run import Run
from sgp_runner.studies.arms import RunMaker, has_holdout, unnamed_differences
from sgp_runner.studies.comparisons import Compared
from sgp_runner.studies.conduct import ArmResult, Conducted
from sgp_runner.studies.statistics import mean_of
from sgp_runner.studies.study_record import StudyRecord
from sgp_runner.studies.study_table import ranked
from sgp_runner.studies.study_tasks import HOLDOUT
from sgp_runner.studies.tuning import FIRST_SEED
from sgp_runner.utils.units import counted

MARKS = {"better": r"$^{+}$", "worse": r"$^{-}$", "equal": r"$^{=}$", "undecided": ""}
SPECIAL = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "²": "$^2$", "±": r"$\pm$"},
    **{"τ": r"$\tau$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "†": r"\dag{}"},
}
SETTLED = {  # how a search ends, by whether it has the earlier rule
    False: "the three best, the same number for all arms; the rate lies at the vertex of the "
    "parabola in its logarithm through their means",
    True: "near-ties, of which the smallest rate is chosen",
}
HEAD_WIDTH = 18  # characters
ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}$", re.MULTILINE | re.DOTALL)


def write_latex(
    maker: RunMaker,
    done: Conducted,
    compared: Sequence[Compared],
    heads: Sequence[str],
    record: StudyRecord,
) -> None:
    """Write ``table.tex``, ``settings.tex``, ``methods.tex`` and ``references.bib``.

    heads: the title of each column of the table
    """
    methods, out = methods_tex(maker, done, compared, record), done.study.folder
    texts = {
        "table.tex": table_tex(done, compared, heads),
        "settings.tex": settings_tex(maker, done),
        "methods.tex": methods,
        "references.bib": references(maker, done, methods),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")


def table_tex(done: Conducted, compared: Sequence[Compared], heads: Sequence[str]) -> str:
    r"""Return the comparison as a LaTeX table for the booktabs package.

    The best value of a column is bold. ``+`` and ``-`` mark values that are significantly better or
    worse than the baseline's. Small numbers are half the width of the mean's 95 % interval.
    """
    rows = [
        [
            str(compared[0].ranks[arm.arm.name]),
            escaped(arm.arm.name),
            *(tex_cell(column, arm.arm.name) for column in compared),
        ]
        for arm in ranked(done, compared)
    ]
    text = booktabs(
        rows,
        ["\\#", "arm", *map(stacked, heads)],
        "rl" + "r" * len(compared),
        caption=caption(done),
        label=f"tab:{done.study.name}",
        position_float="centering",
    )
    return f"% Needs \\usepackage{{booktabs}}.\n{text}"


def booktabs(
    rows: Sequence[Sequence[str]], head: Sequence[str], columns: str, **options: str
) -> str:
    """Return a table with LaTeX cells and titles; ``options`` are those of pandas."""
    style = pd.DataFrame(rows, columns=head).style.hide(axis="index")
    return str(style.to_latex(column_format=columns, hrules=True, **options))


def tex_cell(column: Compared, name: str) -> str:
    values = column.values[name]
    value = escaped(column.text(name))
    if column.centre(name) == column.centre(column.best):
        value = f"\\textbf{{{value}}}"
    comparison = column.comparisons.get(name)
    mark = MARKS[comparison.verdict] if comparison else ""
    reached = column.reached.get(name)
    if reached and reached.count < len(reached.at):
        return f"{value}{mark} {{\\scriptsize ({reached.count}/{len(reached.at)})}}"
    if not all(map(isfinite, values)):
        return value
    if name in column.outliers:
        return f"{value}{mark} {{\\scriptsize median}}"
    interval = mean_of(values)
    if interval.spreadless:
        return f"{value}{mark}"
    width = column.measure.difference(
        (interval.high - interval.low) / 2, unit=bool(column.measure.cost)
    )
    return f"{value}{mark} {{\\scriptsize $\\pm$ {escaped(width)}}}"


def caption(done: Conducted) -> str:
    study = done.study
    tests = (
        f"; + and - mark significant differences to {study.baseline} (paired tests at 5 %, that of "
        f"{study.primary} alone, all others by Holm's method)"
    )
    seeds = counted(len(done.seeds), "seed")
    means = f"{study.question} Means over {seeds} with 95 % intervals of each mean, unadjusted"
    return escaped(f"{means}{tests if len(study.arms) > 1 else ''}.")


def escaped(text: str) -> str:
    """Return ``text`` with LaTeX's special characters escaped."""
    return "".join(SPECIAL.get(char, char) for char in text)


def stacked(head: str) -> str:
    """Return a column title broken into several lines."""
    lines = r" \\ ".join(map(escaped, textwrap.wrap(head, HEAD_WIDTH)))
    return f"\\shortstack[r]{{{lines}}}"


def code(text: object) -> str:
    """Return a setting in typewriter type; a line may break after a dot or an underscore."""
    broken = re.sub(r"(\\_|[.,=/])", r"\1\\allowbreak{}", escaped(str(text)))
    return f"\\texttt{{{broken}}}"


def settings_of(maker: RunMaker, arm: ArmResult) -> dict[str, str]:
    """Return all settings of an arm that affect the results of its runs that decide."""
    experiment = maker.experiment(maker.overrides(arm.arm, arm.settings), arm.arm.name)
    return {key: str(value) for key, value in flat(experiment.settings) if key != "seed"}


def settings_tex(maker: RunMaker, done: Conducted) -> str:
    """Return all settings of all arms, the searches, seeds and versions as LaTeX tables."""
    settings_by_arm = {arm.arm.name: settings_of(maker, arm) for arm in done.arms}
    first, *others = settings_by_arm.values()
    shared = {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }
    differing = [
        [escaped(name), code(key), code(value)]
        for name, settings in settings_by_arm.items()
        for key, value in settings.items()
        if key not in shared
    ]
    searches = [
        [
            escaped(arm.arm.name),
            code("; ".join(searched(arm)) or "nothing"),
            str(arm.tuned.runs),
            code(" ".join(arm.settings) or "-"),
        ]
        for arm in done.arms
    ]
    summary = done.arms[0].runs[0][0].job.summary or {}
    title = "Settings that all arms share"
    return "\n".join(
        [
            "% Needs \\usepackage{booktabs,longtable}.",
            longtable(
                title,
                "lp{0.45\\linewidth}",
                ["setting", "value"],
                [[code(key), code(value)] for key, value in shared.items()],
            ),
            longtable(
                "Settings in which the arms differ",
                "llp{0.35\\linewidth}",
                ["arm", "setting", "value"],
                differing,
            ),
            longtable(
                f"Searches, with at most {counted(done.study.tune.budget, 'run')} for each arm",
                "lp{0.3\\linewidth}rp{0.3\\linewidth}",
                ["arm", "tried", "runs", "chosen"],
                searches,
            ),
            f"The runs that decide have the seeds {', '.join(map(str, done.seeds))}, searches have "
            f"seeds from {FIRST_SEED}. "
            + escaped(f"Made by sgp-run {__version__}, clock: {summary.get('clock', '')}."),
            "",
        ]
    )


def searched(arm: ArmResult) -> Iterator[str]:
    """Yield the candidates of a search, as overrides."""
    if arm.space.size > 1:
        for candidate in sorted(arm.tuned.scores()):
            yield " ".join(arm.space.overrides(candidate))


def longtable(title: str, columns: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that may span pages; empty without rows."""
    if not rows:
        return ""
    options = {"caption": f"{escaped(title)}.", "environment": "longtable"}
    return f"{{\\footnotesize\n{booktabs(rows, head, columns, **options)}}}"


def methods_tex(
    maker: RunMaker, done: Conducted, compared: Sequence[Compared], record: StudyRecord
) -> str:
    """Return the paragraph on the protocol of a study, with citations."""
    study, run = done.study, maker.run(done.study.arms[0])
    arms = [f"{escaped(arm.name)}{cited(maker.run(arm).algo)}" for arm in study.arms]
    first, subject, tests = f"We study {arms[0]}.", "The study", ""
    if len(arms) > 1:
        first = f"We compare {', '.join(arms[:-1])} and {arms[-1]}."
        subject = (
            f"The comparison of {escaped(study.primary)} with {escaped(study.baseline)} by "
            f"{escaped(compared[0].measure.on(run.network.clock))}"
        )
        tests = (
            f", and is tested alone at {5 / record.looks:g}\\,\\% by a paired t-test; the p-values "
            "of all other comparisons are adjusted by Holm's method~\\cite{holm1979}"
        )
    sentences = [
        first,
        f"All arms train the model {code(run.model.name)} on the data {code(run.data.name)}"
        f"{cited(run.data)} on {run.nodes} nodes for {counted(run.epochs, 'epoch')}.",
        *filter(None, [escaped(unnamed_differences(maker))]),
        *pretraining_sentences(run),
        *search_sentences(maker, done),
        f"The runs that decide have {counted(len(done.seeds), 'seed')}, which all arms share and "
        "no search has used, and arms are paired by seed.",
        f"{subject} was set down on {record.set_down[:10]}, before the first run (SHA-256 of the "
        f"file {code(study.digest[:12])}){tests}.",
        "Intervals are Student's at 95\\,\\%, unadjusted.",
    ]
    if study.matters is not None:
        sentences.append(
            f"A difference shown to be below {study.matters:g} by two one-sided "
            "tests~\\cite{schuirmann1987} counts as none."
        )
    if any(column.outliers for column in compared):
        sentences.append(
            "A diverged run counts as the worst one, so arms with such runs are shown as medians "
            "and compared by Wilcoxon's signed-rank test, with Hodges and Lehmann's "
            "estimate~\\cite{wilcoxon1945,hodges1963,lachin1999}."
        )
    if any(column.reached for column in compared):
        sentences.append(
            "If a run does not reach a target, the restricted mean~\\cite{royston2013} is reported "
            "with the share of the runs that reach it."
        )
    if run.network.clock == "simulated":
        sentences.append(
            f"Gradients are computed, and times are simulated by sgp-run {__version__}, not "
            "measured."
        )
    return "\n".join([*sentences, *amendments(record), ""])


def pretraining_sentences(run: Run) -> Iterator[str]:
    """Yield a sentence if the runs start from a pretrained model."""
    if run.pretrain.steps:
        yield (
            "The runs of a seed start from the same model, which was pretrained for "
            f"{counted(run.pretrain.steps, 'step')} at a learning rate of {run.pretrain.lr:g}."
        )


def search_sentences(maker: RunMaker, done: Conducted) -> Iterator[str]:
    """Yield sentences about the searches, if any."""
    tune = done.study.tune
    keys = [*(["optim.lr"] if tune.ladder else []), *(tune.lists or {})]
    if not keys:
        yield "No setting was searched."
        return
    rule = (
        "by a tree-structured Parzen estimator~\\cite{bergstra2011}"
        if tune.rule == "tpe"
        else "by successive halving~\\cite{jamieson2016} until the best learning rate lies between "
        "two others, then with further seeds for " + SETTLED[tune.earlier]
    )
    yield (
        f"For each arm, {', '.join(map(code, keys))} "
        f"{'were' if len(keys) > 1 else 'was'} searched by the same rule with at most "
        f"{counted(tune.budget, 'run')}: {rule}."
    )
    if tune.by is not None:
        title = escaped(tune.by.on(maker.run(done.study.arms[0]).network.clock))
        yield f"A search decides by the {title}, and among runs that never reach it by the loss."
    yield (
        f"Searches validate on {100 * HOLDOUT:g}\\,\\% of the training set."
        if has_holdout(maker.run(done.study.arms[0]))
        else "Searches validate on the same samples as the runs that decide."
    )


def amendments(record: StudyRecord) -> Iterator[str]:
    for when, why in record.amendments:
        yield f"The design was changed on {when[:10]}, after the first run: {escaped(why)}"


def cited(part: object) -> str:
    r"""Return the ``\cite`` of an algorithm or a data set; empty without a source."""
    keys = [key_of(source) for source in sources_of(part)]
    return f"~\\cite{{{','.join(dict.fromkeys(keys))}}}" if keys else ""


def key_of(source: str) -> str:
    match = ENTRY.match(source.strip())
    return match[1] if match else source


def sources_of(part: object) -> Iterator[str]:
    """Yield the sources of an algorithm or a data set, and of any inner algorithms."""
    if source := str(getattr(part, "source", "")):
        yield source
    if is_dataclass(part):
        for field in fields(part):
            yield from sources_of(getattr(part, field.name))


def references(maker: RunMaker, done: Conducted, methods: str) -> str:
    """Return the BibTeX entries that ``methods.tex`` cites."""
    text = files("sgp_runner.studies").joinpath("references.bib").read_text(encoding="utf-8")
    runs = [maker.run(arm) for arm in done.study.arms]
    sources = [
        source for run in runs for part in (run.algo, run.data) for source in sources_of(part)
    ]
    entries = {
        match[1]: match[0]
        for bibtex in (text, *sources)
        for match in ENTRY.finditer(bibtex.strip())
    }
    keys = {key for keys in re.findall(r"\\cite\{([^}]*)\}", methods) for key in keys.split(",")}
    return "\n\n".join(entries[key] for key in sorted(keys & entries.keys())) + "\n"

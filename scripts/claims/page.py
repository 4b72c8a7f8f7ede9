"""The pages of the claims: a table of answers, a page for each claim, and two tables as CSV.

The templates are ``index.md`` and ``page.md``.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import Any

from claims.claim_files import STUDIES, Claim
from claims.evidence import (
    Judged,
    Verdict,
    in_family,
    judge,
    parts,
    primary_of,
)
from claims.figures import forest
from claims.recorded import search_of
from sgp_runner.jobs.job_pool import outdated
from sgp_runner.report.render.pictures import save
from sgp_runner.studies.candidates import Candidate, Space, Trial, Tuned
from sgp_runner.studies.conduct import ArmResult, Conducted
from sgp_runner.studies.power import power
from sgp_runner.studies.statistics import Between, Interval, holm
from sgp_runner.studies.study_file import RATE
from sgp_runner.studies.study_plots import tuning_plots
from sgp_runner.utils.units import counted

FOLDER = "claims"  # of the pages of the claims, next to the table of answers
MAX_ROWS = 2  # findings of a part with rows of their own
MAX_LISTED = 4  # effects of a part that are listed one by one
UNITS = {
    "validation loss, nats": "nats [95 %]",
    "% of the validation loss": "% [95 %]",
    "exponent of the mean squared gradient norm": "exponent [95 %]",
}
KINDS = {
    "measured": "measured claim",
    "formulas": "claim about formulas, without training",
    "reasons": "our reason for a verdict",
}
FINDINGS = (
    *("claim", "number", "part", "finding", "unit", "mean", "low", "high", "seeds", "least"),
    *("most", "p", "verdict", "samples", "verdict_at_level_per_sample", "primary", "decides"),
    *("other_measures", "runs"),
)
SEARCHES = ("claim", "arm", "search", "settings", "losses", "seeds", "chosen")


@dataclass(frozen=True)
class Shown:
    """The mean of an effect in an answer; its format adds an interval or takes the sign away.

    ``{0}``: 0.0631. ``{0:ci}``: 0.0631 [0.0433, 0.0829]. ``-`` changes the sign; ``size`` omits
    it.
    """

    effect: Interval

    def __format__(self, spec: str) -> str:
        effect = self.effect.mirrored if spec.startswith("-") else self.effect
        if spec.endswith("ci"):
            return effect_text(effect)
        return rounded(abs(effect.mean) if spec == "size" else effect.mean)


@dataclass(frozen=True)
class Row:
    """A finding, or all findings of a part, as a row of the table."""

    what: str
    effect: str
    expected: str
    verdict: str


@dataclass(frozen=True)
class View:
    """A judged claim, prepared for the templates.

    family: the verdict on the primary finding, and its p-value, among those of all measured claims;
        None for a reason, or without randomness
    """

    claim: Claim
    judged: tuple[Judged, ...]
    searches: Mapping[str, Tuned]
    family: tuple[Verdict, float] | None = None

    @property
    def texts(self) -> Mapping[str, Any]:
        return self.claim.texts

    @property
    def primary(self) -> Judged:
        return primary_of(self.judged)

    @property
    def kind(self) -> str:
        """The table in which the claim stands."""
        if self.claim.explains:
            return "reasons"
        return "formulas" if self.primary.p is None else "measured"

    @property
    def parts(self) -> str:
        """How many parts are reproduced."""
        verdicts = list(parts(self.judged).values())
        return f"{verdicts.count(Verdict.REPRODUCED)}/{len(verdicts)}"

    @property
    def answer(self) -> str:
        means = (Shown(evidence.finding.effect) for evidence in self.judged)
        return str(self.texts["answer"]).format(*means)

    @property
    def origin(self) -> str:
        """The source of the sentence."""
        if self.claim.explains:
            return f"Ours, for claim {self.claim.explains}"
        return str(self.texts["source"])

    @property
    def plan(self) -> str:
        """The planned number of seeds and the measured spread; empty without a plan."""
        plan = self.claim.plan
        if plan is None:
            return ""
        spread = self.primary.finding.effect.spread
        reached = power(plan.matters, spread, plan.seeds, equivalence=plan.equivalence)
        return (
            f"{plan.seeds} seeds (spread {spread:.2g}, planned {plan.spread:g}; power "
            f"{100 * min(reached, 0.99):.0f} %)."
        )

    @property
    def unit(self) -> str:
        """The title of the column of effects."""
        return UNITS.get(self.primary.finding.unit, "effect")

    @property
    def together(self) -> str:
        """The verdict on the primary finding, and that of all measured claims if it differs."""
        alone = self.primary.verdict
        if self.family is None or self.family[0] is alone:
            return alone.value
        return f"{alone.value} alone, {self.family[0].value} together"

    @property
    def rows(self) -> list[Row]:
        return [*rows_of(self.judged, earlier=False), *rows_of(self.judged, earlier=True)]

    @property
    def search(self) -> str:
        """A sentence about the searches; empty without any."""
        if not self.searches:
            return ""
        runs = sum(search.runs for search in self.searches.values())
        return f"{counted(len(self.searches), 'search', 'searches')}, {counted(runs, 'run')}"

    @property
    def edges(self) -> str:
        """The arms whose searches ended at an edge."""
        return ", ".join(arm for arm, search in self.searches.items() if search.at_the_edge)

    @property
    def outdated(self) -> str | None:
        """A sentence about runs made before a correction."""
        return outdated(self.claim.jobs)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands that repeat the runs, each with the name of its study, if it is one."""
        names = [study.name for study in self.claim.studies]
        studies = [(f"sgp-run study claims/{name.partition('-')[0]}", name) for name in names]
        computed = (f".venv/bin/python scripts/claims.py {self.claim.number}", "")
        return [*studies, *([computed] if self.claim.computed.jobs or not studies else [])]

    @property
    def cost(self) -> str:
        """The number of the runs, without searches, and their total duration on one core."""
        jobs = self.claim.jobs
        if not jobs:
            return "no runs"
        seconds = sum(float(str((job.summary or {}).get("real_s", 0))) for job in jobs)
        return f"{counted(len(jobs), 'run')}, {counted(ceil(seconds / 60), 'minute')}"


def rows_of(judged: Sequence[Judged], earlier: bool) -> Iterator[Row]:
    """Yield the rows of the findings that decide, or of the earlier ones."""
    by_part: dict[str, list[Judged]] = {}
    for evidence in judged:
        if evidence.finding.earlier is earlier:
            by_part.setdefault(evidence.finding.part, []).append(evidence)
    for part, members in by_part.items():
        if len(members) > MAX_ROWS:
            yield joint_row(part, members)
            continue
        for evidence in members:
            finding = evidence.finding
            star = " *" if finding.primary else ""
            yield Row(
                f"{finding.what}{star}",
                effect_text(finding.effect),
                range_of(finding.expected),
                "first sample" if earlier else verdict_text(evidence),
            )


def joint_row(part: str, members: Sequence[Judged]) -> Row:
    """Return one row for many findings: their effects, or the least and the largest one."""
    means = [evidence.finding.effect.mean for evidence in members]
    listed = len(means) <= MAX_LISTED
    effect = (", " if listed else " to ").join(
        map(rounded, means if listed else (min(means), max(means)))
    )
    star = " *" if any(evidence.finding.primary for evidence in members) else ""
    verdicts = {evidence.verdict for evidence in members}
    contradicted = sum(evidence.verdict is Verdict.CONTRADICTED for evidence in members)
    return Row(
        f"{part}: {len(members)} findings{star}",
        effect,
        ", ".join(dict.fromkeys(range_of(evidence.finding.expected) for evidence in members)),
        next(iter(verdicts)).value if len(verdicts) == 1 else f"{contradicted} contradicted",
    )


def range_of(expected: Between) -> str:
    """Return the range as on a page, such as ``≤ 0.02``."""
    return str(expected).replace("at most", "≤").replace("at least", "≥")


def verdict_text(evidence: Judged) -> str:
    """Return the verdict, the seeds that it needs, and whether it depends on the second sample."""
    needs = f", {evidence.wanted}" if evidence.wanted else ""
    other = evidence.of_looks
    looks = f" ({other.value} at 1.25 %)" if other is not evidence.verdict else ""
    return f"{evidence.verdict.value}{needs}{looks}"


def effect_text(effect: Interval) -> str:
    """Format the mean, and the interval if it has a width."""
    mean, low, high = map(rounded, (effect.mean, effect.low, effect.high))
    if effect.spreadless:
        return f"{mean} (all seeds alike)"
    return mean if low == high else f"{mean} [{low}, {high}]"


def rounded(value: float) -> str:
    """Format a number with three digits; rounding errors below 1e-9 become zero."""
    return f"{0.0 if abs(value) < 1e-9 else value:.3g}"


def views_of(claims: Sequence[Claim], results: Path) -> list[View]:
    """Return the claims of which all runs have finished, with their verdicts."""
    views = []
    for claim in claims:
        if claim.finished:
            searches = {
                arm: search_of(results, name)
                for arm, name in claim.texts.get("searches", {}).items()
            }
            views.append(View(claim, tuple(judge(claim.find())), searches))
    family = in_family(
        {view.claim.number: view.primary for view in views if view.kind == "measured"}
    )
    return [replace(view, family=family.get(view.claim.number)) for view in views]


def write(claims: Sequence[Claim], results: Path, out: Path) -> list[View]:
    """Write ``claims.md``, and the folder `FOLDER` with pages, figures and tables, into ``out``.

    results: the folder of the runs. Returns the judged claims.
    """
    from jinja2 import Environment, PackageLoader

    views = views_of(claims, results)
    folder = out / FOLDER
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    templates = Environment(
        loader=PackageLoader("claims", "."), trim_blocks=True, keep_trailing_newline=True
    )
    design = os.path.relpath(STUDIES, folder)
    done = {study.name for claim in claims for study in claim.studies}
    others = sorted({path.stem for path in STUDIES.glob("*.yaml")} - done)
    pages = {path.stem for path in folder.glob("*.md")}
    shown = [name for name in others if name in pages]
    adjusted = family_of([folder / f"{name}.zip" for name in shown])
    facts = {
        "groups": {kind: [view for view in views if view.kind == kind] for kind in KINDS},
        "titles": KINDS,
        "waiting": [claim for claim in claims if not claim.finished],
        "studies": [
            (name, *page_head(folder / f"{name}.md"), p)
            for name, p in zip(shown, adjusted, strict=True)
        ],
        "designs": [name for name in others if name not in pages],
        "design_folder": os.path.relpath(STUDIES, out),
    }
    page = templates.get_template("index.md").render(facts)
    (out / "claims.md").write_text(page, encoding="utf-8")
    for view in views:
        draw(view, folder / "figures")
        page = templates.get_template("page.md").render(view=view, design_folder=design)
        page = page.replace("{design}", design)
        (folder / f"{view.claim.name}.md").write_text(page, encoding="utf-8")
    write_table(folder / "findings.csv", FINDINGS, finding_lines(views))
    write_table(folder / "searches.csv", SEARCHES, search_lines(views))
    return views


def page_head(path: Path) -> tuple[str, str]:
    """Return title and answer of the page of a study that is no claim; it is written by hand."""
    title, _, answer, *_ = path.read_text(encoding="utf-8").splitlines()
    return title.removeprefix("# "), answer


def family_of(archives: Sequence[Path]) -> list[str]:
    """Return the p-value of each study's primary difference, adjusted over all of them by Holm."""
    p_values = []
    for archive in archives:
        with zipfile.ZipFile(archive) as file:
            lines = csv.DictReader(file.read("table.csv").decode().splitlines())
            (p,) = (float(line["p"]) for line in lines if line["primary"] == "True" and line["p"])
            p_values.append(p)
    return [f"{p:.1e}" if p < 0.001 else f"{p:.2g}" for p in holm(p_values)]


def draw(view: View, folder: Path) -> None:
    """Draw the effects of a claim and its searches."""
    save(forest(view.judged), folder, f"claim{view.claim.number}", ("svg",))
    if view.searches:
        save([*tuning_plots(searched(view))], folder, f"tuning{view.claim.number}", ("svg",))


def searched(view: View) -> Conducted:
    """Return the searches of a claim as those of a study, with the best score at each rate.

    A score above the loss of guessing counts as that of a diverged run.
    """
    arms = {arm.name: arm for other in view.claim.studies for arm in other.arms}
    study = replace(view.claim.studies[0], arms=tuple(arms.values()))
    results = []
    for name, tuned in view.searches.items():
        best: dict[float, float] = {}
        for candidate, losses in tuned.scores().items():
            value, score = candidate.value or 0.0, fmean(losses)
            usable = score if score < view.claim.arms[name].guess else inf
            best[value] = min(usable, best.get(value, inf))
        scores = {Trial(Candidate(value), 0): score for value, score in best.items()}
        one = replace(tuned, chosen=Candidate(tuned.chosen.value), losses=scores)
        results.append(ArmResult(arms[name], Space(RATE, tuple(best)), one, ()))
    return Conducted(study, results, study.seeds, None)


def finding_lines(views: Sequence[View]) -> Iterator[tuple[object, ...]]:
    for view in views:
        for number, evidence in enumerate(view.judged, start=1):
            finding, effect = evidence.finding, evidence.finding.effect
            yield (
                *(view.claim.number, number, finding.part, finding.what, finding.unit),
                *(effect.mean, effect.low, effect.high, effect.seeds),
                *(
                    finding.expected.least,
                    finding.expected.most,
                    evidence.p,
                    evidence.verdict.value,
                ),
                *(evidence.looks, evidence.of_looks.value, finding.primary, not finding.earlier),
                *(finding.beside, " ".join(job.name for job in finding.jobs)),
            )


def search_lines(views: Sequence[View]) -> Iterator[tuple[object, ...]]:
    for view in views:
        for arm, tuned in view.searches.items():
            for candidate, losses in sorted(tuned.scores().items()):
                yield (
                    *(view.claim.number, arm, f"tune-{view.texts['searches'][arm]}"),
                    " ".join((*candidate.others, f"{RATE}={candidate.value:g}")),
                    *(" ".join(map(str, losses)), len(losses), candidate == tuned.chosen),
                )


def write_table(path: Path, head: Sequence[str], lines: Iterator[tuple[object, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head)
        table.writerows(lines)

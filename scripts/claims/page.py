"""The page of the claims in Markdown and HTML: a table of answers, then each claim in detail.

The templates are ``page.md`` and ``page.html``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims import figures
from claims.evidence import Claim, Judged, Verdict, headline, judge, parts
from claims.tuning import SEEDS, Joint, Search
from reproduce.archives import LOST, archived
from sgp_runner.report.read.runs import version
from sgp_runner.session.job_pool import RunJob, outdated
from sgp_runner.studies.statistics import Interval
from sgp_runner.studies.study_tasks import HOLDOUT

PICTURES = "figures"  # a folder next to the pages
INTRO = (
    "Each finding is an effect with its 95 % confidence interval over seeds, the same for both "
    "sides, and the range that is expected: reproduced if a test shows that it lies inside, "
    "contradicted if outside, else undecided at this scale. That it lies between two bounds is "
    "shown by two one-sided tests. One finding of each claim is primary, marked by a star, and the "
    "number of seeds was chosen for it; the p-values of the others are adjusted by Holm's method. "
    "Intervals are not adjusted, so one that lies inside the range can still be undecided. An "
    "undecided part names the seeds that it needs if effect and spread are as measured. "
    "All tests are at 2.5 % on one side. A claim has parts, and each part its verdict: "
    "contradicted by any of its findings, reproduced by all of them. Simulated results without "
    "randomness have one seed and no width; seeds that all gave the same difference do not show "
    "its spread and decide nothing. Where a second sample was specified after a first one had been "
    "seen, it decides alone, and the first is still shown. Ranges and numbers of seeds were "
    "committed before the runs that they judge, but simulated times of claims 2, 3, 7 and 9 were "
    "known. Of claims 1, 3 and 10 parts and primary finding were named after their results, and no "
    "number of seeds was chosen for them; the verdicts of claim 10 are the same if its primary "
    "finding is adjusted with the others. The link of a log names an archive and, behind #, "
    "the file in it; `make logs` unpacks all archives."
)
NOT_JUDGED = (
    "Some of their runs have not finished; this command makes them. The verdict of an earlier "
    "design, whose runs are not part of this one, is on its own page."
)
TUNING = (
    "Learning rates, and SlowMo's momentum with them, are chosen for each algorithm, variant and "
    f"number of nodes, by the same search for all, with seeds {' and '.join(map(str, SEEDS))}. On "
    f"images it validates on {HOLDOUT:.0%} of the training samples, which are not trained on "
    "meanwhile; on text, whose training part is new for each seed, on the validation set that "
    "decides later. A score is the mean validation loss. A search begins with a few values and "
    "tries half and double the best one until that lies between others."
)
WAITS = ". It has a further sample, specified but not yet run, which this command adds."
EARLIER = "Earlier sample, which no longer decides:"


class Mean(float):
    """A rounded mean in an answer; ``{0:size}`` formats it without its sign."""

    def __format__(self, spec: str) -> str:
        return rounded(abs(self) if spec == "size" else float(self))


@dataclass(frozen=True)
class Row:
    """A finding as a row of text.

    runs: groups of runs; each has a name and, for each run, the seed and the path of the log.
    """

    number: int
    part: str
    what: str
    effect: str
    expected: str
    seeds: int
    p: str
    verdict: str
    runs: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True)
class View:
    """A judged claim, prepared for the templates."""

    claim: Claim
    judged: tuple[Judged, ...]
    rows: tuple[Row, ...]
    earlier: tuple[Row, ...]
    runs: tuple[RunJob, ...]

    @property
    def parts(self) -> Mapping[str, Verdict]:
        return parts(self.judged)

    @property
    def headline(self) -> str:
        return headline(self.judged)

    @property
    def primary(self) -> str:
        """The verdict on the primary finding."""
        return next(each.verdict.value for each in self.judged if each.finding.primary)

    @property
    def answer(self) -> str:
        return self.claim.answer.format(*(Mean(each.finding.effect.mean) for each in self.judged))

    @property
    def plan(self) -> str:
        """The planned number of seeds and the measured spread; empty without a plan."""
        if self.claim.plan is None:
            return ""
        primary = next(each.finding.effect for each in self.judged if each.finding.primary)
        return f"{self.claim.plan} {self.claim.plan.measured(primary.spread)}"

    @property
    def figure(self) -> str:
        return f"{PICTURES}/claim{self.claim.number}.svg"

    @property
    def caption(self) -> str:
        return figures.caption(self.judged)

    @property
    def logs(self) -> int:
        """The number of runs in all findings."""
        rows = (*self.rows, *self.earlier)
        return len({log for row in rows for _, logs in row.runs for log in logs})

    @property
    def outdated(self) -> str:
        """A sentence about the runs made before a correction; empty without any."""
        return outdated(self.runs)

    @property
    def lost(self) -> str:
        """A sentence about runs of commits that are not in the repository; empty without any."""
        count = sum(version(job.folder)["commit"] in LOST for job in self.runs)
        return f"The commits of {count} of these runs are not in the repository." if count else ""

    @property
    def cost(self) -> str:
        """The number of the runs and their total duration."""
        if not self.runs:
            return "no runs"
        seconds = sum(float(str((job.summary or {}).get("real_s", 0))) for job in self.runs)
        return f"{len(self.runs)} runs, {seconds / 3600:.1f} hours one after the other"


def command(claim: Claim) -> str:
    return f".venv/bin/python scripts/claims.py {claim.number}"


def view(claim: Claim, out: Path) -> View:
    """Prepare a judged claim for a page in the folder ``out``; links are relative to ``out``."""
    judged = tuple(judge(claim.find()))
    rows = [row(number, each, out) for number, each in enumerate(judged, start=1)]
    decides, earlier = (
        tuple(
            shown
            for shown, each in zip(rows, judged, strict=True)
            if each.finding.earlier is wanted
        )
        for wanted in (False, True)
    )
    searched = (job for search in claim.searches for job in search.jobs)
    runs = {job.name: job for job in (*claim.jobs, *searched) if job.finished}
    return View(claim, judged, decides, earlier, tuple(runs.values()))


def row(number: int, judged: Judged, out: Path) -> Row:
    finding = judged.finding
    return Row(
        number,
        f"{finding.part}{' *' if finding.primary else ''}",
        f"{finding.what}, {finding.unit}",
        "; ".join(filter(None, (shown(finding.effect), finding.beside))),
        str(finding.expected),
        finding.effect.seeds,
        "" if judged.p is None else f"{judged.p:.2g}",
        judged.verdict.value,
        groups(finding.jobs, out),
    )


def shown(effect: Interval) -> str:
    """Format the mean, and the interval if it has a width."""
    mean, low, high = map(rounded, (effect.mean, effect.low, effect.high))
    if effect.spreadless:
        return f"{mean} (all seeds alike)"
    return mean if low == high else f"{mean} ({low} to {high})"


def rounded(value: float) -> str:
    """Format a number with three digits; rounding errors below 1e-9 become zero."""
    return f"{0.0 if abs(value) < 1e-9 else value:.3g}"


def groups(
    jobs: Iterable[RunJob], out: Path
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Group runs whose names differ only in the seed at the end."""
    found: dict[str, list[tuple[str, str]]] = {}
    for job in jobs:
        name, *seed = re.split(r"-s(?=\d+$)", job.name)
        found.setdefault(name, []).append(
            (
                (*seed, "log")[0],
                (archived(job.folder).relative_to(out) / "metrics.jsonl").as_posix(),
            )
        )
    return tuple((name, tuple(logs)) for name, logs in found.items())


def write(claims: Sequence[Claim], out: Path) -> list[View]:
    """Write ``claims.md``, ``claims.html`` and their figures into ``out``.

    Claims that are not judged yet are only listed. Returns the judged claims.
    """
    from jinja2 import Environment, PackageLoader, select_autoescape

    views = [view(claim, out) for claim in claims if claim.judged]
    waiting = [claim for claim in claims if not claim.judged]
    draw(claims, views, out)
    pages = Environment(
        loader=PackageLoader("claims", "."),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    facts = {
        "groups": list(answers(views, waiting)),
        "views": views,
        "waiting": waiting,
        "searches": finished_searches(claims),
        "intro": INTRO,
        "not_judged": NOT_JUDGED,
        "tuning": TUNING,
        "about_earlier": EARLIER,
        "waits": WAITS,
        "summary": f"{PICTURES}/summary.svg",
    }
    functions = {"scores": scores, "chosen": chosen, "command": command, "links": links}
    for kind in ("md", "html"):
        page = pages.get_template(f"page.{kind}").render(facts, **functions)
        (out / f"claims.{kind}").write_text(page, encoding="utf-8")
    return views


def draw(claims: Sequence[Claim], views: Sequence[View], out: Path) -> None:
    """Draw the figures of the judged claims, and the summary of all."""
    by_number = {each.claim.number: tuple(each.parts.values()) for each in views}
    groups = [
        [
            figures.Line(claim.number, claim.subject, by_number.get(claim.number, ()))
            for claim in claims
            if bool(claim.explains) is reasons
        ]
        for reasons in (False, True)
    ]
    figures.save(figures.summary(*groups), out / PICTURES / "summary.svg")
    for each in views:
        curves = each.claim.curves
        figure = figures.curves(curves()) if curves else figures.forest(each.judged)
        figures.save(figure, out / each.figure)


def answers(
    views: Sequence[View], waiting: Sequence[Claim]
) -> Iterator[tuple[str, list[View], list[Claim]]]:
    """Yield each table of answers that is not empty.

    A table is its title, the judged claims, and the claims that are not judged yet.
    """
    for title, reasons in (("claim", False), ("reason for a verdict", True)):
        judged = [view for view in views if bool(view.claim.explains) is reasons]
        others = [claim for claim in waiting if bool(claim.explains) is reasons]
        if judged or others:
            yield title, judged, others


def links(row: Row) -> str:
    """Return links to the logs of a finding, in Markdown."""
    return ", ".join(
        f"{name} {' '.join(f'[{seed}]({path})' for seed, path in logs)}" for name, logs in row.runs
    )


def finished_searches(claims: Sequence[Claim]) -> list[Search | Joint]:
    """Return each finished search once.

    A search of two settings follows the searches that it consists of.
    """
    every = (
        each for claim in claims for search in claim.searches for each in (*search.parts, search)
    )
    return [each for each in dict.fromkeys(every) if each.finished]


def scores(search: Search | Joint) -> str:
    return ", ".join(f"{value:g}: {search.score(value):.4g}" for value in search.tried)


def chosen(search: Search | Joint) -> str:
    return f"{search.best:g}{', at the edge of the search' if search.at_the_edge else ''}"

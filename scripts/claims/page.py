"""The page of the claims in Markdown and HTML: a table of answers, then each claim in detail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims.evidence import Claim, Finding, Interval, Verdict, verdict_of
from claims.tuning import HOLDOUT, SEEDS, Search
from reproduce.archives import archived
from sgp_runner.session.job_pool import Job, outdated

INTRO = (
    "Each finding is an effect with its 95 % confidence interval over seeds, the same for both "
    "sides, and the range that is expected: reproduced if the interval lies inside it, "
    "contradicted if outside, else undecided at this scale. A claim is contradicted by any of its "
    "findings and reproduced by all of them. Simulated results without randomness have one seed "
    "and no width; seeds that all gave the same difference do not show its spread and decide "
    "nothing. Where a second sample was specified after a first one had been seen, it decides "
    "alone, and the first is still shown. Ranges were committed before the runs that they judge; a "
    "claim says which results were known by then. The answers in words were written after the "
    "runs. The link of a log names an archive and, behind #, the file in it; `make logs` unpacks "
    "all archives."
)
NOT_JUDGED = "Some of their runs have not finished; `make claims` runs the missing ones."
TUNING = (
    "Settings that the papers tune are chosen once for each algorithm, by the same search for all, "
    f"on {HOLDOUT:.0%} of the training samples, which are not trained on meanwhile, with seeds "
    f"{' and '.join(map(str, SEEDS))}. A score is the mean accuracy, or BLEU on the language task, "
    "0 for a run that diverged. The search of digits and shapes first went from 0.025 to 0.4; when "
    "its first runs, of AR-SGD on digits, were best with 0.4, it became 0.05 to 1.6 for all "
    "algorithms of both tasks, before any run of a claim. On images the schedule's warm-up of 1 or "
    "3 epochs has no effect: it starts at the learning rate of 256 samples, which no update "
    "exceeds."
)
TRIALS = "Trials on held-out samples, which decide nothing:"
WAITS = ". It has a further sample, specified but not yet run, which this command adds."
EARLIER = "Earlier sample, which no longer decides:"


@dataclass(frozen=True)
class Row:
    """A finding as it is shown.

    runs: each group of runs, by name, with the seeds and the paths of their logs.
    """

    number: int
    what: str
    effect: str
    expected: str
    seeds: int
    verdict: str
    runs: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True)
class View:
    """A judged claim as it is shown."""

    claim: Claim
    verdict: Verdict
    answer: str
    rows: tuple[Row, ...]
    earlier: tuple[Row, ...]
    trials: tuple[Search, ...]
    outdated: str  # names the runs from before a correction; empty without any

    @property
    def command(self) -> str:
        return f".venv/bin/python scripts/claims.py {self.claim.number}"


def view(claim: Claim, out: Path) -> View:
    """Prepare a judged claim for the page in the folder ``out``, which links are relative to."""
    findings = claim.find()
    rows = [
        (finding.earlier, row(number, finding, out))
        for number, finding in enumerate(findings, start=1)
    ]
    answer = claim.answer.format(*(rounded(finding.effect.mean) for finding in findings))
    decides, earlier = (
        tuple(each for is_earlier, each in rows if is_earlier is wanted) for wanted in (False, True)
    )
    trials = tuple(search for search in claim.trials if search.finished)
    runs = {
        job.name: job
        for job in (
            *claim.jobs,
            *(job for search in (*claim.searches, *trials) for job in search.jobs),
        )
    }
    return View(
        claim, verdict_of(findings), answer, decides, earlier, trials, outdated(runs.values())
    )


def row(number: int, finding: Finding, out: Path) -> Row:
    facts = (
        finding.what,
        shown(finding.effect),
        str(finding.expected),
        finding.effect.seeds,
        finding.verdict.value,
    )
    return Row(number, *facts, groups(finding.jobs, out))


def shown(effect: Interval) -> str:
    """Format the mean, and the interval if it has a width."""
    mean, low, high = map(rounded, (effect.mean, effect.low, effect.high))
    if effect.spreadless:
        return f"{mean} (all seeds alike)"
    return mean if low == high else f"{mean} ({low} to {high})"


def rounded(value: float) -> str:
    """Format three digits; values below 1e-9, which are rounding errors, are shown as zero."""
    return f"{0.0 if abs(value) < 1e-9 else value:.3g}"


def groups(jobs: Iterable[Job], out: Path) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Group runs whose names differ in the seed at their end alone."""
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


def write(claims: Sequence[Claim], shapes: Mapping[str, Job], out: Path) -> list[View]:
    """Write ``claims.md`` and ``claims.html`` into ``out`` and return the judged claims.

    Claims that are not judged yet are listed. shapes: the ResNet-20 runs of `trained.how_hard`.
    """
    from jinja2 import Environment, PackageLoader

    views = [view(claim, out) for claim in claims if claim.judged]
    waiting = [claim for claim in claims if not claim.judged]
    searches = finished_searches(claims)
    out.mkdir(parents=True, exist_ok=True)
    hard = [how_hard(kind, job) for kind, job in shapes.items() if job.finished]
    hard += [sentence] if (sentence := outdated(shapes.values())) else []
    (out / "claims.md").write_text(
        "\n".join(markdown(views, waiting, searches, hard)) + "\n", encoding="utf-8"
    )
    template = Environment(
        loader=PackageLoader("claims", "."), autoescape=True, trim_blocks=True
    ).get_template("page.html")
    texts = {
        "intro": INTRO,
        "not_judged": NOT_JUDGED,
        "tuning": TUNING,
        "about_trials": TRIALS,
        "about_earlier": EARLIER,
        "waits": WAITS,
    }
    shown_as = {"scores": scores, "chosen": chosen}
    page = template.render(
        views=views, waiting=waiting, searches=searches, hard=hard, **texts, **shown_as
    )
    (out / "claims.html").write_text(page + "\n", encoding="utf-8")
    return views


def markdown(
    views: Sequence[View], waiting: Sequence[Claim], searches: Sequence[Search], hard: Sequence[str]
) -> Iterator[str]:
    yield from (
        "<!-- Generated by scripts/claims.py. -->",
        "# Claims",
        "",
        "| claim | verdict | answer |",
        "| --- | --- | --- |",
    )
    for each in views:
        number = each.claim.number
        yield (
            f"| [{number}. {each.claim.subject}](#claim{number}) | {each.verdict.value} | "
            f"{each.answer} |"
        )
    yield from ("", INTRO, "")
    for each in views:
        claim = each.claim
        yield from (
            f'<a id="claim{claim.number}"></a>',
            "",
            f"## {claim.number}. {claim.subject}",
            "",
            f"> {claim.sentence}",
            "",
        )
        yield from (
            f"{claim.source}. **{each.verdict.value}**. {each.answer}".rstrip(),
            "",
            claim.tried,
            "",
            *table_of(each.rows),
            "",
        )
        if each.earlier:
            yield from (EARLIER, "", *table_of(each.earlier), "")
        if each.trials:
            yield from (TRIALS, "", *table_of_searches(each.trials, "best"), "")
        if count := len(
            {log for row in (*each.rows, *each.earlier) for _, logs in row.runs for log in logs}
        ):
            yield from ("<details>", f"<summary>Logs of {count} runs</summary>", "")
            for row in sorted((*each.rows, *each.earlier), key=lambda row: row.number):
                runs = (
                    f"{name} {' '.join(f'[{seed}]({path})' for seed, path in logs)}"
                    for name, logs in row.runs
                )
                yield f"- {row.number}: {', '.join(runs)}"
            yield from ("", "</details>", "")
        if each.outdated:
            yield from (f"**{each.outdated}**", "")
        yield from (f"Repeat it: `{each.command}`{'' if claim.complete else WAITS}", "")
    if waiting:
        yield from (
            "## Not judged",
            "",
            NOT_JUDGED,
            "",
            *(f"- {claim.number}. {claim.sentence} {claim.source}." for claim in waiting),
            "",
        )
    if searches:
        yield from ("## Tuned settings", "", TUNING, "", *table_of_searches(searches), "")
    if hard:
        yield from ("## Difficulty of shapes", "", *hard)


def how_hard(kind: str, job: Job) -> str:
    """Report the accuracy of one run as a sentence."""
    assert job.summary is not None
    return (
        f"On shapes of {kind} ResNet-20 reaches {float(str(job.summary['average'])):.1%} "
        f"(`{job.command}`, one seed)."
    )


def table_of(rows: Sequence[Row]) -> Iterator[str]:
    yield "| # | finding | effect (95 % interval) | expected | seeds | verdict |"
    yield "| ---: | --- | --- | --- | ---: | --- |"
    for each in rows:
        yield (
            f"| {each.number} | {each.what} | {each.effect} | {each.expected} | {each.seeds} | "
            f"{each.verdict} |"
        )


def table_of_searches(searches: Iterable[Search], verb: str = "chosen") -> Iterator[str]:
    yield from (f"| runs | setting | tried: score | {verb} |", "| --- | --- | --- | --- |")
    for each in searches:
        yield f"| tune-{each.name} | {each.key} | {scores(each)} | {chosen(each)} |"


def finished_searches(claims: Sequence[Claim]) -> list[Search]:
    """All finished searches, each once."""
    return list(
        {
            search.name: search for claim in claims for search in claim.searches if search.finished
        }.values()
    )


def scores(search: Search) -> str:
    return ", ".join(f"{value:g}: {search.score(value):.4g}" for value in search.values)


def chosen(search: Search) -> str:
    return f"{search.best:g}{', at the edge of the search' if search.at_the_edge else ''}"

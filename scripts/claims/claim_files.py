"""Claims from their files: the texts and ranges of ``texts/``, and the studies that make the runs.

The studies of claim 2 are the files ``02*.yaml`` in ``configs/study/claims``. Names of arms are
unique within a claim. A claim that needs more than comparisons of arms names a function of
`COMPUTED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from math import inf, log
from pathlib import Path
from statistics import fmean
from typing import Any

from claims import averaging, consensus, speedup, timing
from claims.computed import Computed
from claims.evidence import Finding
from claims.recorded import job_of
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.studies.arms import RunMaker
from sgp_runner.studies.measures import loss, number
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between, Interval, alike, exactly, mean_of
from sgp_runner.studies.study_file import SHIPPED, StudyFile, read_study
from sgp_runner.utils.reading import read_yaml

TEXTS = Path(__file__).parent / "texts"
STUDIES = SHIPPED / "claims"
COMPUTED: Mapping[str, Callable[[Path], Computed]] = {
    "averaging": averaging.computed,
    "consensus": consensus.computed,
    "speedup": speedup.computed,
    "growth": timing.growth,
    "slow_parts": timing.slow_parts,
    "slow_network": timing.slow_network,
    "slowmo_times": timing.slowmo_times,
    "pipe_times": timing.pipe_times,
    "two_nodes": timing.two_nodes,
}
UNITS = {
    "loss": "validation loss, nats",
    "percent": "% of the validation loss",
    "time_s": "ratio of simulated times",
    "bytes_per_node": "ratio of the bytes that a node sends",
}

RATIOS = {"time_s": "time", "bytes_per_node": "bytes"}


@dataclass(frozen=True)
class ArmRuns:
    """The runs of an arm, one for each seed.

    guess: the loss of a diverged run. images: whether accuracy and training loss are compared too.
    """

    jobs: tuple[RunJob, ...]
    guess: float
    images: bool


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and its test.

    name: stem of its page. texts: subject, sentence, source, answer (``{0}`` is the mean of the
    first finding; `claims.page.Shown` has the formats), tried (the runs and their test), deviation,
    plan, searches (arm to name of the archived search), findings, explains (number of the claim
    with the verdict that this one explains).
    """

    number: int
    name: str
    texts: Mapping[str, Any]
    studies: tuple[StudyFile, ...]
    arms: Mapping[str, ArmRuns]
    computed: Computed = field(default_factory=Computed)

    @property
    def jobs(self) -> tuple[RunJob, ...]:
        """All runs, ordered by seed and then by arm."""
        seeds = range(max((len(arm.jobs) for arm in self.arms.values()), default=0))
        by_seed = [
            arm.jobs[place]
            for place, arm in product(seeds, self.arms.values())
            if place < len(arm.jobs)
        ]
        return tuple(dict.fromkeys([*by_seed, *self.computed.jobs]))

    @property
    def finished(self) -> bool:
        return all(job.finished for job in self.jobs)

    @property
    def explains(self) -> int:
        return int(self.texts.get("explains", 0))

    @property
    def plan(self) -> SeedPlan | None:
        """The power of the primary finding; None if it is not random or was not planned."""
        plan = self.texts.get("plan")
        return SeedPlan(**plan) if plan else None

    def find(self) -> list[Finding]:
        """Return the findings; all runs must have finished."""
        compared = [finding_of(text, self.arms) for text in self.texts.get("findings", [])]
        return [*compared, *self.computed.find()]


def all_claims(results: Path) -> list[Claim]:
    return [claim_of(path, results) for path in sorted(TEXTS.glob("*.yaml"))]


def claim_of(path: Path, results: Path) -> Claim:
    texts = read_yaml(path)
    studies = tuple(map(read_study, sorted(STUDIES.glob(f"{path.stem[:2]}*.yaml"))))
    arms = dict(chain.from_iterable(runs_of(study, results) for study in studies))
    computed = COMPUTED[texts["function"]](results) if "function" in texts else Computed()
    return Claim(int(path.stem[:2]), path.stem, texts, studies, arms, computed)


def runs_of(study: StudyFile, results: Path) -> Iterator[tuple[str, ArmRuns]]:
    maker = RunMaker(study)
    for arm in study.arms:
        overrides = maker.plain(arm)
        images = "data=shapes" in overrides
        name = re.sub(r"\W+", "_", f"{study.name}-{arm.name}".lower())
        jobs = tuple(
            job_of(results, [*overrides, f"seed={seed}"], f"{name}-s{seed}") for seed in study.seeds
        )
        yield arm.name, ArmRuns(jobs, log(10 if images else 256), images)


Pair = Sequence[ArmRuns]


def finding_of(entry: Mapping[str, Any], arms: Mapping[str, ArmRuns]) -> Finding:
    """Return the finding of an entry of ``findings``.

    of: two arms, the second of which is subtracted. beyond: two other arms, of which the difference
    is subtracted too. measure: loss (default) | percent (of the second arm's loss) | time_s |
    bytes_per_node (ratios). least, most: the expected range. The arms describe the finding.
    """
    pairs = [[arms[name] for name in entry[key]] for key in ("of", "beyond") if key in entry]
    jobs = tuple(dict.fromkeys(job for pair in pairs for arm in pair for job in arm.jobs))
    measure = entry.get("measure", "loss")
    effect = mean_of(differences(pairs, losses)) if measure == "loss" else ratio(pairs[0], measure)
    sign, quantity = (" / ", f", {RATIOS[measure]}") if measure in RATIOS else (" − ", "")
    names = [sign.join(entry[key]) for key in ("of", "beyond") if key in entry]
    plain = measure == "loss" and not any(job.diverged for job in jobs)
    return Finding(
        entry["part"],
        " − ".join(f"({name})" for name in names) if names[1:] else f"{names[0]}{quantity}",
        UNITS[measure],
        effect,
        Between(entry.get("least", -inf), entry.get("most", inf)),
        jobs,
        beside(pairs) if plain and pairs[0][0].images else "",
        entry.get("primary", False),
        entry.get("earlier", False),
    )


def losses(arm: ArmRuns) -> list[float]:
    return [loss(job, arm.guess) for job in arm.jobs]


def numbers(key: str, arm: ArmRuns) -> list[float]:
    return [number(job, key) for job in arm.jobs]


def differences(pairs: Sequence[Pair], values: Callable[[ArmRuns], list[float]]) -> list[float]:
    """Return the difference within the first pair of arms, by seed, less that of a second pair."""
    first, *others = (
        [a - b for a, b in zip(values(ours), values(theirs), strict=True)] for ours, theirs in pairs
    )
    return [one - sum(rest) for one, *rest in zip(first, *others, strict=True)]


def ratio(pair: Pair, measure: str) -> Interval:
    """Return a ratio, which is exact if it is the same for all seeds, or an excess in per cent."""
    values = losses if measure == "percent" else partial(numbers, measure)
    ratios = [a / b for a, b in zip(*map(values, pair), strict=True)]
    if measure == "percent":
        return mean_of([100 * (value - 1) for value in ratios])
    return exactly(fmean(ratios)) if alike(ratios) else mean_of(ratios)


def beside(pairs: Sequence[Pair]) -> str:
    """Return a text about the differences in accuracy and in the training loss."""
    shares = partial(numbers, "average")
    points = mean_of(differences(pairs, lambda arm: [100 * share for share in shares(arm)]))
    nats = mean_of(differences(pairs, training_losses))
    return (
        f"accuracy {points.mean:+.2f} points ({points.low:+.2f} to {points.high:+.2f}); "
        f"training loss {nats.mean:+.3f} ({nats.low:+.3f} to {nats.high:+.3f})"
    )


def training_losses(arm: ArmRuns) -> list[float]:
    """Return the mean loss of the workers' last batches in nats, each before the step."""
    out = []
    for job in arm.jobs:
        records = (record for record in read_metrics(job.folder) if record["kind"] == "train")
        out.append(fmean({record["rank"]: record["loss"] for record in records}.values()))
    return out

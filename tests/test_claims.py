"""Statistics and verdicts of claims, what is tuned before, and the claim that needs no run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sgp_runner.batch import Job
from sgp_runner.claims.averaging import find, unevenness
from sgp_runner.claims.evidence import Between, Finding, Interval, Verdict, exactly, paired, verdict_of
from sgp_runner.claims.tuning import Search, quality, remaining


def test_a_paired_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), and t(0.975, 2) = 4.302653.
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (effect.mean, effect.seeds) == (2.0, 3)
    assert effect.high - effect.mean == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert effect.mean - effect.low == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert paired([2.0, 3.0], [1.0, 2.0]) == Interval(1.0, 1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.9, Verdict.REPRODUCED), (-0.5, 0.5, Verdict.UNDECIDED), (-0.9, -0.1, Verdict.CONTRADICTED), (0.5, 2.0, Verdict.UNDECIDED)],
)
def test_an_interval_is_judged_as_a_whole(low: float, high: float, verdict: Verdict) -> None:
    assert Between(0.0, 1.0).judge(Interval((low + high) / 2, low, high, 5)) == verdict


def test_one_contradiction_contradicts_a_claim() -> None:
    yes, no = Finding("", exactly(1.0), Between(least=0.0)), Finding("", exactly(-1.0), Between(least=0.0))
    open_ = Finding("", Interval(0.0, -1.0, 1.0, 5), Between(least=0.0))
    assert verdict_of([yes, yes]) == Verdict.REPRODUCED
    assert verdict_of([yes, open_]) == Verdict.UNDECIDED
    assert verdict_of([yes, open_, no]) == Verdict.CONTRADICTED


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert unevenness(3) == unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    assert verdict_of(find()) == Verdict.REPRODUCED


def pretend(job: Job, score: float | None) -> None:
    """That it has finished with this mean accuracy of the workers; None: that it has diverged."""
    job.folder.mkdir(parents=True)
    name, facts = ("diverged.json", {}) if score is None else ("summary.json", {"worker_mean": score})
    (job.folder / name).write_text(json.dumps(facts), encoding="utf-8")


def test_a_search_chooses_the_best_mean_on_held_out_samples(tmp_path: Path) -> None:
    search = Search("sgp", ("algo=sgp", "model=mlp"), tmp_path, values=(0.4, 0.1, 0.2))
    first = search.jobs[0]
    assert first.name == "tune-sgp-lr0.4-s101"
    assert first.words == ("algo=sgp", "model=mlp", "optim.lr=0.4", "data.holdout=0.2", "seed=101")
    for job, score in zip(search.jobs, (0.9, None, 0.5, 0.75, 0.75, 0.5), strict=True):
        assert not search.finished
        pretend(job, score)
    assert search.finished and [search.score(value) for value in search.values] == [0.45, 0.625, 0.625]
    assert (search.best, search.at_the_edge, search.chosen) == (0.1, True, ("optim.lr=0.1",))
    assert quality(search.jobs[1], "worker_mean") == 0.0


def test_a_second_search_waits_for_the_first(tmp_path: Path) -> None:
    first = Search("sgp", ("algo=sgp",), tmp_path, values=(0.1, 0.2, 0.3), seeds=(101,))
    second = Search("slowmo", ("algo=slowmo",), tmp_path, key="algo.beta", values=(0.5, 0.7), seeds=(101,), after=first)
    rounds = remaining([first, second])
    assert [job.name for job in next(rounds)] == ["tune-sgp-lr0.1-s101", "tune-sgp-lr0.2-s101", "tune-sgp-lr0.3-s101"]
    for job, score in zip(first.jobs, (0.5, 0.6, 0.5), strict=True):
        pretend(job, score)
    assert next(rounds)[0].words == ("algo=slowmo", "optim.lr=0.2", "algo.beta=0.5", "data.holdout=0.2", "seed=101")
    pretend(second.jobs[0], 0.7)
    assert list(rounds) == [] and not second.finished  # the other one failed: it is not tried for ever
    pretend(second.jobs[1], 0.8)
    assert second.chosen == ("optim.lr=0.2", "algo.beta=0.7")

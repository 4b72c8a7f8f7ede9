"""Statistics and verdicts of claims, what is tuned before, and the claim that needs no run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from claims.averaging import find, unevenness
from claims.evidence import Between, Claim, Finding, Interval, Verdict, exactly, paired, verdict_of
from claims.gossip import claims as gossip_claims
from claims.slow_momentum import claims as slow_momentum_claims
from claims.trained import (
    DIGITS,
    LANGUAGE,
    SEEDS,
    SHAPES,
    Side,
    all_jobs,
    compare,
    extra,
    searches,
    side,
    time_ratio,
)
from claims.tuning import Joint, Search, quality, remaining
from sgp_runner.session.job_pool import Job


def test_a_paired_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), and t(0.975, 2) = 4.302653.
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (effect.mean, effect.seeds) == (2.0, 3)
    assert effect.high - effect.mean == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert effect.mean - effect.low == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert paired([2.0, 3.0], [1.0, 2.0]) == Interval(1.0, 1.0, 1.0, 2)


@pytest.mark.parametrize(
    "expected", [Between(least=0.0), Between(most=0.0), Between(0.0, 0.0), Between(least=1.0)]
)
def test_seeds_that_all_differ_alike_decide_nothing(expected: Between) -> None:
    assert expected.judge(paired([0.5, 0.25, 0.1], [0.5, 0.25, 0.1])) == Verdict.UNDECIDED
    assert paired([0.3, 0.2], [0.2, 0.1]).spreadless  # up to rounding
    assert expected.judge(exactly(0.0)) != Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.9, Verdict.REPRODUCED),
        (-0.5, 0.5, Verdict.UNDECIDED),
        (-0.9, -0.1, Verdict.CONTRADICTED),
        (0.5, 2.0, Verdict.UNDECIDED),
    ],
)
def test_an_interval_is_judged_as_a_whole(low: float, high: float, verdict: Verdict) -> None:
    assert Between(0.0, 1.0).judge(Interval((low + high) / 2, low, high, 5)) == verdict


def test_one_contradiction_contradicts_a_claim() -> None:
    yes, no = (
        Finding("", exactly(1.0), Between(least=0.0)),
        Finding("", exactly(-1.0), Between(least=0.0)),
    )
    open_ = Finding("", Interval(0.0, -1.0, 1.0, 5), Between(least=0.0))
    assert verdict_of([yes, yes]) == Verdict.REPRODUCED
    assert verdict_of([yes, open_]) == Verdict.UNDECIDED
    assert verdict_of([yes, open_, no]) == Verdict.CONTRADICTED


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert unevenness(3) == unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    assert verdict_of(find()) == Verdict.REPRODUCED


def pretend(job: Job, score: float | None, seconds: float = 1.0) -> None:
    """That it has finished with this mean accuracy of the workers and BLEU; None: that it has
    diverged.
    """
    job.folder.mkdir(parents=True)
    facts = {
        "worker_mean": score,
        "average": score,
        "bleu": score,
        "time_s": seconds,
        "ms_per_iteration": 1000 * seconds,
    }
    name, facts = ("diverged.json", {}) if score is None else ("summary.json", facts)
    (job.folder / name).write_text(json.dumps(facts), encoding="utf-8")
    epochs = [{"kind": "average", "consensus_distance": 0.25} for _ in range(10)]
    (job.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, epochs)), encoding="utf-8")


def test_a_search_chooses_the_best_mean_on_held_out_samples(tmp_path: Path) -> None:
    search = Search("sgp", ("algo=sgp", "model=mlp"), tmp_path, values=(0.4, 0.1, 0.2))
    first = search.jobs[0]
    assert first.name == "tune-sgp-lr0.4-s101"
    assert first.words == ("algo=sgp", "model=mlp", "optim.lr=0.4", "data.holdout=0.2", "seed=101")
    for job, score in zip(search.jobs, (0.9, None, 0.5, 0.75, 0.75, 0.5), strict=True):
        assert not search.finished
        pretend(job, score)
    assert search.finished and [search.score(value) for value in search.values] == [
        0.45,
        0.625,
        0.625,
    ]
    assert (search.best, search.at_the_edge, search.chosen) == (0.1, True, ("optim.lr=0.1",))
    assert quality(search.jobs[1], "worker_mean") == 0.0


def test_a_second_search_waits_for_the_first(tmp_path: Path) -> None:
    first = Search("sgp", ("algo=sgp",), tmp_path, values=(0.1, 0.2, 0.3), seeds=(101,))
    second = Search(
        "slowmo",
        ("algo=slowmo",),
        tmp_path,
        key="algo.beta",
        values=(0.5, 0.7),
        seeds=(101,),
        after=first,
    )
    rounds = remaining([first, second])
    assert [job.name for job in next(rounds)] == [
        "tune-sgp-lr0.1-s101",
        "tune-sgp-lr0.2-s101",
        "tune-sgp-lr0.3-s101",
    ]
    for job, score in zip(first.jobs, (0.5, 0.6, 0.5), strict=True):
        pretend(job, score)
    assert next(rounds)[0].words == (
        "algo=slowmo",
        "optim.lr=0.2",
        "algo.beta=0.5",
        "data.holdout=0.2",
        "seed=101",
    )
    pretend(second.jobs[0], 0.7)
    assert (
        list(rounds) == [] and not second.finished
    )  # the other one failed: it is not tried for ever
    pretend(second.jobs[1], 0.8)
    assert second.chosen == ("optim.lr=0.2", "algo.beta=0.7")


def test_a_second_search_waits_for_results_of_the_first_that_have_all_corrections(
    tmp_path: Path,
) -> None:
    first = Search("slow", ("algo=slowmo",), tmp_path, values=(0.1, 0.2, 0.3), seeds=(101,))
    second = Search(
        "slowmo",
        ("algo=slowmo",),
        tmp_path,
        key="algo.beta",
        values=(0.5,),
        seeds=(101,),
        after=first,
    )
    for job, score in zip(first.jobs, (0.5, 0.6, 0.5), strict=True):
        pretend(job, score)
    pretend(second.jobs[0], 0.5)
    assert second.chosen[0] == "optim.lr=0.2" and list(remaining([first, second])) == []
    slowmo = "format: 2\nalgo: {name: slowmo}\nmodel: {}\noptim: {}\nfaults: {}\n"
    for job in (*first.jobs, *second.jobs):
        (job.folder / "config.yaml").write_text(slowmo, encoding="utf-8")
    rounds = remaining([first, second])
    assert next(rounds) == first.jobs
    for job, score in zip(first.jobs, (0.7, 0.6, 0.5), strict=True):
        (job.folder / "config.yaml").write_text(slowmo + "results_version: 2\n", encoding="utf-8")
        (job.folder / "summary.json").write_text(
            json.dumps({"worker_mean": score}), encoding="utf-8"
        )
    (again,) = next(rounds)
    assert again.words[:2] == ("algo=slowmo", "optim.lr=0.1") and list(rounds) == []


def test_two_settings_at_once_are_the_best_of_all_their_pairs(tmp_path: Path) -> None:
    both = Joint(
        Search("slowmo", ("algo=slowmo",), tmp_path, values=(0.1, 0.2), seeds=(101,)),
        "algo.beta",
        (0.25, 0.5),
    )
    jobs = [job for part in both.parts for job in part.jobs]
    assert [job.name for job in jobs][1:3] == [
        "tune-slowmo-beta0.25-lr0.2-s101",
        "tune-slowmo-beta0.5-lr0.1-s101",
    ]
    assert jobs[2].words == (
        "algo=slowmo",
        "algo.beta=0.5",
        "optim.lr=0.1",
        "data.holdout=0.2",
        "seed=101",
    )
    for job, score in zip(jobs, (0.5, 0.625, 0.75, 0.5), strict=True):
        assert not both.finished
        pretend(job, score)
    assert both.chosen == ("algo.beta=0.5", "optim.lr=0.1")


def pretend_all(each: Side, scores: tuple[float, ...], seconds: float = 1.0) -> None:
    if not each.search.finished:
        for job in each.search.jobs:
            pretend(job, 0.5)
    for job, score in zip(each.jobs, scores, strict=True):
        pretend(job, score, seconds)


def test_a_side_is_the_tuned_algorithm_with_its_seeds(tmp_path: Path) -> None:
    longer = side(tmp_path, SHAPES, "sgp", nodes=32, times=3)
    for job in longer.search.jobs:
        pretend(job, 0.75 if "optim.lr=0.1" in job.words else 0.5)
    assert [job.name for job in longer.jobs] == [
        f"shapes-sgp-n32-x3-s{seed}" for seed in (1, 2, 3, 4, 5)
    ]
    settings = dict(word.split("=", 1) for word in longer.jobs[0].words)
    wanted = {
        "algo": "sgp",
        "nodes": "32",
        "batch_size": "8",
        "epochs": "30",
        "optim.lr": "0.1",
        "seed": "1",
        "cluster": "sgp_ethernet",
    }
    assert settings | wanted == settings and "data.holdout" not in settings
    assert [job.name[-3:] for job in replace(longer, seeds=(8, 11)).jobs] == ["-s8", "s11"]
    assert [job.words[-1] for job in all_jobs([longer, side(tmp_path, SHAPES, "sgp")])][:4] == [
        "seed=1",
        "seed=1",
        "seed=2",
        "seed=2",
    ]


def test_sides_are_compared_seed_by_seed_in_points(tmp_path: Path) -> None:
    sgp, all_reduce = side(tmp_path, DIGITS, "sgp"), side(tmp_path, DIGITS, "ar_sgd")
    pretend_all(sgp, (0.75, 0.5, 0.625, 0.5, 0.5), seconds=1.0)
    pretend_all(all_reduce, (0.5, 0.25, 0.375, 0.25, 0.25), seconds=4.0)
    found = compare("SGP minus AR-SGD", sgp, all_reduce, Between(least=0.0))
    assert (found.effect, found.verdict) == (
        Interval(25.0, 25.0, 25.0, 5),
        Verdict.UNDECIDED,
    )  # all seeds alike
    assert found.what == "digits: SGP minus AR-SGD, points of accuracy" and len(found.jobs) == 10
    assert extra("", (sgp, all_reduce), (all_reduce, sgp), Between()).effect == Interval(
        50.0, 50.0, 50.0, 5
    )
    assert time_ratio("", sgp, all_reduce, Between(most=0.5)).effect == exactly(0.25)
    assert [search.name for search in searches([sgp, all_reduce, sgp])] == [
        "digits-sgp",
        "digits-ar_sgd",
    ]


def test_translations_are_compared_in_bleu(tmp_path: Path) -> None:
    sgp, all_reduce = side(tmp_path, LANGUAGE, "sgp"), side(tmp_path, LANGUAGE, "ar_sgd")
    pretend_all(sgp, (30.0, 30.0, 30.0, 30.0, 30.0))
    pretend_all(all_reduce, (28.0, 28.0, 28.0, 28.0, 28.0))
    assert compare("", sgp, all_reduce, Between()).effect == Interval(2.0, 2.0, 2.0, 5)
    assert (
        "algo.average=parameters" in all_reduce.words and "algo.average=parameters" not in sgp.words
    )


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Claim], dict[str, Job]]:
    """The claims whose runs have all finished, with the same result; and these runs by name."""
    results = tmp_path_factory.mktemp("results")
    claims = [*gossip_claims(results), *slow_momentum_claims(results)]
    jobs: dict[str, Job] = {}

    def note(needed: Sequence[Job]) -> None:
        for job in needed:
            assert jobs.setdefault(job.name, job) == job  # a name stands for one setting
            if not job.finished:
                pretend(job, 0.5)

    for claim in claims:
        for search in claim.searches:  # in their order: some follow others
            note(search.jobs)
        for sample in claim.samples:
            note(sample.jobs())
    return claims, jobs


def test_nothing_is_claimed_where_all_results_are_equal(
    equal: tuple[list[Claim], dict[str, Job]],
) -> None:
    claims, _ = equal
    for claim in claims:
        assert claim.complete
        findings = claim.find()
        claim.answer.format(*findings)  # it names no finding that there is not
        assert {finding.effect.seeds for finding in findings} <= {1, len(SEEDS)}
        assert {finding.effect.mean for finding in findings} <= {
            0.0,
            1.0,
        }  # differences, and ratios of times
        assert set(claim.jobs) == {job for finding in findings for job in finding.jobs}
    assert [claim.number for claim in claims] == [2, 4, 5, 12, 13, 7] and len(SEEDS) == 5


@pytest.mark.slow
def test_every_run_of_the_claims_can_be_composed(equal: tuple[list[Claim], dict[str, Job]]) -> None:
    from sgp_runner.config.overrides import compose, configs, parse
    from sgp_runner.config.schema import make_experiment

    with configs():
        for job in equal[1].values():
            if job.name.endswith(("-s1", "-s101")):
                make_experiment(compose([setting.word for setting in parse(job.words)]))

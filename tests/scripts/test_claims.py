"""Statistics and verdicts of claims, what is tuned before, and the claim that needs no run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from claims.averaging import find, unevenness
from claims.evidence import Finding, Verdict, headline, judge, parts, verdict_of
from claims.trained import Side, all_jobs, compare, extra, searches, side
from claims.trained import time_ratio as ratio
from claims.tuning import Joint, Search, remaining
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.measures import loss
from sgp_runner.studies.statistics import Between, exactly, paired
from sgp_runner.studies.study_tasks import GRAMMAR, IMAGES
from sgp_runner.studies.tuning import doublings

YES, NO, OPEN = Verdict.REPRODUCED, Verdict.CONTRADICTED, Verdict.UNDECIDED


def tail(t: float) -> float:
    """The probability that Student's t with two degrees of freedom is larger than ``t``."""
    return (1 - t / math.sqrt(t * t + 2)) / 2


def test_a_range_is_tested_from_the_side_of_each_bound() -> None:
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])  # 2, standard error 1/sqrt(3)
    above, below = tail(2 * math.sqrt(3)), tail(math.sqrt(3))
    for expected, verdict, p in (
        (Between(least=0.0), YES, above),
        (Between(most=0.0), NO, above),
        (Between(most=3.0), YES, below),
        (Between(0.0, 3.0), YES, below),  # the larger of both
        (Between(3.0, 9.0), NO, below),
        (Between(-1.0, 0.0), NO, above),
    ):
        found, value = verdict_of(expected, effect)
        assert found == verdict and value == pytest.approx(p, rel=1e-9)
    assert [verdict_of(Between(0.0, 1.0), exactly(x)) for x in (1.0, 1.1)] == [
        (YES, 0.0),
        (NO, 0.0),
    ]


@pytest.mark.parametrize("expected", [Between(least=0.0), Between(most=0.0), Between(0.0, 0.0)])
def test_seeds_that_all_differ_alike_decide_nothing(expected: Between) -> None:
    assert verdict_of(expected, paired([0.5, 0.25, 0.1], [0.5, 0.25, 0.1])) == (OPEN, 1.0)
    assert paired([0.3, 0.2], [0.2, 0.1]).spreadless  # up to rounding


def finding(part: str, mean: float, *, primary: bool = False, seeds: int = 3) -> Finding:
    """An effect whose standard error is 1/sqrt(3), expected to be at least 0."""
    effect = paired([mean - 1, mean, mean + 1], [0.0] * 3) if seeds > 1 else exactly(mean)
    return Finding(part, "", "", effect, Between(least=0.0), primary=primary)


def test_the_primary_finding_is_tested_alone_and_the_others_share_the_level() -> None:
    # 3 is significant alone at 2.5 % (1.75 %), but not as one of two; 6 is (0.46 %).
    judged = judge(
        [
            finding("few", 3.0, primary=True),
            finding("many", 3.0),
            finding("time", -1.0, seeds=1),
            finding("late", 6.0),
        ]
    )
    assert [each.verdict for each in judged] == [YES, YES, NO, YES]
    assert [each.p for each in judged] == pytest.approx(
        [
            tail(3 * math.sqrt(3)),
            tail(3 * math.sqrt(3)),
            None,
            2 * tail(6 * math.sqrt(3)),
        ]
    )
    judged = judge([finding("few", 3.0, primary=True), finding("many", 3.0), finding("late", 3.0)])
    assert [each.verdict for each in judged] == [YES, OPEN, OPEN]


def test_the_headline_counts_parts_and_says_what_the_open_ones_need() -> None:
    findings = [
        finding("few", 3.0, primary=True),
        finding("many", 0.5),
        finding("late", -6.0),
        finding("late", 6.0),
        finding("time", 1.0, seeds=1),
    ]
    judged = judge(findings)
    assert parts(judged) == {"few": YES, "many": OPEN, "late": NO, "time": YES}
    assert headline(judged) == (
        "2 of 4 parts reproduced; contradicted: late; undecided: many (about 34 seeds)"
    )
    assert headline(judge(findings[:1])) == "reproduced"


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert unevenness(3) == unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    assert headline(judge(find())) == "2 of 2 parts reproduced"


def pretend(job: RunJob, score: float | None, seconds: float = 1.0) -> None:
    """That it has finished with this loss, and an accuracy of 1 minus it; None: it has diverged.

    Two workers' last batches have half and three halves of the loss.
    """
    job.folder.mkdir(parents=True)
    facts = {} if score is None else {"average_loss": score, "average": 1 - score}
    name = "diverged.json" if score is None else "summary.json"
    (job.folder / name).write_text(json.dumps({**facts, "time_s": seconds}), encoding="utf-8")
    steps = [(0, 0, 9.0), (1, 0, 9.0), (0, 8, (score or 0) / 2), (1, 8, (score or 0) * 3 / 2)]
    lines = (
        json.dumps({"kind": "train", "time_s": step, "rank": rank, "step": step, "loss": loss})
        for rank, step, loss in steps
    )
    (job.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def finish(search: Search | Joint, score: dict[str, float | None]) -> list[str]:
    """Run the search, with the loss of each setting; the names of the runs, round by round."""
    names = []
    for jobs in remaining([search]):
        for job in jobs:
            settings = " ".join(word for word in job.words if word.startswith(("optim", "algo.")))
            pretend(job, score[settings])
        names.append(" ".join(job.name for job in jobs))
    return names


def test_a_search_goes_on_until_the_best_value_lies_between_others(tmp_path: Path) -> None:
    search = Search("sgp", ("algo=sgp",), tmp_path, (0.1, 0.4), doublings(0.1, 3), seeds=(101,))
    rounds = finish(
        search,
        {
            "optim.lr=0.1": 0.5,
            "optim.lr=0.4": None,
            "optim.lr=0.05": 0.25,
            "optim.lr=0.2": 0.75,
            "optim.lr=0.025": 0.375,
        },
    )
    assert rounds == [
        "tune-sgp-lr0.1-s101 tune-sgp-lr0.4-s101",
        "tune-sgp-lr0.05-s101 tune-sgp-lr0.2-s101",
        "tune-sgp-lr0.025-s101",
    ]
    assert search.finished and search.tried == (0.025, 0.05, 0.1, 0.2, 0.4)
    assert (search.best, search.at_the_edge, search.chosen) == (0.05, False, ("optim.lr=0.05",))
    assert search.jobs[0].words == ("algo=sgp", "optim.lr=0.025", "seed=101")
    assert loss(search.job(0.4, 101)) == math.inf


def test_two_settings_at_once_are_the_best_of_all_their_pairs(tmp_path: Path) -> None:
    rate = Search("slowmo", ("algo=slowmo",), tmp_path, (0.1,), (0.1,), seeds=(101,))
    both = Joint(rate, "algo.beta", (0.25,), (0.25, 0.5, 0.75))
    losses = {0.25: 0.5, 0.5: 0.25, 0.75: 0.375}
    rounds = finish(
        both, {f"algo.beta={beta} optim.lr=0.1": value for beta, value in losses.items()}
    )
    assert rounds == [
        "tune-slowmo-beta0.25-lr0.1-s101",
        "tune-slowmo-beta0.5-lr0.1-s101",
        "tune-slowmo-beta0.75-lr0.1-s101",
    ]
    assert both.finished and both.chosen == ("algo.beta=0.5", "optim.lr=0.1")
    assert not both.at_the_edge and Joint(rate, both.key, (0.25,), (0.25, 0.5)).at_the_edge


def pretend_all(each: Side, scores: tuple[float | None, ...], seconds: float = 1.0) -> None:
    while not each.search.finished:
        for job in each.search.jobs:
            if not job.finished:
                pretend(job, 0.5)
    for job, score in zip(each.jobs, scores, strict=True):
        pretend(job, score, seconds)


def test_a_side_is_the_tuned_algorithm_with_its_seeds(tmp_path: Path) -> None:
    longer = side(tmp_path, IMAGES, "sgp", seeds=(1, 2), times=3)
    (search,) = searches([longer, longer])
    assert {"data.holdout=0.2", "epochs=15"} <= set(search.words)
    pretend_all(longer, (0.5, 0.5))
    assert [job.name for job in longer.jobs] == ["images-sgp-n32-x3-s1", "images-sgp-n32-x3-s2"]
    wanted = {"algo=sgp", "nodes=32", "batch_size=8", "epochs=15", "optim.lr=4.88281e-05", "seed=1"}
    assert wanted <= set(longer.jobs[0].words)  # of equal losses, the smallest rate
    assert not any(word.startswith("data.holdout") for word in longer.jobs[0].words)
    few = side(tmp_path, IMAGES, "sgp", seeds=(1, 2), nodes=4)
    assert "batch_size=64" in few.words and few.search != longer.search
    larger = few.lengthened(4, (1,))
    assert (larger.name, larger.seeds) == ("images4x-sgp-n4", (1,))
    assert "data.train_size=256000" in larger.words and larger.search == few.search
    like = side(tmp_path, IMAGES, "sgp", "late", seeds=(1, 2), like=longer.search)
    assert [job.words[-1] for job in all_jobs([longer, like])] == ["seed=1"] * 2 + ["seed=2"] * 2


def test_sides_are_compared_seed_by_seed(tmp_path: Path) -> None:
    sgp, all_reduce = (side(tmp_path, IMAGES, algo, seeds=(1, 2)) for algo in ("sgp", "ar_sgd"))
    pretend_all(sgp, (0.75, 0.5), seconds=1.0)
    pretend_all(all_reduce, (0.5, 0.5), seconds=4.0)
    found = compare("few", "SGP minus AR-SGD", sgp, all_reduce, Between(least=0.0))
    assert (found.effect.mean, found.what, len(found.jobs)) == (
        0.125,
        "images: SGP minus AR-SGD",
        4,
    )
    assert found.beside == (
        "accuracy -12.50 points (-171.33 to +146.33); training loss +0.125 (-1.463 to +1.713)"
    )
    twice = extra("", "", (sgp, all_reduce), (all_reduce, sgp), Between())
    assert (twice.effect.mean, len(twice.jobs)) == (0.25, 4)
    assert twice.beside.startswith("accuracy -25.00 points (-342.66 to +292.66); training")
    assert ratio("", "", sgp, all_reduce, Between(most=0.5)).effect == exactly(0.25)


def test_a_diverged_run_counts_as_a_model_that_guesses(tmp_path: Path) -> None:
    sgp, all_reduce = (side(tmp_path, GRAMMAR, algo, seeds=(1, 2)) for algo in ("sgp", "ar_sgd"))
    pretend_all(sgp, (None, 1.0))
    pretend_all(all_reduce, (1.0, 1.0))
    assert sgp.losses == [math.log(256), 1.0]
    found = compare("", "", sgp, all_reduce, Between())
    assert found.effect.mean == (math.log(256) - 1) / 2 and found.beside == ""

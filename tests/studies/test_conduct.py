"""A whole study on two clusters: its runs, its tables, its page, and its continuation."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf, log
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.studied import CONTENT, Finished, conducted

import sgp_runner as sgp
from sgp_runner.config.check import CheckedPart, check_tree
from sgp_runner.jobs.job_pool import PoolJob
from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.candidates import Candidate, Trial, Tuned
from sgp_runner.studies.comparisons import adjust, answer, compare, headline
from sgp_runner.studies.conduct import (
    RunsFailed,
    conduct,
    make,
    score,
    tuning_job,
)
from sgp_runner.studies.measures import RunResult, loss, measure_of
from sgp_runner.studies.run_study import run_study
from sgp_runner.studies.study_file import study_of
from sgp_runner.studies.study_latex import table_tex
from sgp_runner.studies.study_page import StudyPage
from sgp_runner.studies.study_plots import loss_plots, tuning_plots
from sgp_runner.studies.study_record import StudyRecord
from sgp_runner.studies.study_table import comparison_table, difference_note
from sgp_runner.studies.tuning import FIRST_SEED
from sgp_runner.studies.verification import opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the study has been made by the call from Python."""
    path, before = tmp_path_factory.mktemp("study"), Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def page(folder: Path) -> StudyPage:
    content = {**CONTENT, "measures": ["loss", "time"]}
    made = sgp.study(content, "small")
    assert isinstance(made, StudyPage)
    return made


def test_a_study_has_all_of_its_runs_and_tables(folder: Path, page: StudyPage) -> None:
    out = folder / "results/studies/small"
    assert page.page.resolve() == (out / "index.html").resolve()
    table = page.table
    searched = table[table["measure"] == "loss"]["search_runs"].sum()
    assert 6 <= searched <= 8
    # Two that decide for each arm, and two of AD-PSGD on the other cluster.
    assert len(list((out / "runs").iterdir())) == searched + 2 * 2 + 2
    assert len(list((out / "retimed").iterdir())) == 2
    assert set(table["arm"]) == {"SGP", "AD-PSGD"} and len(table) == 2 * 3
    assert list(table[table["arm"] == "AD-PSGD"]["verdict"]) == ["baseline"] * 3
    assert table["primary"].sum() == 1 and set(table["seeds"]) == {2}
    assert list(pd.read_csv(out / "table.csv")["arm"]) == list(table["arm"])
    time = table[table["measure"] == "time"].set_index(["arm", "cluster"])["mean"]
    fast, slow = "laptop (10 Gbit/s)", "laptop (1 Mbit/s)"
    clusters = sorted(set(table["cluster"]))
    assert len(clusters) == 2 and slow in clusters
    (fast,) = set(clusters) - {slow}
    assert time["SGP", slow] > time["SGP", fast]


def test_the_page_answers_and_says_what_is_to_know(folder: Path, page: StudyPage) -> None:
    html = page.page.read_text(encoding="utf-8")
    assert "<h1>Does SGP save time &amp; bytes?</h1>" in html
    assert page.answer in html.replace("&#39;", "'")
    assert "AD-PSGD depends on time, so it was trained again on each cluster." in html
    assert html.count('role="img"') == 3  # two clusters and the searches
    text = (page.page.parent / "table.tex").read_text(encoding="utf-8")
    assert "\\begin{tabular}{rlrrr}" in text and "time \\& bytes?" in text
    record = json.loads((page.page.parent / "study.json").read_text(encoding="utf-8"))
    assert record["versions"][0]["content"]["nodes"] == 2


def test_a_study_of_one_arm_has_what_optuna_found_and_its_archive_is_verified(
    folder: Path,
) -> None:
    tune = {
        "rule": "tpe",
        "optim.lr": "tag(log,interval(0.001,1))",
        "algo.topology": ["ring", "complete"],
        "budget": 6,
    }
    shared = {key: CONTENT[key] for key in ("model", "model.hidden", "nodes", "epochs", "seeds")}
    content = {**shared, "arms": {"SGP": "algo=sgp"}, "tune": tune}
    first = run_study(study_of(content, "one"))
    pattern = r"SGP with optim\.lr=\S+ algo\.topology=(ring|complete): loss \d\.\d+\."
    assert re.fullmatch(pattern, first.answer)
    assert first.headline == "A study of one arm compares nothing."
    assert list(first.table["verdict"]) == ["baseline"] and first.table["search_runs"][0] <= 6
    runs = {path: path.stat().st_mtime_ns for path in first.page.parent.glob("runs/*/*")}
    assert run_study(study_of(content, "one")).answer == first.answer
    assert {path: path.stat().st_mtime_ns for path in first.page.parent.glob("runs/*/*")} == runs
    with opened(first.page.with_name("study.zip")) as again:
        assert again.findings.answer == first.answer
    methods = (first.page.parent / "methods.tex").read_text()
    assert methods.startswith("We study SGP~") and "\\cite{bergstra2011}" in methods


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_screen_and_draws_every_figure(
    browser: Any, page: StudyPage, width: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800}, offline=True)
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(page.page.resolve().as_uri())
    drawn = "document.querySelectorAll('.plot .main-svg .trace').length > 0"
    assert tab.evaluate(drawn) and tab.locator(".plot").count() == 3
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".answer").is_visible() and complaints == []
    tab.close()


def test_a_finished_study_makes_no_run_again(
    folder: Path, page: StudyPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("sgp_runner.jobs.pool.Pool.run", refuse)
    content = {**CONTENT, "measures": ["loss", "time"]}
    again = sgp.study(content, "small")
    assert again.answer == page.answer and again.table.equals(page.table)


def test_a_target_that_no_search_comes_near_ends_the_study(folder: Path, page: StudyPage) -> None:
    study = study_of({**CONTENT, "measures": ["time_to_loss(0.01)"]}, "small")
    maker = RunMaker(study)
    with pytest.raises(sgp.ConfigError, match="no arm reaches a loss of 0.01 in its search"):
        conduct(maker, check_arms(maker))


def test_losses_at_the_end_alone_are_drawn_as_markers_with_bars(tmp_path: Path) -> None:
    losses = {"sgp": [1.0, 2.0], "ad_psgd": [1.5, 2.5]}
    (plot,) = loss_plots(conducted(tmp_path / "all", losses, ["loss"]), ["laptop"], "simulated")
    assert plot.spread == "band" and {series.style.shape for series in plot.series} == {None}
    done = conducted(tmp_path / "last", losses, ["loss"])
    for arm in done.arms:
        for run in arm.runs[0]:
            path = run.job.folder / "metrics.jsonl"
            path.write_text(path.read_text().splitlines(keepends=True)[-1])
    (plot,) = loss_plots(done, ["laptop"], "simulated")
    assert plot.spread == "y" and {series.style.shape for series in plot.series} == {"circle"}
    drawn = {series.name: (list(series.y), list(series.low or ())) for series in plot.series}
    assert drawn == {"sgp": ([1.5], [1.0]), "ad_psgd": ([2.0], [1.5])}
    assert plot.note.startswith("Marker: mean of the seeds at the end of the runs.")


def test_rates_of_a_list_are_drawn_as_those_of_a_ladder(tmp_path: Path) -> None:
    done = conducted(tmp_path, {"sgp": [1.0, 2.0], "ad_psgd": [1.5, 2.0]}, ["loss"])
    mixing = "algo.mixing=uniform"  # no number
    ladder = {Candidate(0.1, (mixing,)): 3.0, Candidate(0.2, (mixing,)): 2.0}
    listed = {
        Candidate(None, (f"optim.lr={candidate.value}", mixing)): ladder[candidate]
        for candidate in ladder
    }
    drawn = []
    for tried in (ladder, listed):
        tuned = Tuned(
            list(tried)[1], {Trial(candidate, 101): loss for candidate, loss in tried.items()}
        )
        searched = [replace(done.arms[0], tuned=tuned), done.arms[1]]
        (plot,) = tuning_plots(replace(done, arms=searched))
        drawn.append([(series.name, list(series.x), list(series.y)) for series in plot.series])
    assert drawn[0] == drawn[1]
    assert drawn[0] == [("sgp", [0.1, 0.2], [3.0, 2.0]), ("sgp, chosen", [0.2], [2.0])]
    assert [*tuning_plots(done)] == []  # without a search


def test_a_search_is_drawn_against_each_of_its_numbers(tmp_path: Path) -> None:
    done = conducted(tmp_path, {"osgp": [1.0, 2.0], "sgp": [1.5, 2.0]}, ["loss"])
    tried = {
        (Candidate(0.1, ("algo.osgp.tau=1",)), 101): 3.0,
        (Candidate(0.1, ("algo.osgp.tau=2",)), 101): 1.5,
        (Candidate(0.1, ("algo.osgp.tau=2",)), 102): 2.5,
        (Candidate(0.2, ("algo.osgp.tau=1",)), 101): 4.0,
        (Candidate(0.4, ("algo.osgp.tau=1",)), 101): inf,  # diverged
    }
    tuned = Tuned(
        Candidate(0.1, ("algo.osgp.tau=1",)), {Trial(*trial): y for trial, y in tried.items()}
    )
    rates, taus = tuning_plots(replace(done, arms=[replace(done.arms[0], tuned=tuned)]))
    assert (rates.name, rates.x.scale, taus.name, taus.x.title, taus.x.scale) == (
        *("tuning", "log"),
        *("tuning-algo_tau", "algo.tau", "linear"),
    )
    assert [(series.name, [*series.x], [*series.y]) for series in rates.series] == [
        ("osgp", [0.1, 0.2], [2.0, 4.0]),
        ("osgp, chosen", [0.1], [3.0]),
    ]
    assert [(series.name, [*series.x], [*series.y]) for series in taus.series] == [
        ("osgp", [1.0, 2.0], [3.0, 2.0]),
        ("osgp, chosen", [1.0], [3.0]),
    ]


def test_the_primary_comparison_is_tested_alone_and_the_others_share_a_level(
    tmp_path: Path,
) -> None:
    losses = {"sgp": [1.0, 1.1, 1.2], "osgp": [1.4, 1.61, 1.6], "ar_sgd": [1.5, 1.6, 1.71]}
    done = conducted(tmp_path, losses, ["loss", "time_to_loss(1.3)"])
    loss, time = compare(done)
    first = loss.comparisons["sgp"]
    # Differences -0.5, -0.5, -0.51: t is -151 with two degrees of freedom.
    assert first.primary and first.verdict == "better"
    assert first.p == pytest.approx(1 - 151 / (151**2 + 2) ** 0.5, rel=1e-6)
    assert loss.comparisons["osgp"].verdict == "equal"  # within what matters
    assert loss.ranks == {"sgp": 1, "osgp": 2, "ar_sgd": 2}
    assert time.reached["sgp"].at == pytest.approx((8.5, 8.888889, 9.375))
    assert time.reached["osgp"].count == 0 and time.values["osgp"] == (10.0, 10.0, 10.0)
    table = comparison_table(done, [loss, time], ["laptop"], "simulated")
    cells = [[cell.links[0].text for cell in row] for row in table.cells]
    assert cells == [
        ["1", "sgp", "1.1000", "8.92 s"],
        ["2", "osgp", "1.5367", "never"],
        ["2", "ar_sgd", "1.6033", "never"],
    ]
    lines = table_tex(done, [loss, time], table.head[2:]).splitlines()
    assert lines[9].startswith(r"1 & sgp & \textbf{1.1000}$^{+}$ {\scriptsize $\pm$ 0.25} & ")
    assert lines[10].endswith(r"& never {\scriptsize (0/3)} \\")
    assert headline(done, loss, "laptop", "simulated") == "sgp is best: 1.1000."
    assert headline(done, time, "laptop", "simulated") == (
        "Tests of all pairs separate no arm from the best in simulated time to a loss of 1.3."
    )
    said = answer(done, time, "laptop", "simulated")
    assert said == (
        "Undecided: sgp and ar_sgd are not told apart in simulated time to a loss of 1.3: 8.92 s "
        "(3 of 3 reach it) against never (0 of 3 reach it) (difference -2.17 s to +10.3 ms with "
        "95 % confidence, p = 0.1, 3 seeds); about 4 seeds would tell."
    )


@pytest.mark.parametrize(
    ("losses", "measure", "answered", "headed"),
    [
        (
            {"sgp": [1.0, 1.0, 1.0], "ar_sgd": [1.5, 1.5, 1.5]},
            "time_to_loss(1.8)",
            "sgp is better than ar_sgd by 1 s in simulated time to a loss of 1.8: 6 s against 7 s "
            "(the same for every seed).",
            "sgp is fastest: 6 s of simulated time to a loss of 1.8, 1.2 times faster than ar_sgd.",
        ),
        (
            {"sgp": [1.4, 1.61, 1.6], "ar_sgd": [1.5, 1.6, 1.71]},
            "loss",
            "sgp and ar_sgd differ by less than what matters in loss: 1.5367 against 1.6033 "
            "(difference -0.23 to +0.099 nats with 95 % confidence, p = 0.23, 3 seeds).",
            "Tests of all pairs separate no arm from the best in loss.",
        ),
        (
            {"sgp": [0.1787, 0.1801, 0.1793], "ar_sgd": [0.1787001, 0.1800998, 0.1793]},
            "loss",
            "Equal up to rounding: sgp and ar_sgd in loss: 0.1794 against 0.1794 (difference "
            "-3.5e-07 to +4.1e-07 nats with 95 % confidence, p = 0.74, 3 seeds).",
            "Tests of all pairs separate no arm from the best in loss.",
        ),
    ],
)
def test_answers_give_the_difference_and_its_certainty(
    losses: dict[str, list[float]], measure: str, answered: str, headed: str, tmp_path: Path
) -> None:
    done = conducted(tmp_path, losses, [measure])
    (compared,) = compare(done)
    assert answer(done, compared, "laptop", "simulated") == answered
    assert headline(done, compared, "laptop", "simulated") == headed


def test_a_headline_gives_the_value_of_each_of_the_best(tmp_path: Path) -> None:
    losses = {"sgp": [1.0, 1.1, 1.04], "osgp": [1.1, 1.0, 1.05], "ar_sgd": [9.0, 9.1, 9.04]}
    done = conducted(tmp_path, losses, ["loss"])
    (compared,) = compare(done)
    assert headline(done, compared, "laptop", "simulated") == (
        "sgp and osgp are best: 1.0467 and 1.0500."
    )


def test_a_headline_names_no_more_than_three_best_arms(tmp_path: Path) -> None:
    alike = {name: [1.1, 1.0, 1.05] for name in ("osgp", "d_psgd", "ar_sgd")}
    losses = {"sgp": [1.0, 1.1, 1.04], **alike, "ad_psgd": [9.0, 9.1, 9.04]}
    done = conducted(tmp_path, losses, ["loss"])
    (compared,) = compare(done)
    assert list(compared.ranks.values()) == [1, 1, 1, 1, 5]
    assert headline(done, compared, "laptop", "simulated") == (
        "sgp is best: 1.0467; 3 others share its rank."
    )


def test_a_diverged_run_counts_as_a_model_that_guesses(tmp_path: Path) -> None:
    done = conducted(tmp_path, {"sgp": [1.0] * 3, "ar_sgd": [1.5] * 3}, ["time"])
    for run in done.arms[0].runs[0]:
        assert isinstance(run.job, Finished)
        run.job.diverged = True
    ran = RunResult(run.job, classes=10)
    values = [ran.value(measure_of(name)) for name in ("time", "accuracy", "loss")]
    assert values == [inf, 0.1, log(10)]
    (compared,) = compare(done)
    assert compared.comparisons["sgp"].effect.mean == inf
    assert answer(done, compared, "laptop", "simulated") == (
        "Undecided: runs of sgp diverged (simulated time: never against 10 s). "
        "Diverged: 3 of 3 runs of sgp."
    )
    assert difference_note(compared.comparisons["sgp"]) == "diverged"
    lines = table_tex(done, [compared], ["s"]).splitlines()
    assert r"2 & sgp & never \\" in lines
    done.arms[0].runs[0][0].job.diverged = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (compared,) = compare(done)
    assert compared.ranks == {"sgp": 1, "ar_sgd": 1}  # two of three diverged: not told apart


class Failing(Finished):
    """A run that fails unless it has diverged."""

    def __init__(self, folder: Path, diverged: bool) -> None:
        super().__init__(folder, 1.0, 10.0)
        self.diverged, self.due = diverged, True


def test_failed_runs_are_counted_and_an_error_is_printed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [Failing(tmp_path / name, name == "b") for name in "abc"]
    maker = RunMaker(study_of(CONTENT, "pretended"))
    maker.run_all = lambda jobs: ((job, "no such file") for job in jobs)
    with caplog.at_level("INFO"), pytest.raises(RunsFailed) as caught:
        make(maker, ((job.name, job) for job in jobs))
    assert caplog.messages == ["[1/3] a: no such file", "[2/3] b: diverged"]
    assert str(caught.value) == (
        "2 runs failed; the same command retries them. The first: a: no such file"
    )


def test_pilot_runs_tell_the_number_of_seeds_and_arms_share_pretrained_models(folder: Path) -> None:
    def here(jobs: Iterable[PoolJob]) -> Iterator[tuple[PoolJob, str | None]]:
        return ((job, job.perform() or None) for job in jobs if job.due)

    content = {"model": "quadratic", "data.samples": 64, "nodes": 2, "epochs": 1, "eval_every": 1}
    content |= {"arms": CONTENT["arms"], "matters": 50, "measures": ["loss"], "pretrain.steps": 3}
    page = run_study(study_of(content, "planned"), here)
    assert set(page.table["seeds"]) == {3}
    html = page.page.read_text(encoding="utf-8")
    assert "number of seeds" in html and "Measured: a spread of " in html
    methods = (page.page.parent / "methods.tex").read_text(encoding="utf-8")
    assert "A difference shown to be below 50 by two one-sided tests" in methods
    assert "pretrained for 3 steps at a learning rate of 0.001." in methods
    pretrained = page.page.parent / "pretrained"
    assert len([*pretrained.iterdir()]) == 4 + 3  # one for each seed of pilots and results


def test_a_study_makes_at_most_one_experiment_per_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[CheckedPart] = []

    def counted(*arguments: Any) -> CheckedPart:
        made.append(check_tree(*arguments))
        return made[-1]

    def here(jobs: Iterable[PoolJob]) -> Iterator[tuple[PoolJob, str | None]]:
        return ((job, job.perform() or None) for job in jobs if job.due)

    monkeypatch.setattr("sgp_runner.config.experiment.check_tree", counted)
    content = {"model": "quadratic", "data.samples": 64, "nodes": 2, "epochs": 1, "eval_every": 1}
    content |= {"arms": CONTENT["arms"], "seeds": 2, "measures": ["loss"]}
    study = study_of(content | {"tune": {"optim.lr": [0.01, 0.02], "budget": 2}}, "counted")
    run_study(study, here)
    runs = len([*(study.folder / "runs").iterdir()])
    # For each arm its settings and its two rates; another seed of the same settings is not made.
    assert (len(made), runs) == (2 * (1 + 2), 2 * (2 + 2))


def test_a_value_that_refers_to_the_seed_follows_it(folder: Path) -> None:
    content = {"model": "quadratic", "nodes": 2, "epochs": 1, "log_every": "${seed}"}
    maker = RunMaker(study_of(content | {"arms": CONTENT["arms"]}, "referring"))
    jobs = [maker.job(maker.study.arms[0], (), seed) for seed in (3, 4)]
    runs = [job.experiment.run for job in jobs]
    assert [(run.seed, run.log_every) for run in runs] == [(3, 3), (4, 4)]


def test_a_study_of_a_time_searches_by_this_time(folder: Path) -> None:
    measures = ["time_to_loss(2.28)", "loss"]
    content = {**CONTENT, "eval_every": 0.01, "measures": measures, "clusters": ["laptop"]}
    page = sgp.study(content, "sooner", verbose=False)
    html = page.page.read_text(encoding="utf-8")
    title = "simulated time to a loss of 2.28"
    assert f"{title} in the searches against the learning rate" in html
    assert "Scores are mean values of the time to a loss of 2.28, with the number" in html
    assert "lr=0.05: never (1); lr=0.1: never (1); lr=0.2: " in html
    assert f"A search decides by the {title}, and" in (page.page.parent / "methods.tex").read_text()
    with opened(page.page.parent / "study.zip") as study:
        arm = study.findings.done.arms[0]
        trial = Trial(Candidate(0.2), FIRST_SEED)
        job = tuning_job(study.maker, arm.space, "SGP", trial)
        time, _ = RunResult(job).reached(study.study.measures[0])
        assert arm.tuned.values[trial] == score(study.study, job).value == time
        assert arm.tuned.losses[trial] == loss(job) != time


def test_the_score_of_a_run_that_misses_the_target_is_infinite(tmp_path: Path) -> None:
    tune = {"optim.lr": [1, 2], "budget": 4}
    study = study_of({**CONTENT, "tune": tune, "measures": ["time_to_loss(1.3)"]}, "pretended")
    assert score(study, Finished(tmp_path / "a", 1.0, 10.0)) == (8.5, 1.0)
    assert score(study, Finished(tmp_path / "b", 1.4, 10.0)) == (inf, 1.4)
    study = study_of({**CONTENT, "tune": tune, "measures": ["loss"]}, "pretended")
    assert score(study, Finished(tmp_path / "c", 1.4, 10.0)) == (1.4, 1.4)


def test_two_looks_share_the_level(tmp_path: Path) -> None:
    done = conducted(tmp_path, {"sgp": [1.0, 1.0, 1.0], "ar_sgd": [1.3, 1.5, 1.7]}, ["loss"])
    (once,), (twice,) = compare(done), compare(done, looks=2)
    assert (
        once.comparisons["sgp"].p == twice.comparisons["sgp"].p == pytest.approx(0.0494, abs=1e-4)
    )
    assert once.comparisons["sgp"].verdict == "better" and once.ranks == {"sgp": 1, "ar_sgd": 2}
    assert twice.comparisons["sgp"].verdict == "undecided"
    assert twice.ranks == {"sgp": 1, "ar_sgd": 1}
    contents = [{"seeds": 3}, {"seeds": 3, "epochs": 2}, {"seeds": 6}]
    assert StudyRecord([{"content": content} for content in contents]).looks == 2


def test_p_values_of_all_but_the_primary_comparison_are_adjusted() -> None:
    found = adjust({(0, "a"): 0.03, (0, "b"): 0.03, (1, "a"): 0.03, (1, "b"): None}, (0, "a"))
    assert found == {(0, "a"): 0.03, (0, "b"): 0.06, (1, "a"): 0.06, (1, "b"): None}

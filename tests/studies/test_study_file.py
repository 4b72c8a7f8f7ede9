"""The file of a study: what it means, and what is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sgp_runner.assembly import build
from sgp_runner.cli.main import main
from sgp_runner.config.run import Run
from sgp_runner.core.problem import Problem
from sgp_runner.data.shapes import Shapes
from sgp_runner.jobs.machine import Machine
from sgp_runner.studies import arms, cost
from sgp_runner.studies.arm_settings import Arm
from sgp_runner.studies.arms import RunMaker, check_arms, unnamed_differences
from sgp_runner.studies.candidates import Candidate, Trial, Tuned
from sgp_runner.studies.conduct import check_targets, plan_of
from sgp_runner.studies.cost import describe_cost
from sgp_runner.studies.measures import measure_of
from sgp_runner.studies.new_file import content_of, text_of
from sgp_runner.studies.study_file import read_study, study_of
from sgp_runner.studies.study_record import StudyRecord, as_set_down, set_down
from sgp_runner.utils.errors import ConfigError

TASKS = "images, grammar, fashion, books, translation"
SMALL: dict[str, Any] = {
    "model": "mlp",
    "nodes": 2,
    "epochs": 1,
    "arms": {"SGP": "algo=sgp", "AR-SGD": "algo=ar_sgd"},
}


def test_a_file_has_settings_of_runs_and_keys_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "task: images\noptim:\n  momentum: 0.5\nmodel.hidden: [8, 8]\n"
        "arms:\n  mine: algo=osgp algo.tau=2\n  SGP: algo=sgp\n  AR-SGD: algo=ar_sgd\n"
        "tune:\n  optim.lr: ladder\n  algo.osgp.tau: [1, 2]\n  budget: 8\n"
        "seeds: 3\nmatters: 0.02 nats\nmeasures: [loss, time_to_accuracy(90%)]\n"
        "clusters: [sgp_ethernet, sgp_ethernet bandwidth=1Gbit/s]\n",
        encoding="utf-8",
    )
    study = read_study(path)
    assert (study.name, study.primary, study.baseline) == ("mine", "mine", "AR-SGD")
    assert study.question == "Is mine better than AR-SGD?"
    assert study.arms[0] == Arm("mine", ("algo=osgp", "algo.tau=2"))
    assert study.common[-2:] == ("optim.momentum=0.5", "model.hidden=[8,8]")
    assert "data=shapes" in study.common and study.seeds == (1, 2, 3)
    assert study.tune.first == (0.05, 0.2) and study.tune.lists == {"algo.osgp.tau": ("1", "2")}
    assert study.matters == 0.02 and list(map(str, study.measures)) == [
        "loss",
        "time_to_accuracy(0.9)",
    ]
    assert study.clusters[1].overrides == ("cluster=sgp_ethernet", "cluster.bandwidth=1Gbit/s")
    assert study.folder == Path("results/studies/mine")


@pytest.mark.parametrize(
    ("measure", "text", "number"),
    [
        ("loss", "0.02 nats", 0.02),
        ("loss", "2e-2", 0.02),
        ("accuracy", "0.5 points", 0.005),
        ("time_to_loss(1)", "3 min", 180.0),
        ("bytes", "5MB", 5e6),
    ],
)
def test_a_difference_that_matters_has_the_unit_of_the_first_measure(
    measure: str, text: str, number: float
) -> None:
    arms = {"a": "algo=sgp", "b": "algo=ar_sgd"}
    study = study_of({"arms": arms, "measures": [measure], "matters": text}, "units")
    assert study.matters == number


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"baseline": "AR_SGD"}, "baseline: 'AR_SGD' is not an arm: choose from SGP, AR-SGD."),
        ({"primary": "ours"}, "primary: 'ours' is not an arm: choose from SGP, AR-SGD."),
        ({"primary": "AR-SGD"}, "primary: 'AR-SGD' is also the baseline"),
        ({"arms": {}}, "arms: a study needs at least one arm: write sgp: algo=sgp."),
        (
            {"arms": {"SGP": "algo=sgp"}, "baseline": "SGP", "matters": "0.1 nats"},
            "matters: a study of one arm compares nothing; leave it out.",
        ),
        ({"tune": {"rule": "tpi", "budget": 8}}, "tune.rule: 'tpi' is not one of halving, tpe."),
        (
            {"tune": {"rule": "tpe", "optim.lr": "ladder", "budget": 8}},
            "tune.optim.lr: 'ladder' is not a search: write a list of values, or tag(log,interval(",
        ),
        ({"arms": {"a": "sgp", "b": "algo=sgp"}}, "arms.a: 'sgp' is not a setting"),
        (
            {"arms": {"a\x1b[2J\n": "algo=sgp", "b": "algo=ar_sgd"}},
            r"arms: the name 'a\x1b[2J\n' has characters that cannot be printed.",
        ),
        ({"seed": 3}, "seed: a study sets it for each run; write seeds."),
        ({"seeds": 1}, "seeds: a paired test needs two different seeds"),
        (
            {"seeds": 101},
            "seeds: 101 is reserved: searches use the seeds 101 to 108, and pilots",
        ),
        ({"seeds": [1, 204]}, "seeds: 204 is reserved: searches use the seeds 101 to 108"),
        ({"seeds": "many"}, "seeds: 'many' is not a number of seeds"),
        ({"task": "imagse"}, f"task: 'imagse' is not one of {TASKS}. Did you mean 'images'?"),
        ({"task": ["images"]}, f"task: '['images']' is not one of {TASKS}."),
        ({"measures": []}, "measures: the list is empty: leave the key out, or give a value."),
        ({"tune": "optim.lr"}, "tune: write settings below it, such as optim.lr: ladder."),
        (
            {"tune": {"optim.lr": "grid", "budget": 8}},
            "tune.optim.lr: 'grid' is not a search: write",
        ),
        ({"tune": {"optim.lr": "ladder(a,b)", "budget": 8}}, "is not a ladder: write ladder"),
        ({"measures": ["time_to_loss(1e)"]}, "measures: 'time_to_loss(1e)' is not a measure"),
        ({"seeds": 10**19}, "seeds: 101 is reserved: searches use the seeds 101 to 108"),
        ({"clusters": ["sgp_ethernet name='x"]}, "clusters: 'sgp_ethernet name='x' cannot be read"),
        (
            {"matters": "little"},
            "matters: 'little' is not a positive difference of loss: write 0.02",
        ),
        (
            {"matters": "0.02 percent"},
            "matters: '0.02 percent' is not a positive difference of loss",
        ),
        (
            {"matters": "0.02 nats", "measures": ["time_to_loss(1)"]},
            "matters: '0.02 nats' is not a positive difference of time_to_loss(1): write 10s",
        ),
        ({"measures": ["speed"]}, "measures: 'speed' is not a measure: write loss, accuracy"),
        (
            {"measures": ["time_to_accuracy(-2)"]},
            "measures: 'time_to_accuracy(-2)' is not a measure",
        ),
        (
            {"measures": ["time_to_accuracy(95)"]},
            "measures: 'time_to_accuracy(95)' is above 1: write time_to_accuracy(95%).",
        ),
        ({"tune": {"optim.lr": "ladder"}}, "tune.budget: give the runs of an arm's search"),
        ({"tune": {"optim.lr": "ladder(0.1,0.3)", "budget": 8}}, "is not a ladder: write ladder"),
        ({"tune": {"algo.tau": "ladder", "budget": 8}}, "tune.algo.tau: only optim.lr has"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of({**SMALL, **change}, "small")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"tune": {"optim.lr": "ladder", "budget": 3}},
            "tune.budget: 3 runs are fewer than the 4 that the search of SGP needs: "
            "write budget: 4 or more.",
        ),
        (
            {"tune": {"algo.osgp.tau": [1, 2], "budget": 3}},
            "tune.algo.osgp.tau: no arm has this setting; leave it out.",
        ),
        (
            {
                "arms": {"SGP": "algo=sgp optim.lr=0.1", "AR-SGD": "algo=ar_sgd"},
                "tune": {"optim.lr": "ladder", "budget": 8},
            },
            "arms.SGP: it sets optim.lr, which is searched for all arms: leave one of them out.",
        ),
        (
            {"arms": {"SGP": "algo=sgp network=gloo", "AR-SGD": "algo=ar_sgd"}},
            "network: simulated and measured times cannot be compared",
        ),
        (
            {"network": "gloo", "clusters": ["laptop"]},
            "clusters: the runs are real processes here; leave clusters out.",
        ),
        ({"arms": {"SGP": "algo=sgpp", "AR-SGD": "algo=ar_sgd"}}, "(arm SGP)"),
        (
            {"arms": {"SGP": "algo=sgp", "again": "algo=sgp optim.momentum=0.9"}},
            "arms.again: its settings are those of SGP: change or remove it.",
        ),
        (
            {"nodes": "2,4"},
            "nodes: several values make a sweep; pass one value for a single run. (arm SGP)",
        ),
    ],
)
def test_arms_that_cannot_run_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_arms(RunMaker(study_of({**SMALL, **change}, "small")))
    assert sentence in str(caught.value)


def test_too_few_seeds_are_refused_with_the_number_that_suffices() -> None:
    study = study_of({**SMALL, "seeds": 5, "matters": 0.02}, "small")
    with pytest.raises(ConfigError) as caught:
        plan_of(study, 0.02)
    assert str(caught.value) == (
        "seeds: 5 seeds detect a difference of 0.02 with a probability of 22 % at a spread of "
        "0.029, the upper limit at 70 % of the pilots' 0.02; 80 % need 19: leave seeds out, or "
        "write more."
    )
    assert plan_of(study_of({**SMALL, "matters": 0.02}, "small"), 0.02).seeds == 19
    with pytest.raises(ConfigError, match="1000 seeds do not detect a difference of 0.02"):
        plan_of(study, 2.0)


def test_a_target_that_no_search_comes_near_is_refused() -> None:
    study = study_of({**SMALL, "measures": ["time_to_loss(0.3)"]}, "small")

    def after(loss: float) -> dict[str, Tuned]:
        chosen = Candidate(0.1)
        return {"SGP": Tuned(chosen, {Trial(chosen, 101): loss})}

    check_targets(study, after(0.33))
    with pytest.raises(ConfigError, match=r"no arm reaches a loss of 0.3 in its search; the best"):
        check_targets(study, after(0.34))


def test_searches_decide_by_the_target_of_the_first_measure_except_in_earlier_records(
    tmp_path: Path,
) -> None:
    content = {**SMALL, "measures": ["time_to_loss(0.3)"], "results": str(tmp_path)}
    content["tune"] = {"optim.lr": "ladder", "budget": 8}
    study = study_of(content, "small")
    assert study.tune.by == measure_of("time_to_loss(0.3)")
    assert study_of({**content, "measures": ["loss", "time"]}, "small").tune.by is None
    assert study_of({**content, "measures": ["time"]}, "small").tune.by is None
    maker = RunMaker(study)
    overrides = maker.overrides(study.arms[0], role="tuning")
    assert "eval_every=0.05" in overrides  # 20 evaluations of one epoch
    record = set_down(study)
    assert record.searched_by == "time_to_loss(0.3)" and as_set_down(study, record) == study
    (version,) = record.versions
    earlier = StudyRecord([{key: version[key] for key in version if key != "searched_by"}])
    assert as_set_down(study, earlier).tune == replace(study.tune, by=None)
    maker.study = as_set_down(study, earlier)
    assert "eval_every=1" in maker.overrides(study.arms[0], role="tuning")


def test_a_changed_file_is_another_study_unless_it_says_why(tmp_path: Path) -> None:
    content = {**SMALL, "results": str(tmp_path)}
    assert set_down(study_of(content, "small")).amendments == []
    changed = {**content, "epochs": 2}
    with pytest.raises(ConfigError, match=r"^study: epochs changed after the study in"):
        set_down(study_of(changed, "small"))
    why = "One epoch was too short."
    record = set_down(study_of({**changed, "amended": why}, "small"))
    assert [reason for _, reason in record.amendments] == [why]
    assert set_down(study_of({**changed, "amended": why}, "small")) == record
    with pytest.raises(ConfigError, match="nodes changed"):  # an old reason excuses nothing new
        set_down(study_of({**changed, "amended": why, "nodes": 4}, "small"))


def test_an_earlier_record_counts_diverged_runs_in_means_until_it_is_amended(
    tmp_path: Path,
) -> None:
    study = study_of({**SMALL, "results": str(tmp_path)}, "small")
    record = set_down(study)
    assert record.by_ranks
    earlier = {key: value for key, value in record.versions[0].items() if key != "diverged"}
    (study.folder / "study.json").write_text(json.dumps({"versions": [earlier]}))
    assert not set_down(study).by_ranks
    amended = replace(study, amended="Diverged runs count by rank.")
    record = set_down(amended)
    assert record.by_ranks and len(record.versions) == 2 and record == set_down(amended)


def test_searches_have_their_own_seeds_and_samples() -> None:
    content = {**SMALL, "tune": {"optim.lr": "ladder", "budget": 8}, "results": "one, two"}
    study = study_of(content, "small")
    maker = RunMaker(study)
    search = maker.job(study.arms[0], ("optim.lr=0.1",), 101, role="tuning")
    decides = maker.job(study.arms[0], ("optim.lr=0.1",), 1)
    assert {"seed=101", "data.holdout=0.2", "eval_every=1"} <= set(search.overrides)
    assert {"seed=1", "eval_every=0.05"} <= set(decides.overrides)
    assert not any(word.startswith("data.holdout") for word in decides.overrides)
    assert decides.name.startswith("sgp-mlp-digits-n2-sim-s1-") and search.name != decides.name
    assert maker.experiment(decides.overrides).run.results == "one, two/studies/small"


def test_words_of_a_command_line_become_a_file() -> None:
    arguments = (
        "algo=./mine.py,sgp,ar_sgd model=mlp cluster=laptop cluster.bandwidth=10Gbit/s,1Gbit/s "
        "budget=6 seeds=3 algo.sgp.period=1,2 measures=loss,time_to_loss(0.5)"
    )
    content = content_of(arguments.split())
    assert content["arms"] == {"mine": "algo=./mine.py", "sgp": "algo=sgp", "ar_sgd": "algo=ar_sgd"}
    assert (content["primary"], content["baseline"], content["seeds"]) == ("mine", "ar_sgd", 3)
    assert content["tune"] == {"optim.lr": "ladder", "algo.sgp.period": [1, 2], "budget": 6}
    assert content["clusters"] == ["laptop bandwidth=10Gbit/s", "laptop bandwidth=1Gbit/s"]
    assert content["measures"] == ["loss", "time_to_loss(0.5)"] and content["model"] == "mlp"
    machines = content_of(["algo=sgp,ar_sgd", "cluster=laptop,wan_1g"])
    assert (machines["clusters"], machines["measures"]) == (["laptop", "wan_1g"], ["loss", "time"])
    assert text_of(content).startswith("question: Is mine better than ar_sgd?\nmodel: mlp\narms:")


def test_the_command_writes_a_file_and_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = "algo=sgp,ar_sgd model=mlp nodes=2 epochs=1 seeds=3 budget=4"
    assert main(["study", "new", "mine.yaml", *arguments.split()]) == 0
    assert main(["study", "new", "mine.yaml", *arguments.split()]) == 2
    assert main(["study", "new", "x" * 300, *arguments.split()]) == 2
    capsys.readouterr()
    assert main(["study", "mine.yaml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "\n  sgp: at most 4 runs of its search, 3 runs that decide; " in out
    assert "\n14 runs at most, about " in out and "3 seeds find a difference between" in out
    assert max(map(len, out.splitlines())) <= 80
    assert not (tmp_path / "results").exists()
    assert main(["study", "none.yaml"]) == 2 and main(["study"]) == 2
    assert "there is no file 'none.yaml'; sgp-run study new" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("new", "study: write sgp-run study new FILE algo=a,b."),
        ("new mine.yaml seeds=2", "algo: give at least one algorithm, such as algo=sgp,ar_sgd."),
        (
            "new mine.yaml algo=sgp tune.rule=tpe tune.optim.lr=tag(log,interval(0,1))",
            "tune.optim.lr: 'tag(log,interval(0,1))' cannot be searched: write "
            "tag(log,interval(0.01,1)).",
        ),
        (
            "new mine.yaml algo=sgp,ar_sgd seeds",
            "seeds: this is not a setting; write key=value, such as seeds=5.",
        ),
        (
            "new list.yaml/mine.yaml algo=sgp,ar_sgd",
            "study: cannot write list.yaml/mine.yaml: Not a directory.",
        ),
        ("verify", "study: write sgp-run study verify study.zip."),
        ("verify a.zip --runs=x", "--runs: 'x' is not a whole number, such as 3."),
        ("board one", "board: write sgp-run study board FOLDER OUT."),
        ("merge one", "merge: give at least two archives, then the new study."),
        (
            "list.yaml --bogus",
            "--bogus: this form of sgp-run study has no such option; sgp-run study --help lists "
            "all.",
        ),
        ("list.yaml", "study: list has no keys such as question: and arms:."),
        (
            "open.yaml",
            "study: open.yaml cannot be read: line 2, column 1: while parsing a flow sequence, did "
            "not find expected ',' or ']'.",
        ),
        (".", "study: . cannot be read: Is a directory."),
        ("claims/02 --hours=2", "--hours: this option plans a study: add --dry-run."),
        (
            "claims/02 --dry-run --hours=0",
            "--hours: '0' is not a number of hours, such as 2 or 0.5.",
        ),
        (
            "claims/02 --dry-run --hours=x",
            "--hours: 'x' is not a number of hours, such as 2 or 0.5.",
        ),
    ],
)
def test_a_command_that_cannot_work_is_one_sentence_and_nothing_is_written(
    arguments: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("[1, 2]")
    Path("open.yaml").write_text("[1, 2")
    assert main(["study", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"sgp-run: {sentence}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"list.yaml", "open.yaml"}


def test_arms_with_equal_data_and_models_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build_problem = build.build_problem

    def record(run: Run) -> Problem:
        built.append((run.nodes, run.batch_size))
        return build_problem(run)

    monkeypatch.setattr(build, "build_problem", record)
    three = {"a": "algo=ar_sgd", "b": "algo=sgp", "c": "algo=sgp batch_size=16"}
    study = study_of({**SMALL, "batch_size": 32, "arms": three, "seeds": 3}, "mine")
    assert "\n9 runs at most, about " in "\n".join(describe_cost(study))
    assert built == [(2, 32), (2, 16)]


def test_a_dry_run_names_the_seeds_and_the_budget_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten hours on one core for 2 x (12 + 8) runs of 15 minutes; five for half of all."""
    monkeypatch.setattr(cost, "costs_of", lambda maker, arms: [(900.0, 1e6)] * len(arms))
    monkeypatch.setattr(arms, "Machine", partial(Machine, cores=1))
    tune = {"optim.lr": [0.1, 0.2], "budget": 12}
    study = study_of({**SMALL, "tune": tune, "seeds": 8}, "mine")
    whole = describe_cost(study)
    assert whole[2:4] == [
        "  SGP: at most 12 runs of its search, 8 runs that decide; 5 h 00 min",
        "  AR-SGD: at most 12 runs of its search, 8 runs that decide; 5 h 00 min",
    ]
    half = describe_cost(study, 5)
    assert half[2] == "In 5 h: seeds: [1, 2, 3, 4], tune.budget: 6"
    assert half[7].startswith("20 runs at most, about 5 h 00 min on 1 core, 20 MB of disk in ")
    assert half[8].startswith("4 seeds find a difference between SGP and AR-SGD of 2.1 times ")
    with pytest.raises(ConfigError, match="two seeds and searches of 3 runs take 2.5[.] Leave out"):
        describe_cost(study, 1)
    pilots = study_of({**SMALL, "matters": 0.02}, "mine")
    told = describe_cost(pilots)
    assert told[2].startswith("  SGP: 4 pilot runs, runs that decide as the pilots require; ")
    assert told[-1] == (
        "pilot runs with seeds 201, 202, 203, 204 measure this spread, and the study stops if its "
        "seeds are too few for a difference of 0.02"
    )
    with pytest.raises(ConfigError, match="pilot runs determine the number of seeds; set seeds"):
        describe_cost(pilots, 1)


def test_measures_have_names_and_units() -> None:
    assert measure_of("time_to_loss(3.2)").title == "time to a loss of 3.2"
    assert measure_of("bytes_to_accuracy(0.9)").title == "bytes to 90 % accuracy"
    assert (measure_of("time").text(90.0), measure_of("bytes").text(1e6)) == ("1 min 30 s", "1 MB")
    assert measure_of("accuracy").difference(-0.0123) == "1.2 points"
    assert not measure_of("accuracy").less_is_better and measure_of("loss").less_is_better


def test_a_study_of_the_package_is_found_by_the_beginning_of_its_name() -> None:
    study = read_study(Path("claims/02"))
    assert (study.name, study.primary, study.baseline) == ("02-sgp", "SGP", "AR-SGD")
    with pytest.raises(ConfigError, match="there is no file 'claims/0'"):
        read_study(Path("claims/0"))


def test_settings_in_which_the_defaults_of_arms_differ_are_listed() -> None:
    arms = {"D2": "algo=d_squared", "GT": "algo=gradient_tracking", "D-PSGD": "algo=d_psgd"}
    maker = RunMaker(study_of({**SMALL, "arms": arms}, "small"))
    assert unnamed_differences(maker) == (
        "Arms also differ in optim.momentum: 0.0 (D2, GT), 0.9 (D-PSGD)."
    )
    arms["D-PSGD"] += " optim.momentum=0.5"
    maker = RunMaker(study_of({**SMALL, "arms": arms}, "small"))
    assert unnamed_differences(maker) == ""


def test_a_dry_run_generates_a_part_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 of 64,000 images are timed, and the time is multiplied by 15.6."""
    arms = {"SGP": "algo=sgp", "AR-SGD": "algo=ar_sgd", "small": "algo=sgp data.train_size=2048"}
    maker = RunMaker(study_of({"task": "images", "arms": arms}, "small"))
    runs = [maker.run(arm) for arm in maker.study.arms]
    part, share = cost.part_of(runs[0])
    assert isinstance(part.data, Shapes)
    assert (part.data.train_size, part.data.valid_size, share) == (4096, 640, 0.064)
    assert cost.part_of(runs[2]) == (runs[2], 1.0)
    built = []
    build_problem = build.build_problem

    def record(run: Run) -> Problem:
        built.append(run.data.train_size)
        return build_problem(run)

    monkeypatch.setattr(build, "build_problem", record)
    monkeypatch.setattr(cost, "seconds_of", lambda problem: (0.002, 0.64))
    seconds, _ = next(cost.costs_of(maker, maker.study.arms[:1]))
    # 1,250 steps of 8 nodes, 20 evaluations of ten times 640 samples, and the start.
    assert built == [4096] and seconds == pytest.approx(1250 * 8 * 0.002 + 20 * 10 + 1)

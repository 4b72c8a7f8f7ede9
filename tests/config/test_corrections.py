"""Results versions: which runs a correction affects, and that results from before it are not taken
for later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sgp_runner.cli.main import main
from sgp_runner.config.corrections import CORRECTIONS, KEY, results_version, since
from sgp_runner.config.experiment import load_experiment
from sgp_runner.config.overrides import experiment_of
from sgp_runner.jobs.job_pool import RunJob, outdated, run_all
from sgp_runner.recording.checkpoint import valid
from sgp_runner.replay.retiming import finished
from sgp_runner.report.read.runs import read_runs
from sgp_runner.utils.errors import ConfigError

TINY = (
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=1",
    "logger=jsonl",
)
RESNET50 = ("timed_as.model=resnet50", "timed_as.num_parameters=25557032")
BETWEEN_REGIONS = (
    "model=timing_only",
    "timed_as.model=llama_1b",
    "nodes=8",
    "cluster=regions_2x4",
    "cluster.collectives.algorithm=hierarchical",
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


@pytest.mark.parametrize(
    ("words", "version"),
    [
        (["algo=sgp", "model=mlp"], 0),
        (["algo=gap_aware", "model=mlp"], 0),
        (["algo=gap_aware", "optim.momentum=0", "model=mlp"], 3),
        (["algo=gap_aware", "optim.momentum=0", "algo.penalty=none", "model=mlp"], 0),
        (["algo=gap_aware", "algo.momentum=dana", "optim.nesterov=false", "model=mlp"], 0),
        (["algo=slowmo", "model=mlp"], 2),
        (["algo=hybrid", "model=mlp"], 2),
        (["algo=hybrid", "algo.first=slowmo", "model=mlp"], 2),
        (["faults=slow_node", "model=mlp"], 0),
        (["faults=slow_link", "model=mlp"], 5),
        (["faults.events=[{what: slow_link, ranks: [0], factor: 2}]", "model=mlp"], 5),
        (["algo=ad_psgd", "model=mlp"], 19),
        (["algo=ad_psgd", "model=timing_only"], 19),
        (["algo=swarm_sgd", "model=mlp"], 19),
        (["algo=a2cid2", "model=resnet8"], 19),
        (["algo=slowmo", "model=resnet8"], 16),
        (["model=resnet50"], 18),
        (["model=resnet50", "batch_size=16"], 7),
        (["model=transformer"], 0),
        (["algo=streaming_diloco", "model=mlp"], 0),
        (["algo=streaming_diloco", "model=mlp", "network=gloo"], 9),
        (["algo=hybrid", "algo.then=streaming_diloco", "model=mlp", "network=gloo"], 9),
        (["algo=hybrid", "algo.first=streaming_diloco", "model=mlp", "network=gloo"], 2),
        (["algo=async_diloco", "model=mlp"], 0),
        (["algo=async_diloco", "algo.grace=50ms", "model=mlp"], 10),
        (["algo=async_diloco", "algo.grace=50ms", "nodes=2", "model=mlp"], 0),
        (["algo=async_diloco", "network=gloo", "model=mlp"], 10),
        (["algo=demo", "model=mlp"], 13),
        (["algo=demo", "optim.weight_decay=0.1", "model=mlp"], 13),
        (["algo=osgp", "model=timing_only"], 12),
        (["algo=onebit_adam", "model=mlp", "cluster.codecs.decode_seconds={sign: 1ns}"], 17),
        (["algo=onebit_adam", "model=timing_only"], 21),
        (["algo=powersgd", "model=timing_only"], 21),
        (["algo=streaming_diloco", "model=timing_only"], 21),
        (["algo=powersgd", "model=timing_only", "timed_as.model=llama_1b"], 0),
        (["algo=powersgd", "model=mlp", "timed_as.model=llama_1b"], 21),
        (["algo=powersgd", "model=mlp", *RESNET50], 21),
        (["algo=ar_sgd", "algo.codec=int8", "model=mlp", *RESNET50], 21),
        (["algo=streaming_diloco", "model=mlp", *RESNET50], 0),
        (["algo=powersgd", "model=mlp"], 0),
        (["algo=zero_one_adam", "model=mlp"], 17),
        (["algo=ef_sign", "model=mlp", "cluster.codecs.encode_seconds={sign: 1ns}"], 0),
        (["algo=osgp", "timed_as.num_parameters=1000000", "model=mlp"], 0),
        (["algo=d_psgd", "model=timing_only"], 0),
        ([*BETWEEN_REGIONS, "algo=ar_sgd", "algo.codec=int8"], 20),
        ([*BETWEEN_REGIONS, "algo=ar_sgd"], 0),
        ([*BETWEEN_REGIONS[:-1], "algo=ar_sgd", "algo.codec=int8"], 0),
        (["cluster=aws_p3_10g_gloo", "algo=ar_sgd", "model=mlp"], 22),
    ],
)
def test_a_run_has_the_version_of_the_latest_correction_that_affects_it(
    words: list[str], version: int
) -> None:
    experiment = experiment_of([*words, "logger=jsonl"])
    assert experiment.config.get(KEY, 0) == results_version(experiment.config) == version
    assert (KEY in experiment.config) == bool(version) and since(experiment.config) == []
    assert experiment.settings.get(KEY, 0) == version


def test_twice_looking_ahead_is_a_correction_of_what_is_refused_now() -> None:
    part = {"name": "gap_aware", "momentum": "dana", "penalty": "gap"}
    config = {"algo": part, "optim": {"momentum": 0.9, "nesterov": True}, "faults": {}, "model": {}}
    assert [CORRECTIONS.index(correction) + 1 for correction in since(config)] == [4]
    with pytest.raises(
        ConfigError, match=r"^algo.momentum: dana with Nesterov momentum would look ahead twice"
    ):
        experiment_of(["algo=gap_aware", "algo.momentum=dana"])


def test_a_run_that_no_correction_affects_keeps_its_name() -> None:
    experiment = experiment_of([*TINY, "algo=sgp"])
    assert (
        experiment.name.startswith("sgp-quadratic-quadratic-n2-sim-s1-")
        and KEY not in experiment.settings
    )


def made_before(*words: str) -> Path:
    """The folder of a finished run, as an earlier version would have left it."""
    assert main([*TINY, *words]) == 0
    (folder,) = Path("results/runs").iterdir()
    change(folder / "config.yaml", {KEY: None})
    return folder


def change(path: Path, changes: dict[str, Any]) -> None:
    config = yaml.safe_load(path.read_text()) | changes
    kept = {key: value for key, value in config.items() if not (key in changes and value is None)}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))


def test_an_old_run_is_another_run_and_keeps_its_own_name() -> None:
    new = experiment_of([*TINY, "algo=slowmo"])
    folder = made_before("algo=slowmo")
    old = load_experiment(folder / "config.yaml", None)
    assert old.run == new.run and (old.digest, old.name) != (new.digest, new.name)
    assert list(valid(folder / "checkpoints", new.digest)) == []
    summary = json.loads((folder / "summary.json").read_text())
    assert read_runs([folder]).table.iloc[0]["settings"][KEY] == 0 and summary["name"] == new.name


def test_results_from_before_a_correction_are_not_taken_for_the_same_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made_before("algo=slowmo", "name=mine")
    capsys.readouterr()
    assert main([*TINY, "algo=slowmo", "name=mine"]) == 2
    before = (
        "holds results from before a correction (SlowMo takes no slow step after an incomplete "
        "last period; exact averages of"
    )
    assert before in capsys.readouterr().err
    assert main([*TINY, "algo=slowmo", "name=mine", "resume=never"]) == 0
    assert main([*TINY, "algo=slowmo", "name=mine"]) == 0
    assert "This run has finished already" in capsys.readouterr().out


def test_old_and_new_runs_are_two_settings_of_a_report() -> None:
    old = made_before("algo=slowmo", "name=old")
    assert main([*TINY, "algo=slowmo", "name=new", "seed=2"]) == 0
    assert main([*TINY, "algo=slowmo", "name=newer", "seed=3"]) == 0
    settings = read_runs([old.parent]).table.set_index("run")["settings"]
    assert (settings["old"][KEY], settings["new"][KEY], settings["newer"][KEY]) == (0, 2, 2)


def test_an_old_run_is_not_re_timed() -> None:
    folder = made_before("algo=slowmo")
    with pytest.raises(
        ConfigError,
        match=r"its results are from before a correction \(SlowMo takes no .*\): run it again\.$",
    ):
        finished(folder)


def test_a_version_cannot_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, f"{KEY}=2"]) == 2
    assert f"{KEY}: there is no such setting" in capsys.readouterr().err


def test_what_another_version_has_left_is_not_taken_for_this_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (job,) = jobs = [RunJob("slowmo", (*TINY[:-1], "algo=slowmo"), Path("results"))]
    assert dict(run_all(jobs, processes=1)) == {job: None} and not job.due
    change(job.folder / "config.yaml", {"format": None})
    assert job.finished and job.due and job.since == []
    assert main([*TINY, "algo=slowmo", "name=slowmo"]) == 2
    assert (
        "holds a run of another sgp-run version; choose another name, or replace that run"
        in capsys.readouterr().err
    )
    assert dict(run_all(jobs, processes=1)) == {job: None} and not job.due


def test_jobs_with_old_results_are_run_again() -> None:
    jobs = [
        RunJob(name, (*TINY[:-1], f"algo={name}"), Path("results")) for name in ("slowmo", "sgp")
    ]
    assert dict.fromkeys(jobs) == dict(run_all(jobs, processes=1)) and outdated(jobs) == ""
    change(jobs[0].folder / "config.yaml", {KEY: 1})
    assert all(job.finished for job in jobs)
    assert outdated(jobs) == f"From before a correction: 1 of 2 runs ({CORRECTIONS[1].what})."
    assert [job.name for job, error in run_all(jobs, processes=1) if error is None] == ["slowmo"]
    assert outdated(jobs) == "" and list(run_all(jobs, processes=1)) == []

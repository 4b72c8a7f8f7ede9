"""Train once, time many: a run that is re-timed has the lines of the run that was trained there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.experiments import make_experiment
from helpers.refusals import refusal

from sgp_runner.assembly.execution import run_experiment
from sgp_runner.cli.report import main
from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.recorder import read_summary
from sgp_runner.replay.retiming import finished, retime_all
from sgp_runner.report.read.runs import RETIMED, TRAINED, read_runs
from sgp_runner.utils.errors import ConfigError, Diverged

TINY = ("model=mlp", "nodes=5", "batch_size=32", "epochs=2", "log_every=3")  # 8 steps per epoch
FAR = "gapaware_gamma"


def trained(results: Path, *overrides: str) -> Experiment:
    experiment = make_experiment(results, *TINY, *overrides)
    run_experiment(experiment)
    return experiment


def lines(folder: Path) -> list[str]:
    """All but the summary, which says how long it really took."""
    *records, summary = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(summary)["kind"] == "summary"
    return records


SETTINGS = {
    "sgp": ("algo=sgp",),
    "two peers, faults": (
        "algo=sgp",
        "algo.topology.peers={0: 2, 1: 1}",
        "faults=delay",
        "faults.slow_nodes={1: 3.0}",
    ),
    "ar_sgd": ("algo=ar_sgd",),
    "d_psgd": ("algo=d_psgd", "optim=adam"),
    "osgp": ("algo=osgp", "algo.tau=0"),
    "slowmo": ("algo=slowmo", "algo.tau=4", "algo.buffers=average"),
    "local_sgd": ("algo=local_sgd", "algo.tau=3"),
    "pipe_sgd": ("algo=pipe_sgd", "algo.clip=1.0"),
    "compressed": ("algo=pipe_sgd", "algo.compression=quantize8"),
    "server": ("algo=ps_sgd",),
    "coded": ("algo=ar_sgd", "algo.codec=top_k_2bit"),
    "coded differences": ("algo=choco_sgd", "algo.codec=low_rank"),
    "factors": ("algo=powersgd", "algo.rank=1"),
    "fragments": ("algo=streaming_diloco", "algo.period=4", "algo.codec=fp4"),
    "hybrid": ("algo=hybrid", "algo.switch_epoch=1"),
}


@pytest.mark.parametrize("overrides", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_retimed_run_has_the_bytes_of_the_run_that_was_trained_there(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    here = trained(tmp_path / "here", *overrides, "cluster=laptop")
    there = trained(tmp_path / "there", *overrides, f"cluster={FAR}")
    (folder,) = retime_all([here.directory], [f"cluster={FAR}"], tmp_path / "out")
    assert lines(folder) == lines(there.directory) != lines(here.directory)
    summary, expected = read_summary(folder), read_summary(there.directory)
    assert summary is not None and expected is not None
    differing = {"real_s", "run_dir", "label", "retimed_from"}
    assert {key: summary[key] for key in summary.keys() - differing} == {
        key: expected[key] for key in expected.keys() - differing
    }
    assert summary["label"] == f"trained on digits; time simulated, re-timed from {here.name}"


def test_a_run_on_nodes_of_several_devices_is_retimed_on_others(tmp_path: Path) -> None:
    here = trained(tmp_path / "here", "cluster=ethernet_10g", "gpus_per_node=8")
    there = trained(tmp_path / "there", f"cluster={FAR}")
    (folder,) = retime_all([here.directory], [f"cluster={FAR}"], tmp_path / "out")
    assert lines(folder) == lines(there.directory) != lines(here.directory)


REFUSED = {
    ("algo=osgp",): "OSGP with these settings polls for messages, so its decisions depend on time",
    ("algo=slowmo", "algo.base=osgp"): "polls for messages, so its decisions depend on time",
    ("algo=ad_psgd", "nodes=4"): "the decisions of AD-PSGD depend on time",
    ("model=timing_only", "model.sample_steps=3", "epochs=1"): "it is a timing study",
}


@pytest.mark.parametrize("overrides", REFUSED.keys())
def test_what_depends_on_time_is_refused_in_one_sentence(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    experiment = trained(tmp_path, *overrides)
    with pytest.raises(ConfigError, match=REFUSED[overrides]) as error:
        retime_all([experiment.directory], ["cluster=ideal"], tmp_path / "out")
    assert error.value.key == "--retime" and str(experiment.directory) in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_pictures")
def test_the_report_marks_what_was_retimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = trained(tmp_path, "algo=sgp")
    out = tmp_path / "report"
    assert (
        main(
            [
                str(experiment.directory),
                "--retime",
                "cluster=ideal,gapaware_gamma",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    table = read_runs([experiment.directory, out / "retimed"]).table
    assert list(table["state"]) == ["finished", RETIMED, RETIMED]
    assert set(table["kind"]) == {TRAINED} and len(set(table["quality"])) == 1
    assert list(table["time_s"]) == [
        float(str(read_summary(Path(folder))["time_s"])) for folder in table["folder"]
    ]  # type: ignore[index]
    assert len(set(table["time_s"])) == 3
    assert "re-timed" in (out / "index.html").read_text(encoding="utf-8")
    capsys.readouterr()
    for word, sentence in {
        "nodes=4": "--retime: 'nodes=4' does not describe a cluster: write",
        "cluster=": "--retime: 'cluster=' does not describe a cluster: write",
        "cluster=nowhere": "cluster: 'nowhere' is not one of",
        "cluster=./none.yaml": "cluster: there is no file './none.yaml'",
        "cluster.bandwidht=1": "cluster.bandwidht: there is no such setting",
        "cluster.bandwidth=fast": "cluster.links.bandwidth: 'fast' is not a number",
    }.items():
        assert main([str(experiment.directory), "--retime", word, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"sgp-report: {sentence}") and error.count("\n") == 1


LAB = """
defaults:
  - gapaware_gamma
  - _self_
links: {bandwidth: 1Gbit/s}
"""


def test_own_clusters_and_single_settings_are_retimed_as_they_are_trained(tmp_path: Path) -> None:
    here = trained(tmp_path / "here", "algo=sgp", "cluster=laptop")
    (tmp_path / "presets" / "cluster").mkdir(parents=True)
    for path in (tmp_path / "lab.yaml", tmp_path / "presets" / "cluster" / "mine.yaml"):
        path.write_text(LAB)
    faster = ("cluster=gapaware_gamma", "cluster.bandwidth=1e9")
    there = trained(tmp_path / "there", "algo=sgp", *faster)
    overrides = [f"cluster={tmp_path / 'lab.yaml'},mine"]
    for folder, name in zip(
        retime_all([here.directory], overrides, tmp_path / "out", str(tmp_path / "presets")),
        ("lab", "mine"),
        strict=True,
    ):
        assert folder.name == f"{here.name}-on-{name}"
        assert lines(folder) == lines(there.directory)
    overrides = ["cluster.bandwidth=10Mbit/s,1e9", "cluster.latency_seconds=2ms"]
    folders = retime_all([here.directory], overrides, tmp_path / "out")
    assert [folder.name.partition("-on-")[2] for folder in folders] == [
        f"bandwidth-{value}-latency_seconds-2ms" for value in ("10mbit_s", "1000000000_0")
    ]
    slow = trained(
        tmp_path / "slow",
        *("algo=sgp", "cluster=laptop", "cluster.bandwidth=1e7", "cluster.latency_seconds=0.002"),
    )
    assert lines(folders[0]) == lines(slow.directory) != lines(folders[1])


def test_the_times_of_codecs_are_removed_by_an_empty_group(tmp_path: Path) -> None:
    overrides = ("algo=ar_sgd", "algo.codec=int8", "cluster=laptop")
    plain = trained(tmp_path / "plain", *overrides)
    here = trained(tmp_path / "here", *overrides, "cluster.codecs.encode_seconds={int8:1us}")
    (folder,) = retime_all([here.directory], ["cluster.codecs={}"], tmp_path / "out")
    assert lines(folder) == lines(plain.directory) != lines(here.directory)
    summary, before = read_summary(folder), read_summary(here.directory)
    assert summary is not None and "coding_s" not in summary
    assert before is not None and float(str(before["coding_s"])) > 0


def test_a_run_is_retimed_between_regions(tmp_path: Path) -> None:
    far = "bandwidth_up: 5Mbit/s, bandwidth_down: 9Mbit/s, latency_seconds: 40ms"
    overrides = [
        f"cluster.links.regions=[{{nodes: 2, {far}}}, {{nodes: 3, {far}}}]",
        "cluster.links.bandwidth_up=8Mbit/s",
    ]
    here = trained(tmp_path / "here", "algo=sgp", "cluster=laptop")
    there = trained(tmp_path / "there", "algo=sgp", "cluster=laptop", *overrides)
    (folder,) = retime_all([here.directory], overrides, tmp_path / "out")
    assert lines(folder) == lines(there.directory) != lines(here.directory)
    assert (
        refusal(retime_all, [here.directory], ["cluster=regions_2x4"], tmp_path / "out").key
        == "cluster.links.regions"
    )


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    experiment = trained(tmp_path, "algo=sgp")
    path = experiment.directory / "metrics.jsonl"
    first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([first.replace('"lr": 0', '"lr": 1'), *rest]), encoding="utf-8")
    with pytest.raises(ConfigError, match="its records do not match its settings"):
        retime_all([experiment.directory], ["cluster=ideal"], tmp_path / "out")
    for line in ("[" * 100_000, '{"kind": [], "time_s": 1}'):
        path.write_text("".join([line + "\n", *rest]), encoding="utf-8")
        with pytest.raises(ConfigError, match="cannot be re-timed: its records cannot be read"):
            retime_all([experiment.directory], ["cluster=ideal"], tmp_path / "out")


def test_a_diverged_run_is_refused_without_advice_to_resume_it(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        trained(tmp_path, "optim.lr=1e9", "optim.schedule=constant")
    (folder,) = (tmp_path / "runs").iterdir()
    with pytest.raises(ConfigError, match="it has diverged; train it with a smaller learning"):
        finished(folder)

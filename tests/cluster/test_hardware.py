"""Names of clusters, and where the times of a profile have been validated."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from helpers.experiments import make_experiment

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.opening import outside_validation
from sgp_runner.cli.main import main
from sgp_runner.cluster.validated import LIMITS
from sgp_runner.utils.errors import ConfigError


def warning(tmp_path: Path, *overrides: str) -> list[str]:
    run = make_experiment(tmp_path, "model=timing_only", *overrides).run
    return outside_validation(run, build_problem(run))


def test_a_run_outside_what_its_profile_was_validated_for_says_what_differs(tmp_path: Path) -> None:
    paper = ("cluster=sgp_ethernet", "nodes=32")
    limits = "(10 Gbit/s, up to 32 nodes, models of 102 MB)"
    assert warning(tmp_path, *paper) == []
    assert warning(tmp_path, *paper, "cluster.bandwidth=1Gbit/s", "nodes=64") == [
        f"Outside the validated range of cluster=sgp_ethernet {limits}: 1 Gbit/s, 64 nodes."
    ]
    assert warning(tmp_path, *paper, "timed_as.num_parameters=1000000000") == [
        f"Outside the validated range of cluster=sgp_ethernet {limits}: a model of 4 GB."
    ]


def test_a_profile_that_was_never_compared_says_so_and_real_runs_say_nothing(
    tmp_path: Path,
) -> None:
    never = ["The times of cluster=ethernet_10g were not compared with real times."]
    assert warning(tmp_path) == warning(tmp_path, "cluster.bandwidth=1Mbit/s") == never
    run = make_experiment(tmp_path, "model=mlp", "network=gloo").run
    assert outside_validation(run, build_problem(run)) == []
    assert warning(tmp_path, "cluster=diloco_l40s_50m", "nodes=4") != []  # ResNet-50
    assert warning(tmp_path, "experiment=diloco_measured", "cluster=diloco_l40s_50m") == []


def test_an_unknown_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"^cluster\.validated\.rate: there is no such setting; cluster\.validated has nodes, "
            r"bandwidth, least_bytes, most_bytes, fitted_on\.$"
        ),
    ):
        make_experiment(tmp_path, "+cluster.validated.rate=1")


def test_where_a_profile_was_validated_does_not_change_a_runs_name(tmp_path: Path) -> None:
    overrides = ("cluster=sgp_ethernet", "model=timing_only")
    with_limits = make_experiment(tmp_path / "a", *overrides)
    limits = [f"~cluster.validated.{key}" for key in LIMITS]
    without = make_experiment(tmp_path / "b", *overrides, *limits)
    assert not without.run.cluster.validated.limited
    assert with_limits.run.cluster.validated.nodes == 32
    assert with_limits.name == without.name


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["cluster=./sites.yaml"], "sites"),
        (["cluster=./sites.yaml", "cluster.name=site"], "site"),
        (["--config-dir=.", "cluster=sites"], "sites"),
        (["--config-dir=.", "cluster=lab"], "Lab 3"),
        (["--config-dir=.", "cluster=more"], "more"),
        (["--config-dir=.", "cluster=lab", "experiment=renamed"], "mine"),
        (["--config-dir=.", "experiment=renamed"], "mine"),
        (["--plugin=mypkg", "cluster=half"], "half"),
        (["cluster=ideal"], "ideal"),
    ],
)
def test_a_cluster_has_the_name_of_its_file_or_its_own(
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It does not have the name of the cluster that it is based on."""
    files = {
        "sites.yaml": "defaults: [wan_1g]\nlinks: {bandwidth: 3.2Tbit/s}\n",
        "cluster/sites.yaml": "defaults: [wan_1g]\nlinks: {bandwidth: 3.2Tbit/s}\n",
        "cluster/lab.yaml": "defaults: [sites, _self_]\nname: Lab 3\n",
        "cluster/more.yaml": "defaults: [lab]\n",
        "experiment/renamed.yaml": (
            "# @package _global_\ndefaults: [override /cluster: sites]\ncluster: {name: mine}\n"
        ),
        "mypkg/__init__.py": "",
        "mypkg/configs/cluster/half.yaml": "defaults: [ideal]\nlinks: {latency_seconds: 0.5}\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["cluster"]["name"] == name

"""Plug-ins in a package: code, YAML files and entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.plugins import (
    PACKAGE,
    TINY,
    another_command,
    hash_of,
    in_a_folder_of_the_user,
    install,
    stored,
    write,
)

from sgp_runner.cli.main import main
from sgp_runner.config.experiment import load_experiment
from sgp_runner.utils.errors import ConfigError

__all__ = ["in_a_folder_of_the_user"]


def test_a_package_brings_code_and_files(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE)
    assert main(["--plugin", "mypkg", "experiment=demo", "cluster=lab", *TINY, "name=run"]) == 0
    config = stored("run")
    assert config["algo"] == {"name": "pga", "topology": {"name": "ring"}, "period": 2}
    assert (config["seed"], config["cluster"]["links"]["latency_seconds"]) == (7, 0.5)
    assert config["plugins"] == {
        "mypkg": hash_of({name[6:]: PACKAGE[name] for name in PACKAGE if name.endswith(".py")})
    }
    another_command()
    with pytest.raises(ConfigError, match="this run needs the plug-in 'mypkg'"):
        load_experiment(Path("results/runs/run/config.yaml"), None)


def test_an_installed_package_is_imported_only_when_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "site", PACKAGE)
    install(tmp_path / "site", monkeypatch)
    assert main(["--help"]) == 0
    assert " pga pga_often " in capsys.readouterr().out
    assert main([*TINY, "cluster=lab", "name=own"]) == 0
    assert "mypkg" not in sys.modules and "plugins" not in stored("own")
    for network in ("sim", "gloo"):
        assert main(["algo=pga", *TINY, f"name={network}", f"network={network}"]) == 0
    assert stored("gloo")["plugins"] == stored("sim")["plugins"]
    another_command()
    experiment = load_experiment(Path("results/runs/gloo/config.yaml"), None)
    assert experiment.run.algo.title == "My gossip"


def test_plug_ins_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, PACKAGE)
    monkeypatch.setenv("COMP_LINE", "sgp-run --plugin mypkg algo=pga")
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == ["algo=pga", "algo=pga_often"]


def test_the_help_names_the_plug_ins_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algo=./mine.py", "--help"]) == 0
    assert capsys.readouterr().out.startswith("algo=mine\n")


@pytest.mark.parametrize(
    ("change", "arguments", "sentence"),
    [
        (
            {"mypkg/__init__.py": "CHOICES = []\n"},
            "algo=pga",
            'CHOICES of mypkg must have the form {"algo": {"mine": "mypkg.mine:Mine"}}.',
        ),
        (
            {"mypkg/__init__.py": "\n"},
            "algo=pga",
            "algo: the plug-in mypkg has no class for 'pga': add it to CHOICES of its __init__.py.",
        ),
        (
            {"mypkg/__init__.py": 'CHOICES = {"algo": {"pga": "torch.nn:Linear"}}\n'},
            "algo=pga",
            "'torch.nn:Linear' of its CHOICES is not 'module:Class' with a module of mypkg.",
        ),
        (
            {"mypkg/gossip.py": "import nothing_of_this_name\n"},
            "algo=pga",
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name' "
            "(mypkg/gossip.py:1; SGP_RUN_TRACEBACK=1 shows all).",
        ),
        (
            {"mypkg/configs/algos/other.yaml": "name: other\n"},
            "algo=pga",
            "mypkg/configs/algos/other.yaml: there is no group 'algos'; there are algo, base, ",
        ),
        ({}, "algo=pgg", "algo: 'pgg' is not one of "),
        (
            {},
            "--plugin other",
            "--plugin: 'other' is not a package: neither installed nor a folder",
        ),
    ],
)
def test_errors_of_a_package(
    change: dict[str, str],
    arguments: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, PACKAGE | change)
    assert main(["--plugin", "mypkg", *arguments.split(), *TINY]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1

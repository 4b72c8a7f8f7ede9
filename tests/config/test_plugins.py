"""Plug-ins in a file: their choices, their identity and their records."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.plugins import (
    ALGORITHM,
    FILES,
    RUN,
    TINY,
    another_command,
    hash_of,
    in_a_folder_of_the_user,
    stored,
    write,
)

from sgp_runner.cli.main import main
from sgp_runner.cli.replay import main as replay
from sgp_runner.cli.report import main as report
from sgp_runner.config.experiment import load_experiment
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.plugins import loading as plugins
from sgp_runner.jobs.sweep_job import SweepJob
from sgp_runner.utils.errors import ConfigError

__all__ = ["in_a_folder_of_the_user"]


def test_a_file_with_an_algorithm_runs_and_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "name=run", "algo.period=3"]) == 0
    assert "My gossip · quadratic · quadratic · 2 nodes · sim" in capsys.readouterr().out
    config = stored("run")
    assert config["algo"] == {"name": "mine", "topology": {"name": "ring"}, "period": 3}
    assert config["plugins"] == {"mine": hash_of(FILES)}
    record = json.loads(Path("results/runs/run/environment.json").read_text())["plugins"]["mine"]
    assert sorted(record["files"]) == ["deeper.py", "helping.py", "mine.py"]
    assert {key: record[key] for key in ("source", "contract", "commit", "dirty")} == {
        "source": str(Path("mine.py").absolute()),
        "contract": 1,
        "commit": None,
        "dirty": None,
    }
    another_command()
    assert main([*RUN, "name=run", "algo.period=3"]) == 0
    assert "This run has finished already" in capsys.readouterr().out


def test_the_commit_of_a_clone_is_recorded() -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", *FILES], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    (plugin,) = experiment_of(RUN).plugins
    assert (plugin.record["commit"], plugin.record["dirty"]) == (commit.stdout.strip(), False)


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/plugins.md").read_text()
    (code,) = re.findall(r"`average.py`:\n\n```python\n(.*?)```", page, flags=re.DOTALL)
    Path("average.py").write_text(code)
    assert main(["algo=./average.py", "algo.period=2", *TINY]) == 0
    assert "Average · quadratic" in capsys.readouterr().out
    assert main(["algo=./average.py", "algo.period=0", *TINY]) == 2
    assert "algo.period: 0 must be at least 1 step." in capsys.readouterr().err


LOGGER = '''from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lines:
    """Writes lines.

    file: where they go
    """

    file: str = "lines.txt"

    def open(self, run_dir, name, config, tags, group):
        return Writer(self.file)


class Writer:
    def __init__(self, file):
        self.file = Path(file)

    def write(self, record):
        with self.file.open("a") as lines:
            print(record["kind"], file=lines)

    def finish(self, summary):
        self.write({"kind": "finished"})
'''


def test_a_topology_and_a_logger_are_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"hypercube.py`:\n\n```python\n(.*?)```", page, flags=re.DOTALL)
    Path("cube.py").write_text(code)
    Path("lines.py").write_text(LOGGER)
    logger = ["logger=./lines.py", "logger.file=mine.txt"]
    assert main([*RUN, "algo.topology=./cube.py", *logger, "name=run"]) == 0
    assert stored("run")["logger"] == {"name": "lines", "file": "mine.txt"}
    assert sorted(stored("run")["plugins"]) == ["cube", "mine"]  # a logger changes no results
    record = json.loads(Path("results/runs/run/environment.json").read_text())["plugins"]
    assert sorted(record) == ["cube", "lines", "mine"]
    assert Path("mine.txt").read_text().splitlines()[-1] == "finished"


def test_a_run_without_plug_ins_stores_none() -> None:
    plugins.load("./mine.py")
    assert "plugins" not in experiment_of(TINY).config


def test_what_a_plug_in_imports_is_part_of_the_identity(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "name=run"]) == 0
    before = experiment_of(RUN)
    another_command()
    Path("deeper.py").write_text("HALF = 0.25\n")
    after = experiment_of(RUN)
    assert after.digest != before.digest
    assert after.name[:-8] == before.name[:-8] != after.name
    assert main([*RUN, "name=run"]) == 2
    assert "name: results/runs/run holds a run with another version of the plug-in mine" in (
        capsys.readouterr().err
    )
    another_command()
    Path("deeper.py").write_text(FILES["deeper.py"])
    Path("unrelated.py").write_text("")
    assert experiment_of(RUN).digest == before.digest


def test_a_real_run_equals_the_simulated_one_and_is_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*RUN, "name=sim"]) == 0
    assert main([*RUN, "name=real", "network=gloo", "record=true"]) == 0
    summaries = [
        json.loads(Path(f"results/runs/{name}/summary.json").read_text())
        for name in ("sim", "real")
    ]
    assert summaries[0]["average"] == pytest.approx(summaries[1]["average"], rel=1e-12)
    another_command()
    assert replay(["results/runs/real"]) == 2
    assert "this run needs the plug-in 'mine'" in capsys.readouterr().err
    command = ["results/runs/real", "--plugin", "./mine.py"]
    for more in ([], ["--with", "algo=sgp"], ["--with", "algo=./mine.py"]):
        assert replay([*command, *more]) == 0
    another_command()
    Path("deeper.py").write_text("HALF = 0.25\n")
    assert replay(command) == 2
    assert "plugins.mine: mine.py has changed since this run; its hash" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_a_run_is_re_timed_with_its_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "name=run"]) == 0
    another_command()
    command = ["results/runs/run", "--retime", "cluster=ideal"]
    assert report(command) == 2
    assert "this run needs the plug-in 'mine'" in capsys.readouterr().err
    assert report([*command, "--plugin", "./mine.py"]) == 0


def test_nothing_that_is_stored_is_imported(tmp_path: Path) -> None:
    assert main([*RUN, "name=run"]) == 0
    another_command()
    Path("mine.py").write_text("raise SystemExit('imported')\n")
    with pytest.raises(ConfigError, match="this run needs the plug-in 'mine'"):
        load_experiment(Path("results/runs/run/config.yaml"), None)
    presets = tmp_path / "presets" / "experiment"
    presets.mkdir(parents=True)
    (presets / "theirs.yaml").write_text("# @package _global_\nrehearse: [algo=./mine.py]\n")
    assert main(["--config-dir", "presets", "experiment=theirs", "rehearsal=true", *TINY]) == 2
    assert "mine" not in sys.modules


def test_what_the_hash_does_not_cover_is_not_imported(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("lib"), {"__init__.py": "", "seen.py": "", "unseen.py": ""})
    importing = "import importlib\n\nfrom lib import seen\n\n\ndef half():\n    return 0.5\n"
    Path("helping.py").write_text(importing)
    (plugin,) = experiment_of(RUN).plugins
    assert [*plugin.code.files] == ["helping.py", "lib/__init__.py", "lib/seen.py", "mine.py"]
    another_command()
    Path("helping.py").write_text(f"{importing}\n\nimportlib.import_module('lib.unseen')\n")
    assert main(RUN) == 2
    assert "ModuleNotFoundError: No module named 'lib.unseen' (helping.py:10;" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("no_pictures")
def test_plug_ins_are_swept_and_nested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "jobs=1", "algo=sgp,./mine.py", *TINY]) == 0
    assert "[2/2] algo=mine" in capsys.readouterr().out
    experiment = experiment_of(["algo=slowmo", "algo.base=./mine.py", *TINY])
    assert experiment.run.algo.title == "SlowMo(My gossip)"
    assert [plugin.name for plugin in experiment.plugins] == ["mine"]


def test_a_job_of_a_sweep_is_loaded_again_in_another_process() -> None:
    experiment = experiment_of(RUN)
    packed = pickle.dumps(SweepJob("algo=mine", experiment))
    another_command()
    job = pickle.loads(packed)
    assert (job.title, job.experiment.digest) == ("algo=mine", experiment.digest)
    assert job.experiment.run.algo.title == "My gossip"
    another_command()
    Path("deeper.py").write_text("HALF = 0.25\n")
    with pytest.raises(ConfigError, match="mine.py has changed since this run"):
        pickle.loads(packed)


def test_a_plug_in_that_changes_after_the_launch_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(f"{ALGORITHM}\n\nopen('deeper.py', 'a').write('# changed')\n")
    assert main([*RUN, "network=gloo"]) == 1
    assert "sgp-run: plugins.mine: mine.py has changed since this run; its hash was " in (
        capfd.readouterr().err
    )

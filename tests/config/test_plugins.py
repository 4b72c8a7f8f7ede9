"""A user's own choices, in a file or a package, without touching this one."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.paths import ROOT

from sgp_runner.cli.jobs import SweepJob
from sgp_runner.cli.main import main
from sgp_runner.cli.replay import main as replay
from sgp_runner.cli.report import main as report
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.plugins import loading as plugins
from sgp_runner.config.schema import load_experiment
from sgp_runner.utils.errors import ConfigError

ALGORITHM = '''"""Gossip, and an exact average every few steps."""

from dataclasses import dataclass
from typing import ClassVar

from helping import half

from sgp_runner.plugin import Algorithm, Ring, Topology


@dataclass(frozen=True)
class Mine(Algorithm):
    """Gossip with exact averages.

    topology: symmetric
    period: steps between exact averages
    """

    topology: Topology = Ring()
    period: int = 6
    title: ClassVar[str] = "My gossip"

    def phases(self, size):
        return [(epoch, self.period * steps) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker):
        x = worker.params
        for k in worker.steps():
            x -= worker.update(await worker.grad())
            if (k + 1) % self.period == 0:
                x.copy_(await worker.comm.all_reduce(x.clone()))
                continue
            (peer,) = self.topology.at(worker.epoch).out_peers(worker.rank, worker.size, k)
            worker.comm.send(peer, x.clone())
            x += await worker.comm.recv(peer)
            x *= half()
'''
HELPING = """def half():
    from deeper import HALF  # only when it runs

    return HALF
"""
FILES = {"deeper.py": "HALF = 0.5\n", "helping.py": HELPING, "mine.py": ALGORITHM}
TINY = ["model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "epochs=1"]
TINY += ["dtype=float64", "logger=jsonl"]
RUN = ["algo=./mine.py", *TINY]


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    for name, text in FILES.items():
        Path(name).write_text(text)


def hash_of(files: dict[str, str]) -> str:
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def another_command() -> None:
    """Forget what this process has imported, as a new one would."""
    plugins.forget()


def stored(name: str) -> Any:
    return yaml.safe_load(Path(f"results/runs/{name}/config.yaml").read_text())


def test_a_file_with_an_algorithm_runs_and_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "name=run", "algo.period=3"]) == 0
    assert "My gossip · quadratic · quadratic · 2 nodes · sim" in capsys.readouterr().out
    config = stored("run")
    assert config["algo"] == {"name": "mine", "topology": {"name": "ring"}, "period": 3}
    assert config["plugins"] == {"mine": hash_of(FILES)}
    record = json.loads(Path("results/runs/run/environment.json").read_text())["plugins"]["mine"]
    assert record["source"] == str(Path("mine.py").absolute())
    assert record["contract"] == 1
    assert sorted(record["files"]) == ["deeper.py", "helping.py", "mine.py"]
    assert (record["commit"], record["dirty"]) == (None, None)
    another_command()
    assert main([*RUN, "name=run", "algo.period=3"]) == 0
    assert "This run has finished already" in capsys.readouterr().out


def test_the_commit_of_a_clone_is_recorded() -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", *FILES], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    (plugin,) = experiment_of(RUN).plugins
    assert plugin.record["commit"] == commit.stdout.strip()
    assert plugin.record["dirty"] is False


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
    words = ["algo.topology=./cube.py", "logger=./lines.py", "logger.file=mine.txt"]
    assert main([*RUN, *words, "name=run"]) == 0
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
    said = capsys.readouterr().err
    assert "name: results/runs/run holds a run with another version of the plug-in mine" in said
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
    folder = "results/runs/real"
    assert replay([folder]) == 2
    assert "this run needs the plug-in 'mine'" in capsys.readouterr().err
    assert replay([folder, "--plugin", "./mine.py"]) == 0
    assert replay([folder, "--plugin", "./mine.py", "--with", "algo=sgp"]) == 0
    assert replay([folder, "--plugin", "./mine.py", "--with", "algo=./mine.py"]) == 0
    another_command()
    Path("deeper.py").write_text("HALF = 0.25\n")
    assert replay([folder, "--plugin", "./mine.py"]) == 2
    assert "plugins.mine: mine.py has changed since this run: its hash" in capsys.readouterr().err


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
    words = ["--config-dir", "presets", "experiment=theirs", "rehearsal=true", *TINY]
    assert main(words) == 2
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("change", "key", "sentence"),
    [
        (
            ("import", "imporrt"),
            "algo",
            "cannot be imported: SyntaxError: invalid syntax (mine.py:3",
        ),
        (
            ("from helping", "from helpless"),
            "algo",
            "cannot be imported: ModuleNotFoundError: No module named 'helpless' (mine.py:6; "
            "SGP_RUN_TRACEBACK=1 shows all).",
        ),
        (
            ("from helping import half", "import helping, sys; sys.exit(3)"),
            "algo",
            "cannot be imported: SystemExit: 3 (mine.py:6",
        ),
        (
            ('    title: ClassVar[str] = "My gossip"\n', ""),
            "algo",
            'Mine (mine.py:11) has no title: write title: ClassVar[str] = "My algorithm".',
        ),
        (
            ("Mine(Algorithm)", "Mine"),
            "algo",
            "Mine (mine.py:11) has no check: derive it from sgp_runner.plugin.Algorithm, "
            "which has one.",
        ),
        (
            ("    async def run", "    async def walk"),
            "algo",
            "has no run: write async def run(self, worker).",
        ),
        (("(frozen=True)", ""), "algo", "write @dataclass(frozen=True) above the class."),
        (
            ("@dataclass(frozen=True)\nclass", "class Other(Algorithm):\n    pass\n\n\nclass"),
            "algo",
            "mine.py defines Other and Mine: a file has one class that is an algorithm.",
        ),
        (("class Mine(Algorithm):", "def nothing():"), "algo", "mine.py cannot be imported"),
        (
            ("from dataclasses", "CONTRACT = 2\nfrom dataclasses"),
            "algo",
            "is written for contract 2 of plug-ins, but this version of sgp-run has contract 1.",
        ),
        (
            ("    def phases(self, size):", "    def check(self, nodes, optim):\n        1 / 0\n"),
            "settings",
            "these do not go together (ZeroDivisionError: division by zero) (mine.py:24",
        ),
        (
            ("x -= worker.update(", "x -= worker.updated("),
            "algo",
            "rank 0, step 0: AttributeError: 'Worker' object has no attribute 'updated' "
            "(mine.py:29; SGP_RUN_TRACEBACK=1 shows all).",
        ),
        (
            ("half()", "half(1)"),
            "algo",
            "TypeError: half() takes 0 positional arguments but 1 was given (mine.py:36;",
        ),
    ],
)
def test_errors_of_a_plug_in_show_their_line_and_cause(
    change: tuple[str, str], key: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ALGORITHM.replace(*change)
    assert changed != ALGORITHM
    Path("mine.py").write_text(changed)
    assert main(RUN) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"sgp-run: {key}: ")
    assert sentence in said
    assert said.count("\n") == 1


ENDINGS = {
    "exit": ("sys.exit('')", "SystemExit"),  # W&B, once used, makes 0 of no code
    "exit 0": ("raise SystemExit(0)", "SystemExit: 0"),
    "own": ("raise type('Over', (BaseException,), {})('enough')", "Over: enough"),
}


def changed_by(line: str, before: str) -> None:
    """Insert a line into the algorithm."""
    text = ALGORITHM.replace(before, f"{line}\n{before}")
    assert text != ALGORITHM
    Path("mine.py").write_text(f"import sys\n{text}")


@pytest.mark.parametrize(
    ("ending", "network"), [*((ending, "sim") for ending in ENDINGS), ("exit 0", "gloo")]
)
def test_an_algorithm_that_ends_the_process_has_failed(
    ending: str, network: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line, error = ENDINGS[ending]
    changed_by(
        f"            if worker.has_gradients and worker.rank and k == 1: {line}",
        "            x -= ",
    )
    assert main([*RUN, f"network={network}", "name=run"]) == 1
    said = capfd.readouterr().err
    assert f"sgp-run: rank 1, step 1: {error} (mine.py:30; SGP_RUN_TRACEBACK=1 shows all)" in said
    assert "Traceback" not in said
    assert not Path("results/runs/run/summary.json").exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_algorithm_that_ends_the_process_in_its_dry_run_is_refused(
    ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, error = ENDINGS[ending]
    changed_by(f"            {line}", "            x -= ")
    assert main(RUN) == 2
    assert f"rank 0, step 0: {error} (mine.py:30; " in capsys.readouterr().err


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_import_that_ends_the_process_is_one_sentence(
    ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, error = ENDINGS[ending]
    changed_by(line, "@dataclass")
    assert main(RUN) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: algo: mine.py cannot be imported: {error} (mine.py:12; SGP_RUN_TRACEBACK=1 "
        "shows all).\n"
    )


def test_a_model_that_ends_the_process_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_model.py").write_text(MODEL_THAT_EXITS)
    words = [word for word in TINY if "data" not in word and "model" not in word]
    assert main(["algo=local_sgd", "model=./my_model.py", *words]) == 1
    assert capsys.readouterr().err == (
        "sgp-run: SystemExit (my_model.py:15; SGP_RUN_TRACEBACK=1 shows all)\n"
    )


MODEL_THAT_EXITS = """import sys
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Mine:
    name: ClassVar[str] = "my_model"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = True
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset):
        sys.exit('')
"""


@pytest.mark.parametrize("words", [(), ("network=gloo",), ("--cfg", "job")], ids=" ".join)
def test_threads_of_a_plug_in_do_not_keep_the_command(words: tuple[str, ...]) -> None:
    thread = "import threading; threading.Thread(target=threading.Event().wait).start()"
    changed_by(thread, "from dataclasses")
    command = [sys.executable, "-m", "sgp_runner", *RUN, *words, "name=run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_what_the_hash_does_not_cover_is_not_imported(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("lib"), {"__init__.py": "", "seen.py": "", "unseen.py": ""})
    importing = "import importlib\n\nfrom lib import seen\n\n\ndef half():\n    return 0.5\n"
    Path("helping.py").write_text(importing)
    (plugin,) = experiment_of(RUN).plugins
    assert [*plugin.code.files] == ["helping.py", "lib/__init__.py", "lib/seen.py", "mine.py"]
    another_command()
    Path("helping.py").write_text(f"{importing}\n\nimportlib.import_module('lib.unseen')\n")
    assert main(RUN) == 2
    said = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'lib.unseen' (helping.py:10;" in said


def test_an_error_in_a_helper_names_the_helper(capsys: pytest.CaptureFixture[str]) -> None:
    Path("helping.py").write_text("def half():\n    return {}['half']\n")
    assert main(RUN) == 2
    assert "rank 1, step 0: KeyError: 'half' (helping.py:2; " in capsys.readouterr().err


DATA = """from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Points:
    name: ClassVar[str] = "points"
    task: ClassVar[str] = "regression"
    stand_in: ClassVar[bool] = True
    train_size: ClassVar[int] = 64

    def load(self, dtype):
        return {}["points"]
"""


@pytest.mark.parametrize(("network", "rank"), [("sim", ""), ("gloo", r"rank [01]: ")])
def test_an_error_when_data_are_loaded(
    network: str, rank: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("points.py").write_text(DATA)
    words = ["data=./points.py", "model=quadratic", "nodes=2", "logger=jsonl"]
    assert main([*words, f"network={network}"]) == 1
    said = capfd.readouterr().err
    where = r" \(points.py:13; SGP_RUN_TRACEBACK=1 shows all\)"
    assert re.fullmatch(rf"sgp-run: {rank}KeyError: 'points'{where}\n", said)
    monkeypatch.setenv("SGP_RUN_TRACEBACK", "1")
    assert main([*words, f"network={network}"]) == 1
    assert 'points.py", line 13, in load' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sgp.py", "algo: algo=sgp is there already: rename the 'sgp' of sgp.py, "),
        ("torch.py", "algo: torch.py cannot be imported: ImportError: the name of its module "),
        ("my-gossip.py", "algo: 'my-gossip' cannot name a choice: rename the file"),
    ],
)
def test_a_name_that_is_taken_is_refused(
    name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").rename(name)
    assert main([f"algo=./{name}", *TINY]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nan.py", "inf.py", "null.py", "true.py", "False.py", "inf.yaml"])
def test_a_name_that_is_read_as_a_value_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(ALGORITHM if name.endswith(".py") else "bandwidth: 1.0\n")
    group, stem = "algo" if name.endswith(".py") else "cluster", name.partition(".")[0]
    assert main([f"{group}=./{name}", *TINY]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: {group}: '{stem}' is a value and cannot name a choice: rename it, for example "
        f"my_{stem}.\n"
    )


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algo=./other.py", *TINY]) == 2
    assert "sgp-run: algo: there is no file './other.py'." in capsys.readouterr().err


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
    said = capfd.readouterr().err
    assert "sgp-run: plugins.mine: mine.py has changed since this run: its hash was " in said


def test_values_of_a_cluster_or_faults_are_a_file() -> None:
    Path("slow.yaml").write_text("defaults: [ideal]\nname: slow\nlatency_seconds: 0.5\n")
    Path("mine.yaml").write_text("defaults: [none]\nslow_nodes: {0: 4.0}\n")
    experiment = experiment_of(["cluster=./slow.yaml", "faults=./mine.yaml", *RUN])
    assert experiment.run.cluster.latency_seconds == 0.5
    assert experiment.run.faults.slow_nodes == {0: 4.0}
    assert [plugin.name for plugin in experiment.plugins] == ["mine"]


def test_a_preset_is_a_file_that_imports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("preset.yaml").write_text("defaults: [override /algo: ar_sgd]\nseed: 7\n")
    run = experiment_of(["experiment=./preset.yaml", *TINY]).run
    assert (run.algo.title, run.seed) == ("AR-SGD", 7)
    Path("theirs.yaml").write_text("defaults: [override /algo: ./mine.py]\n")
    assert main(["experiment=./theirs.yaml", *TINY]) == 2
    assert "mine" not in sys.modules
    said = capsys.readouterr().err
    assert "experiment: 'theirs' chooses algo=./mine.py, which does not exist; there are " in said
    assert main(["model=./preset.yaml", *TINY[1:]]) == 2
    assert "model: './preset.yaml' has only values: write model=CHOICE" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["1e9", "1E+9", "1_0e8", "10.e8", "1Gbit/s", "1000000000"])
def test_numbers_in_files_are_read_as_on_the_command_line(written: str) -> None:
    Path("slow.yaml").write_text(f"defaults: [ideal]\nname: 2020-01-01\nbandwidth: {written}\n")
    cluster = experiment_of(["cluster=./slow.yaml", *RUN]).run.cluster
    assert (cluster.name, cluster.bandwidth) == ("2020-01-01", 1e9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: !!set {a, b}", "cluster.name: a set in odd.yaml is not a setting: write text, "),
        ("regions: [{a: !!binary aGk=}]", "cluster.regions[0].a: a bytes in odd.yaml is not "),
        ("name: !!timestamp 2020-01-01", "cluster.name: a date in odd.yaml is not a setting: "),
        ("name: {null: 1}", "cluster.name: 'None' in odd.yaml cannot name a setting."),
    ],
)
def test_values_that_no_setting_has_are_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_text(text)
    assert main(["cluster=./odd.yaml", *TINY, "algo=sgp"]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")
    another_command()
    assert main(["experiment=./odd.yaml", *TINY, "algo=sgp"]) == 2
    sentence = sentence.removeprefix("cluster.")
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hydra: {launcher: {x: 1}}", "Key 'x' not in 'BasicLauncherConf' (hydra.launcher.x)."),
        ("hydra: {sweeper: {x: 1}}", "Key 'x' not in 'BasicSweeperConf' (hydra.sweeper.x)."),
        (
            "hydra: {searchpath: [file:///tmp]}",
            "Overriding hydra.searchpath is only supported from the primary config.",
        ),
        ("defaults: 3", "Invalid defaults list in 'experiment/odd', defaults must be a list (got"),
    ],
)
def test_a_preset_that_hydra_refuses_is_named_with_the_reason(
    text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_text(text)
    assert main(["experiment=./odd.yaml", *TINY, "algo=sgp"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sgp-run: experiment: 'odd' cannot be composed: ") and why in said
    another_command()
    write(Path("folder"), {"experiment/odd.yaml": f"# @package _global_\n{text}\n"})
    assert main(["--config-dir", "folder", "experiment=odd", *TINY, "algo=sgp"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sgp-run: experiment: 'odd' cannot be composed: ") and why in said


PACKAGE = {
    "mypkg/__init__.py": 'CONTRACT = 1\nCHOICES = {"algo": {"pga": "mypkg.gossip:Mine"}}\n',
    "mypkg/gossip.py": ALGORITHM.replace("from helping", "from mypkg.helping"),
    "mypkg/helping.py": "def half():\n    return 0.5\n",
    "mypkg/configs/algo/pga.yaml": "defaults:\n  - /topology@topology: ring\n\nname: pga\n",
    "mypkg/configs/algo/pga_often.yaml": "defaults: [pga]\nperiod: 2\n",
    "mypkg/configs/cluster/lab.yaml": "defaults: [ideal]\nname: lab\nlatency_seconds: 0.5\n",
    "mypkg/configs/experiment/demo.yaml": (
        "# @package _global_\ndefaults:\n  - override /algo: pga_often\n\nseed: 7\n"
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package in ``folder`` look installed, with an entry point."""
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: mypkg\nVersion: 1\n",
        "entry_points.txt": "[sgp_runner.plugins]\nmypkg = mypkg\n",
    }
    write(folder / "mypkg-1.dist-info", info)
    monkeypatch.syspath_prepend(folder)


def test_a_package_brings_code_and_files(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE)
    assert main(["--plugin", "mypkg", "experiment=demo", "cluster=lab", *TINY, "name=run"]) == 0
    config = stored("run")
    assert config["algo"] == {"name": "pga", "topology": {"name": "ring"}, "period": 2}
    assert (config["seed"], config["cluster"]["latency_seconds"]) == (7, 0.5)
    code = {name[6:]: text for name, text in PACKAGE.items() if name.endswith(".py")}
    assert config["plugins"] == {"mypkg": hash_of(code)}
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
    assert "mypkg" not in sys.modules
    assert "plugins" not in stored("own")
    assert main(["algo=pga", *TINY, "name=sim"]) == 0
    assert main(["algo=pga", *TINY, "name=real", "network=gloo"]) == 0
    assert stored("real")["plugins"] == stored("sim")["plugins"]
    another_command()
    experiment = load_experiment(Path("results/runs/real/config.yaml"), None)
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
    ("change", "words", "sentence"),
    [
        (
            {"mypkg/__init__.py": "CHOICES = []\n"},
            "algo=pga",
            'CHOICES of mypkg is not {"algo": {"mine": "mypkg.mine:Mine"}} or the like.',
        ),
        (
            {"mypkg/__init__.py": "\n"},
            "algo=pga",
            "algo: the plug-in mypkg names no class for 'pga': add it to CHOICES of its "
            "__init__.py.",
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
        ({}, "algo=pgg", "algo: 'pgg' is none of "),
        ({}, "--plugin other", "--plugin: 'other' is no package: neither installed nor a folder"),
    ],
)
def test_errors_of_a_package(
    change: dict[str, str],
    words: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, PACKAGE | change)
    assert main(["--plugin", "mypkg", *words.split(), *TINY]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1

"""Plug-ins that fail: one sentence with the line of the plug-in and the cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.commands import run_command
from helpers.plugins import ALGORITHM, RUN, TINY, in_a_folder_of_the_user

from sgp_runner.cli.main import main

__all__ = ["in_a_folder_of_the_user"]


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
            "mine.py defines Other and Mine: a file must have one class that is an algorithm.",
        ),
        (("class Mine(Algorithm):", "def nothing():"), "algo", "mine.py cannot be imported"),
        (
            ("    def phases(self, size):", "    sends = 'chunks'\n\n    def phases(self, size):"),
            "algo",
            "mine.py cannot be imported: TypeError: Mine.sends is now called message_layout "
            "(mine.py:12;",
        ),
        (
            ("from dataclasses", "CONTRACT = 2\nfrom dataclasses"),
            "algo",
            "was written for contract 2 of plug-ins, but this version of sgp-run has contract 1.",
        ),
        (
            ("    def phases(self, size):", "    def check(self, nodes, optim):\n        1 / 0\n"),
            "settings",
            "these settings conflict (ZeroDivisionError: division by zero) (mine.py:24",
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
        (
            ("x *= half()", "raise ValueError('\\x1b[2Jtwo\\n  lines')"),
            "algo",
            r"ValueError: \x1b[2Jtwo lines (mine.py:36;",
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
    assert said.startswith(f"sgp-run: {key}: ") and sentence in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (
            "algo=./none.py",
            "algo: none.py has no class that is an algorithm: such a class has async def "
            "run(self, worker).",
        ),
        (
            "optim.schedule=./none.py",
            "optim.schedule: none.py cannot add a choice of schedule, only of algo, model, ",
        ),
        ("algo=./plain.py", "algo: Plain (plain.py:7): run must be async: write async def run("),
    ],
)
def test_a_file_without_a_class_of_the_kind_is_refused(
    word: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("none.py").write_text("LIMIT = 3\n")
    Path("plain.py").write_text(PLAIN)
    assert main([word, *TINY]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")


PLAIN = """from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.plugin import Algorithm


@dataclass(frozen=True)
class Plain(Algorithm):
    title: ClassVar[str] = "Plain"

    def run(self, worker):
        pass
"""


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
    assert "Traceback" not in said and not Path("results/runs/run/summary.json").exists()


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
    assert main(["algo=local_sgd", "model=./my_model.py", "nodes=2", "logger=jsonl"]) == 1
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


@pytest.mark.parametrize("arguments", [(), ("network=gloo",), ("--cfg", "job")], ids=" ".join)
def test_threads_of_a_plug_in_do_not_keep_the_command(arguments: tuple[str, ...]) -> None:
    changed_by(
        "import threading; threading.Thread(target=threading.Event().wait).start()",
        "from dataclasses",
    )
    done = run_command(*RUN, *arguments, "name=run")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


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
    overrides = ["data=./points.py", "model=quadratic", "nodes=2", "logger=jsonl"]
    assert main([*overrides, f"network={network}"]) == 1
    assert re.fullmatch(
        rf"sgp-run: {rank}KeyError: 'points' \(points.py:13; SGP_RUN_TRACEBACK=1 shows all\)\n",
        capfd.readouterr().err,
    )
    monkeypatch.setenv("SGP_RUN_TRACEBACK", "1")
    assert main([*overrides, f"network={network}"]) == 1
    assert 'points.py", line 13, in load' in capfd.readouterr().err


EMPTY = """
        import torch
        from sgp_runner.plugin import Classification, Dataset, TensorSplit

        labels = torch.arange(64) % 2
        all, none = (TensorSplit((torch.ones(n, 4),), labels[:n], labels[:n]) for n in (64, 0))
"""


@pytest.mark.parametrize(
    ("splits", "kind"), [("none, all", "training"), ("all, none", "validation")]
)
def test_data_without_samples_are_refused(
    splits: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = f'        return Dataset("points", Classification(), {splits}, (4,), 2)\n'
    text = DATA.replace('"regression"', '"classification"').partition(
        '        return {}["points"]'
    )[0]
    Path("points.py").write_text(text + EMPTY + made)
    assert main(["data=./points.py", "model=mlp", "nodes=2", "batch_size=8", "logger=jsonl"]) == 2
    assert capsys.readouterr().err == f"sgp-run: data: points has no {kind} samples.\n"
    assert not [path for path in Path("results").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sgp.py", "algo: algo=sgp already exists: rename the 'sgp' of sgp.py, "),
        ("torch.py", "algo: torch.py cannot be imported: ImportError: the name of its module "),
        ("my-gossip.py", "algo: 'my-gossip' is not a valid name: rename the file"),
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
    Path(name).write_text(ALGORITHM if name.endswith(".py") else "links: {bandwidth: 1.0}\n")
    group, stem = "algo" if name.endswith(".py") else "cluster", name.partition(".")[0]
    assert main([f"{group}=./{name}", *TINY]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: {group}: '{stem}' is a value and not a valid name: rename it, for example "
        f"to my_{stem}.\n"
    )


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algo=./other.py", *TINY]) == 2
    assert "sgp-run: algo: there is no file './other.py'." in capsys.readouterr().err

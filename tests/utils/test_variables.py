"""Modules in the present folder do not run, however a run is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgp_runner.cli.main import main
from sgp_runner.utils.variables import setting

BIN = Path(sys.executable).parent
SGP_RUN = str(BIN / "sgp-run")
MPIRUN = (str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2")
TORCHRUN = (str(BIN / "torchrun"), "--nproc-per-node=2", "--no-python")
TINY = ("model=quadratic", "data=quadratic", "nodes=2", "epochs=0.05", "logger=none", "name=run")
SWEEP = ("-m", "algo=sgp,osgp", *TINY[:-1])
IMPORTED = ("torch", "random", "queue", "sgp_runner")
TRAP = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
raise ImportError("it is a module of the present folder")
"""
PROGRAM = """
import sys
import sgp_runner
if __name__ == "__main__":
    print(getattr(sgp_runner, sys.argv[1])(*sys.argv[2:]))
"""
WAYS = {
    "simulated": [[SGP_RUN, *TINY]],
    "gloo": [[SGP_RUN, *TINY, "network=gloo"]],
    "MPI": [[*MPIRUN, SGP_RUN, *TINY, "network=mpi"]],
    "torchrun": [[*TORCHRUN, SGP_RUN, *TINY, "network=gloo"]],
    "sweep": [[SGP_RUN, *SWEEP, "jobs=2"]],
    "sweep of real runs": [[SGP_RUN, *SWEEP, "jobs=2", "network=gloo"]],
    "calibration": [[SGP_RUN, "calibrate", "nodes=2", "model=mlp"]],
    "Python, simulated": [["PROGRAM", "run", *TINY]],
    "Python, gloo": [["PROGRAM", "run", *TINY, "network=gloo"]],
    "Python, sweep": [["PROGRAM", "sweep", *SWEEP[1:], "network=gloo"]],
    "report": [[SGP_RUN, *TINY], [str(BIN / "sgp-report"), "results/runs", "--out", "report"]],
    "replay": [
        [SGP_RUN, *TINY, "network=gloo", "record=true"],
        [str(BIN / "sgp-replay"), "results/runs/run"],
    ],
}
FAST = ("sweep",)


@pytest.fixture(name="here")
def present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "program.py").write_text(PROGRAM)
    return folder


def command(arguments: list[str], variables: dict[str, str] | None = None) -> None:
    program = [sys.executable, "../program.py"] if arguments[0] == "PROGRAM" else arguments[:1]
    done = subprocess.run(
        [*program, *arguments[1:]],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert done.returncode == 0 and " failed: " not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in FAST else pytest.mark.slow) for way in WAYS]
)
def test_modules_of_the_present_folder_do_not_run(way: str, here: Path) -> None:
    for name in IMPORTED:
        (here / f"{name}.py").write_text(TRAP)
    for arguments in WAYS[way]:
        command(arguments)
    assert [path.name for path in here.glob("*.ran")] == []


ALONE = """
from dataclasses import dataclass
from typing import ClassVar

from beside import SHARE
from elsewhere import ONE
from sgp_runner.plugin import Algorithm


@dataclass(frozen=True)
class Alone(Algorithm):
    title: ClassVar[str] = "Alone"

    async def run(self, worker):
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()), alpha=SHARE * ONE)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            [SGP_RUN, "-m", "algo=./alone.py,sgp", *TINY[:-1], "jobs=2"], marks=pytest.mark.slow
        ),
        ["PROGRAM", "run", "algo=./alone.py", *TINY, "network=gloo"],
    ],
    ids=["sweep", "Python, gloo"],
)
def test_plug_ins_of_the_present_folder_run_with_what_they_and_pythonpath_name(
    arguments: list[str], here: Path, tmp_path: Path
) -> None:
    (here / "alone.py").write_text(ALONE)
    (here / "beside.py").write_text("SHARE = 0.5")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "elsewhere.py").write_text("ONE = 1.0")
    command(arguments, {"PYTHONPATH": str(tmp_path / "path")})


def test_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGP_ONE", "before")
    monkeypatch.delenv("SGP_TWO", raising=False)
    with pytest.raises(ZeroDivisionError), setting(SGP_ONE="1", SGP_TWO="2"):
        assert (os.environ["SGP_ONE"], os.environ["SGP_TWO"]) == ("1", "2")
        raise ZeroDivisionError
    assert os.environ["SGP_ONE"] == "before" and "SGP_TWO" not in os.environ


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SGP_RUN_QUIET", "yes", "'yes' is neither 0 nor 1: write SGP_RUN_QUIET=1, or unset it."),
        (
            "WANDB_MODE",
            "offlin",
            "'offlin' is not one of online, offline, disabled, shared, run, dryrun. "
            "Did you mean 'offline'?",
        ),
        ("WANDB_BASE_URL", "wandb.ai", "'wandb.ai' is not an address: write https://HOST."),
    ],
)
@pytest.mark.usefixtures("in_an_empty_folder")
def test_values_that_cannot_work_are_refused_before_a_run(
    name: str,
    value: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main([*TINY, "logger=wandb"]) == 2
    assert capsys.readouterr().err == f"sgp-run: {name}: {sentence}\n"

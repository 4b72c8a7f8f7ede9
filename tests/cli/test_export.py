"""``sgp-run export``: the files that it writes, which run, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT
from torch import nn

from sgp_runner.cli.main import main
from sgp_runner.config.experiment import stored
from sgp_runner.config.overrides import experiment_of
from sgp_runner.utils.files import replace_file

SLOWMO = ("algo=slowmo", "algo.base=osgp", "algo.tau=4", "optim.lr=0.25", "nodes=3", "batch_size=6")
HOSTS = ("ddp", "accelerate", "trainer", "lightning")
MODULES = {"accelerate": "accelerate", "trainer": "accelerate", "lightning": "lightning"}


def run_of(folder: Path, *overrides: str) -> Path:
    """A folder with the settings of a run."""
    import yaml

    experiment = experiment_of(["model=mlp", *overrides])
    folder.mkdir()
    replace_file(folder / "config.yaml", yaml.safe_dump(stored(experiment)))
    return folder


def imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_has_the_settings_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = run_of(tmp_path / "run", *SLOWMO), tmp_path / "averaging.py"
    assert main(["export", str(run), "--to", "ddp", str(file)]) == 0
    assert capsys.readouterr().out == (
        f"{file}: SlowMo(OSGP) for DistributedDataParallel. Check it with\n"
        f"  python -m pytest {tmp_path / 'test_averaging.py'}\n"
    )
    module = imported(file)
    assert (module.ALGO, module.SETTINGS["tau"]) == ("slowmo", 4)
    assert module.SETTINGS["base"]["topology"] == {"name": "exponential", "peers": 1}
    optimizer = module.optimizer_of(nn.Linear(1, 1))
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.25, 0.9, True)
    assert "3 nodes with batches of 6" in file.read_text()


def test_the_learning_rate_is_that_of_the_global_batch(tmp_path: Path) -> None:
    overrides = ("optim=adamw", "optim.lr=0.1", "optim.lr_reference_batch=9", *SLOWMO[4:])
    run, file = run_of(tmp_path / "run", *overrides), tmp_path / "averaging.py"
    assert main(["export", str(run), "--to", "ddp", str(file)]) == 0
    optimizer = imported(file).optimizer_of(nn.Linear(1, 1))
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.2]  # 3 x 6 / 9
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.1]


@pytest.mark.parametrize("host", HOSTS)
def test_files_are_short_and_compile(host: str, tmp_path: Path) -> None:
    run, file = run_of(tmp_path / "run", *SLOWMO), tmp_path / "averaging.py"
    assert main(["export", str(run), "--to", host, str(file)]) == 0
    for path in (file, tmp_path / "test_averaging.py"):
        text = path.read_text()
        compile(text, path.name, "exec")
        assert "@" not in text.replace("@pytest", "")
        assert max(map(len, text.splitlines())) <= 100
    assert len(file.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    "host", ["ddp", *(pytest.param(host, marks=pytest.mark.slow) for host in HOSTS[1:])]
)
def test_the_test_beside_a_file_runs(host: str, tmp_path: Path) -> None:
    if host != "ddp" and importlib.util.find_spec(MODULES[host]) is None:
        pytest.skip(f"needs {MODULES[host]}: pip install 'sgp-runner[{host}]'")
    run, file = run_of(tmp_path / "run", *SLOWMO), tmp_path / "averaging.py"
    assert main(["export", str(run), "--to", host, str(file)]) == 0
    (tmp_path / "sitecustomize.py").write_text(
        "from sgp_runner.utils.torchvision_import import import_torchvision\n"
        "import_torchvision('test')\n"  # if torchvision's wheel is for another torch
        if host != "ddp"
        else ""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_averaging.py"]
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


STUDY = {
    "question": "Which?",
    "task": "grammar",
    "arms": {"SGP": "algo=sgp", "D-PSGD": "algo=d_psgd algo.topology=ring"},
    "tune": {"optim.lr": "ladder", "budget": 4},
    "seeds": 2,
    "measures": ["loss"],
}


def test_a_study_exports_the_arm_of_the_first_rank(tmp_path: Path) -> None:
    folder, file = tmp_path / "study", tmp_path / "averaging.py"
    folder.mkdir()
    (folder / "study.json").write_text(
        json.dumps({"versions": [{"digest": "1", "content": STUDY, "started": "now"}]})
    )
    command = ["export", str(folder), "--to", "accelerate", str(file)]
    assert main(command) == 2 and not file.exists()  # it has no table yet
    for table in ("", "rank,arm,settings\n", "rank,arm,settings\n1,AR-SGD,\n"):
        (folder / "table.csv").write_text(table)
        assert main(command) == 2 and not file.exists()
    (folder / "table.csv").write_text("rank,arm,settings\n1,D-PSGD,optim.lr=0.02\n2,SGP,\n")
    assert main(command) == 0
    text = file.read_text()
    assert 'ALGO = "d_psgd"' in text and '"name": "ring"' in text
    assert "lr=0.02" in text


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["algo=ad_psgd"], "AD-PSGD is asynchronous, which a training loop does not support: use"),
        (["algo=ps_sgd"], "PS-SGD has a server, which a training loop does not support: use sgp-"),
        (
            ["algo=sgp", "optim=muon"],
            "optim=muon cannot be exported to torch.optim: repeat the run with",
        ),
    ],
)
def test_runs_that_no_loop_can_make_are_refused(
    overrides: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = run_of(tmp_path / "run", *overrides), tmp_path / "averaging.py"
    assert main(["export", str(run), "--to", "ddp", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: export: {sentence}")
    assert not file.exists()


def test_folders_and_files_that_cannot_work_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(folder: Path, file: Path) -> str:
        assert main(["export", str(folder), "--to", "ddp", str(file)]) == 2
        return capsys.readouterr().err

    file = tmp_path / "averaging.py"
    usual = "write results/runs/NAME or results/studies/NAME.\n"
    assert refusal(Path("none"), file) == f"sgp-run: export: there is no folder none: {usual}"
    assert refusal(Path("."), file) == (
        f"sgp-run: export: . is not the folder of a run or a study: {usual}"
    )
    run = tmp_path / "results" / "runs" / "mine"
    run.mkdir(parents=True)
    assert refusal(Path("mine"), file) == (
        "sgp-run: export: there is no folder mine: write results/runs/mine.\n"
    )
    (run / "summary.json").write_text("{}")
    assert refusal(Path("results/runs/mine/summary.json"), file) == (
        "sgp-run: export: there is no folder results/runs/mine/summary.json: "
        "write results/runs/mine.\n"
    )
    assert refusal(run, Path("scripts/averaging.py")) == (
        "sgp-run: export: there is no folder scripts for averaging.py: create it.\n"
    )
    assert refusal(tmp_path, tmp_path / "my-file.py") == (
        f"sgp-run: export: {tmp_path / 'my-file.py'} cannot be imported: "
        "rename it, for example to averaging.py.\n"
    )
    beside = tmp_path / "test_averaging.py"
    beside.write_text("mine")
    assert refusal(tmp_path, file) == (
        f"sgp-run: export: {beside} exists: choose another name, or delete it.\n"
    )
    assert beside.read_text() == "mine"


def test_a_misspelt_loop_is_answered_with_the_one_that_was_perhaps_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word, meant in (("trainr", " Did you mean 'trainer'?"), ("jax", "")):
        with pytest.raises(SystemExit, match="2"):
            main(["export", "results/runs/mine", "--to", word, "averaging.py"])
        assert capsys.readouterr().err == (
            f"sgp-run export: argument --to: '{word}' is not one of ddp, accelerate, trainer, "
            f"lightning.{meant}\n"
        )


def test_the_help_does_not_import_torch() -> None:
    text = (
        "import sys\nfrom sgp_runner.cli.main import main\n"
        "try: code = main(['export', '--help'])\nexcept SystemExit as end: code = end.code\n"
        "assert not code and 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "COLUMNS": "80"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: sgp-run export [-h] --to")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_damaged_study_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    (tmp_path / "table.csv").write_text("rank,arm,settings\n")
    text = (
        "import sys\nfrom sgp_runner.cli.main import main\n"
        "code = main(['export', sys.argv[1], '--to', 'ddp', sys.argv[2]])\n"
        "assert code == 2 and not {'torch', 'pandas'} & {*sys.modules}"
    )
    command = [sys.executable, "-c", text, str(tmp_path), str(tmp_path / "averaging.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "study.json cannot be read" in done.stderr

"""Archives that name a file: it is imported only if the user names it and it has not changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sgp_runner as sgp
from sgp_runner.cli.main import main
from sgp_runner.config.plugins import loading

CODE = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sgp_runner.plugin import Algorithm

Path("imported").touch()


@dataclass(frozen=True)
class Mine(Algorithm):
    """Mine."""

    title: ClassVar[str] = "Mine"

    async def run(self, worker):
        for _ in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()))
'''
CONTENT: dict[str, Any] = {
    "model": "mlp",
    "model.hidden": [4],
    "nodes": 2,
    "epochs": 0.02,
    "eval_every": 0.02,
    "arms": {"M": "algo=./mine.py", "AR-SGD": "algo=ar_sgd"},
    "seeds": 2,
    "clusters": ["laptop bandwidth=1Gbit/s", "laptop bandwidth=100Mbit/s"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a study with the arm ``algo=./mine.py``."""
    folder, before = tmp_path_factory.mktemp("made"), Path.cwd()
    os.chdir(folder)
    Path("mine.py").write_text(CODE)
    sgp.study(CONTENT, "one", verbose=False)
    os.chdir(before)
    loading.forget()
    yield folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield
    loading.forget()


def without_runs(path: Path, **changes: object) -> None:
    """Write an archive that has a study and no runs."""
    content = {**CONTENT, **changes}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    version = {"digest": digest, "content": content, "started": "now"}
    record = json.dumps({"versions": [version]})
    files = {"study.json": record, "table.csv": "", "budget.csv": ""}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    index = {"format": 2, "name": "n", "answer": "", "sgp_run": "1", "files": sums}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {"archive.json": json.dumps(index), **files}.items():
            archive.writestr(name, text)


@pytest.mark.parametrize(
    "command",
    [
        ["study", "verify", "archives/a.zip"],
        ["study", "merge", "archives/a.zip", "archives/a.zip", "both"],
        ["study", "board", "archives", "site"],
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"arms": {"M": "+algo=./mine.py", "AR-SGD": "algo=ar_sgd"}},
        {"arms": {"M": "algo=slowmo algo.base=./mine.py", "AR-SGD": "algo=ar_sgd"}},
        {"arms": {"M": "algo=sgp algo.topology=./mine.py", "AR-SGD": "algo=ar_sgd"}},
        {"arms": {"M": "algo=sgp", "AR-SGD": "algo=ar_sgd"}, "logger": "./mine.py"},
        {
            "arms": {"M": "algo=sgp", "AR-SGD": "algo=ar_sgd"},
            "tune": {"optim.schedule": ["constant"], "data": ["./mine.py", "digits"], "budget": 9},
        },
    ],
)
def test_a_file_that_an_archive_names_does_not_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Sequence[str],
    changes: dict[str, object],
) -> None:
    Path("mine.py").write_text(CODE)
    Path("archives").mkdir()
    without_runs(Path("archives/a.zip"), **changes)
    main(command)
    assert not Path("imported").exists()
    assert (
        "the archive refers to the file './mine.py', but such files are not opened: check it, "
        "and pass your copy with --plugin ./mine.py." in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("cluster=./lab.yaml", "the archive refers to the file './lab.yaml', but such files"),
        ("hydra.searchpath=[/tmp]", "hydra.searchpath: an archive cannot set Hydra's own settings"),
    ],
)
def test_no_folder_or_values_that_an_archive_names_are_read(
    capsys: pytest.CaptureFixture[str], word: str, sentence: str
) -> None:
    Path("lab.yaml").write_text("links: {bandwidth: broken}\n")
    without_runs(Path("a.zip"), arms={"M": f"algo=sgp {word}", "AR-SGD": "algo=ar_sgd"})
    assert main(["study", "verify", "a.zip"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_the_user_names_is_imported_if_it_has_the_recorded_hash(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(made / "results/studies/one/study.zip")
    option = f"--plugin={shutil.copy(made / 'mine.py', 'mine.py')}"
    assert main(["study", "verify", one, "--runs=2", "--seed=12", option]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines[4:]] == ["equal to the byte"] * 2
    assert Path("imported").exists()
    assert main(["study", "merge", one, one, "both", option]) == 0
    Path("archives").mkdir()
    shutil.copy("results/studies/both/study.zip", "archives/both.zip")
    assert main(["study", "board", "archives", "site", "--plugin", "mine.py"]) == 0


def test_a_changed_file_is_refused_before_it_is_imported(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(f"{CODE}# changed\n")
    archive = str(made / "results/studies/one/study.zip")
    assert main(["study", "verify", archive, "--plugin", "./mine.py"]) == 2
    there, here = (loading.file_plugin(str(path)).hash for path in (made / "mine.py", "mine.py"))
    assert capsys.readouterr().err == (
        f"sgp-run: --plugin: mine.py is not imported: its hash is {here[:12]}, and the hash in the "
        f"archive is {there[:12]}. (arm M)\n"
    )
    without_runs(Path("a.zip"))
    assert main(["study", "verify", "a.zip", "--plugin=mine.py"]) == 2
    assert capsys.readouterr().err.endswith("and the hash in the archive is none. (arm M)\n")
    assert not Path("imported").exists()

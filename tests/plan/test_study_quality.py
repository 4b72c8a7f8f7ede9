"""The quality that H costs, read from the folder or the archive of a study."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from sgp_runner.cli.main import main
from sgp_runner.plan.study_quality import read_quality
from sgp_runner.utils.errors import ConfigError

CONTENT = {
    "model": "gpt",
    "nodes": 4,
    "arms": {
        "rare": "algo=diloco algo.period=100",
        "often": "algo=diloco algo.period=10",
        "every step": "algo=ar_sgd",
    },
}
TABLE = """\
arm,settings,measure,cluster,seeds,mean,mean_low,mean_high
rare,optim.lr=0.1,time_to_loss(3),wan_1g,3,100,90,110
rare,optim.lr=0.1,loss,wan_1g,3,2.5,2.4,2.6
rare,optim.lr=0.1,loss,ideal,3,9.9,9.8,9.95
often,,loss,wan_1g,3,2.25,2.2,2.3
every step,,loss,wan_1g,1,2.125,,
"""
PLAN = "plan parameters=1e9 step=1s nodes=2 bandwidth=8Gbit/s methods=ar_sgd"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "h"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"versions": [{}, {"content": CONTENT}]}))
    (folder / "table.csv").write_text(TABLE)
    return folder


def test_losses_are_in_the_order_of_h_as_measured(folder: Path) -> None:
    found = read_quality(folder)
    assert (found.name, found.setting) == ("h", "model=gpt, nodes=4")
    assert [loss.text for loss in found.losses] == [
        "every step, H 1: 2.125 (1 seed)",
        "often, H 10: 2.25 (3 seeds, 95 % from 2.2 to 2.3)",
        "rare, H 100: 2.5 (3 seeds, 95 % from 2.4 to 2.6)",
    ]


def test_an_archive_has_the_losses_of_its_folder(folder: Path) -> None:
    path = folder / "study.zip"
    with ZipFile(path, "w") as archive:
        for name in ("study.json", "table.csv"):
            archive.write(folder / name, f"{name}")
        archive.writestr("runs/one/study.json", "{}")
    assert read_quality(path) == read_quality(folder)


def test_a_plan_shows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN.split(), f"quality={folder}"]) == 0
    assert (
        "Measured in the study h (model=gpt, nodes=4), validation loss by the steps H between "
        "exchanges; other sizes of the model were not measured: - every step, H 1: 2.125 (1 seed) "
        "- often, H 10:"
    ) in " ".join(capsys.readouterr().out.split())


def test_what_is_no_study_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN.split(), f"quality={tmp_path}"]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: quality: {tmp_path} is neither the folder nor the study.zip of a finished "
        "study.\n"
    )
    (folder / "table.csv").write_text(TABLE.replace(",loss,", ",bytes_to_loss(3),"))
    with pytest.raises(ConfigError, match="has no loss: add loss to the measures of the study"):
        read_quality(folder)
    (tmp_path / "study.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="is neither the folder nor the study.zip"):
        read_quality(tmp_path / "study.zip")

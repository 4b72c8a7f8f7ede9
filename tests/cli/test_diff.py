"""``sgp-run diff``: what differs between two runs, and which folders are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.report_runs import COMMIT, write_run

from sgp_runner.cli.main import main

CURVE = [[0.5], [0.75]]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_settings_versions_and_results_that_differ_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_run(tmp_path, "one", CURVE)
    other = write_run(tmp_path, "other", CURVE, algorithm="OSGP", nodes=4, seconds=5.0)
    environment = {"git": {"commit": COMMIT, "dirty": False}, "packages": {"torch": "2.13.0"}}
    (other / "environment.json").write_text(json.dumps(environment))
    assert main(["diff", str(one), str(other)]) == 1
    _, rule, *rows = lines(capsys)
    assert set(rule) == {"─"}
    assert rows == [
        "settings",
        "algo.name SGP OSGP",
        "nodes 2 4",
        "versions",
        "git.dirty True False",
        "packages.torch - 2.13.0",
        "results",
        "algorithm SGP OSGP",
        "time_s 20 10",
    ]


def test_the_first_record_that_differs_is_named_where_the_settings_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (write_run(tmp_path / name, "run", CURVE) for name in ("a", "b"))
    assert main(["diff", str(one), str(other)]) == 0
    assert lines(capsys) == ["The same in both: settings, versions, results."]
    records = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    records[5]["bytes_sent"] = 2001
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    assert main(["diff", str(one), str(other)]) == 1
    assert lines(capsys)[2:] == [
        "results",
        "first different record: rank 1, step 1 bytes_sent 2000 bytes_sent 2001",
        "The same in both: settings, versions.",
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "not the folder of a run: it has no config.yaml."),
        ("[]", "not the folder of a run: its config.yaml cannot be read."),
    ],
)
def test_a_folder_that_is_not_a_run_is_refused(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, "run", CURVE)
    folder = tmp_path / "none"
    folder.mkdir()
    if content is not None:
        (folder / "config.yaml").write_text(content)
    assert main(["diff", str(run), str(folder)]) == 2
    assert capsys.readouterr().err == f"sgp-run: {folder}: {sentence}\n"

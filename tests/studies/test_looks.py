"""Changes of a study after its results: each is a look, and merging keeps them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.studied import CONTENT

from sgp_runner.studies.merging import merged_record
from sgp_runner.studies.study_file import study_of
from sgp_runner.studies.study_record import StudyRecord, has_results, set_down


def ended(folder: Path, seed: int, name: str = "summary") -> None:
    """Write what shows that a run with this seed has ended."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"nodes: 2\nseed: {seed}\nalgo:\n  seed: 1\n")
    (folder / f"{name}.json").write_text("{}")


def test_results_are_the_ends_of_runs_that_decide(tmp_path: Path) -> None:
    for seed in (101, 108, 201, 204):
        ended(tmp_path / f"runs/a{seed}", seed)
    ended(tmp_path / "runs/running", 1, "environment")
    assert not has_results(tmp_path)
    ended(tmp_path / "runs/diverged", 1, "diverged")
    assert has_results(tmp_path)


def test_any_change_after_results_is_a_look_and_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = study_of(CONTENT, "mine")
    assert set_down(study).looks == 1
    other = {**CONTENT, "measures": ["accuracy", "loss"], "amended": "accuracy, before all runs"}
    assert set_down(study_of(other, "mine")).looks == 1
    ended(study.folder / "runs/a", 1)
    third = study_of({**CONTENT, "primary": "SGP", "amended": "the primary is SGP"}, "mine")
    assert (set_down(third).looks, set_down(third).looks) == (2, 2)


def test_a_merged_study_has_the_looks_and_the_amendments_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = {"digest": "1", "content": CONTENT, "amended": "", "started": "2026-01-01"}
    added = {
        **first,
        "digest": "2",
        "amended": "two more seeds",
        "content": {**CONTENT, "seeds": 4},
    }
    renamed = {**first, "digest": "3", "amended": "a better question", "results": False}
    records = [StudyRecord([first, added]), StudyRecord([first, renamed])]
    studies: Any = [
        SimpleNamespace(study=study_of(CONTENT, name), record=record)
        for name, record in zip(("one", "two"), records, strict=True)
    ]
    study = study_of({**CONTENT, "seeds": 4}, "both")
    study.folder.mkdir(parents=True)
    merged = merged_record(study, studies)
    assert merged.looks == 2
    assert merged.amendments == [
        ("2026-01-01", "one: two more seeds"),
        ("2026-01-01", "two: a better question"),
    ]
    assert [source.partition(" ")[0] for source in merged.sources] == ["one", "two"]
    assert {version["digest"] for version in merged.versions} == {study.digest}

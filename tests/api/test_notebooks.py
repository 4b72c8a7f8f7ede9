"""The notebooks of docs/ run in a real kernel, and their stored outputs are whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest

from notebooks import DOCS, NOTEBOOKS, executed, handout

FAST = ("first_comparison", "my_algorithm")


def test_tutorials_and_exercises_are_run() -> None:
    assert [str(path.relative_to(DOCS).with_suffix("")) for path in NOTEBOOKS] == [
        "course/communication",
        "course/consensus",
        "course/debiasing",
        "course/diloco",
        "course/ideas",
        "course/stragglers",
        "notebooks/first_comparison",
        "notebooks/my_algorithm",
        "notebooks/my_network",
    ]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in FAST else pytest.mark.slow) for path in NOTEBOOKS],
    ids=[path.stem for path in NOTEBOOKS],
)
def test_a_notebook_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored, now = nbformat.read(path, as_version=4), executed(path, tmp_path)
    kinds = [
        [
            sorted(output.data)
            for cell in notebook.cells
            for output in cell.get("outputs", ())
            if "data" in output
        ]
        for notebook in (stored, now)
    ]
    assert kinds[0] == kinds[1] and ["image/png", "text/plain"] in kinds[0]
    # Simulated numbers do not depend on the speed of the machine; names of code do on Python.
    assert tables(stored) == tables(now) != []


def test_a_handout_has_neither_solutions_nor_outputs() -> None:
    notebook = handout(DOCS / "course/debiasing.ipynb")
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code"]
    assert "Question 1" in notebook.cells[0].source
    assert [cell.outputs for cell in notebook.cells[1:]] == [[], []]


def tables(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """The data frames that cells show as text, without the digests in other versions of Python."""
    texts = [
        output.data["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "execute_result" and not output.data["text/plain"].startswith("<")
    ]
    if sys.version_info[:2] != (3, 11):
        texts = [re.sub(r"-[0-9a-f]{8}\b", "", text) for text in texts]
    return [sorted(text.splitlines()) for text in texts]

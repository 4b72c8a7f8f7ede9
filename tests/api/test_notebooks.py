"""The notebooks of docs/notebooks run in a real kernel, and their stored outputs are whole."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from notebooks import FOLDER, executed

NAMES = ("first_comparison", "my_algorithm", "my_network")


def test_there_are_no_others() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_is_stored(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.ipynb"
    stored, now = nbformat.read(path, as_version=4), executed(path, tmp_path)
    kinds = [
        [
            sorted(each.data)
            for cell in notebook.cells
            for each in cell.get("outputs", ())
            if "data" in each
        ]
        for notebook in (stored, now)
    ]
    assert kinds[0] == kinds[1] and ["image/png", "text/plain"] in kinds[0]
    # Simulated numbers do not depend on the speed of the machine.
    assert tables(stored) == tables(now) != []


def tables(notebook: nbformat.NotebookNode) -> list[str]:
    """The data frames that cells show as text."""
    return [
        each.data["text/plain"]
        for cell in notebook.cells
        for each in cell.get("outputs", ())
        if each.output_type == "execute_result" and not each.data["text/plain"].startswith("<")
    ]

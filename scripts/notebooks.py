#!/usr/bin/env python
"""Run the notebooks of docs/ in an empty folder, and store their outputs.

With a folder as argument, write the exercises of docs/course there instead, without solutions and
outputs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in ``folder`` and return it with its outputs.

    Raises CellExecutionError if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ["WANDB_MODE"] = "disabled"
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # removes the times of execution
    return notebook


def handout(path: Path) -> nbformat.NotebookNode:
    """Return a notebook without outputs and without the cells tagged as solutions."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells = cells
    return notebook


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        folder.mkdir(parents=True, exist_ok=True)
        for path in DOCS.glob("course/*.ipynb"):
            nbformat.write(handout(path), folder / path.name)
    for path in NOTEBOOKS if not sys.argv[1:] else ():
        with TemporaryDirectory() as empty:
            nbformat.write(executed(path, Path(empty)), path)
        print(path.name, flush=True)

#!/usr/bin/env python
"""Run the notebooks of docs/notebooks in an empty folder, and store their outputs."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"


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


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder)), path)
        print(path.name, flush=True)

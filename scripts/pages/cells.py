"""Notebooks as pages of the site: text, code, tables and pictures of their cells."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ANSI = re.compile(r"\x1b\[[\d;]*m")
COLAB = "https://colab.research.google.com/github"


def pages(
    notebook: Path, name: str, repository: str | None = None
) -> Iterator[tuple[str, str | bytes]]:
    """Yield path and content of the page called ``name``, and of each of its pictures.

    repository: the ``owner/name`` on GitHub from which Colab opens the notebook
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in data:
                picture = f"{name}-{number}.png"
                yield picture, base64.b64decode(data["image/png"])
                parts.append(f"![Figure of the cell above]({Path(picture).name})")
            else:
                parts.append(output_text(data or {"text/plain": "".join(output.get("text", ""))}))
    where = f" [Open it in Colab]({COLAB}/{repository}/blob/main/docs/{name}.ipynb)."
    parts.insert(1, f"[The notebook]({notebook.name}), to run it.{where if repository else ''}")
    yield f"{name}.md", "\n\n".join(filter(None, parts))


def output_text(data: Mapping[str, Any]) -> str:
    """Return a table as HTML, or text without colour codes."""
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        table = re.sub(r"<table[^>]*>", "<table>", table)  # the theme lets these scroll
        return "\n".join(line.strip() for line in table.splitlines() if line.strip())
    text = ANSI.sub("", data.get("text/plain", "")).strip()
    return f"```text\n{text}\n```" if text else ""

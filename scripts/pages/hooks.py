"""Hooks of MkDocs: markers in the pages become tables, code and figures; TeX becomes MathML.

A marker is an HTML comment on a separate line, such as ``<!-- settings: algo=sgp -->``. Readers of
the Markdown do not see it.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import algorithms, api, features, figures, links, settings

PARTS = {
    "api": api.module,
    "code": algorithms.code,
    "commands": lambda _: "",  # instructions for tests/test_docs.py
    "features": features.features,
    "published": algorithms.published_figures,
    "reference": settings.reference,
    "settings": settings.of_choice,
    "tests": algorithms.identities,
}
MARKER = re.compile(r"^<!-- (\w+): (.+) -->$", re.MULTILINE)
TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.+?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside ``docs/``, and a figure of messages for each algorithm."""
    from mkdocs.structure.files import File

    for source, name in links.OUTSIDE.items():
        text = (links.ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))

    for algo, drawing in figures.all_figures():
        files.append(File.generated(config, f"algorithms/{algo}.svg", content=drawing))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the markers of a page and rewrite its links; an unknown marker ends the build."""
    markdown = links.on_site(markdown, page.file.src_uri)
    return MARKER.sub(lambda found: PARTS[found[1]](found[2]), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Write equations as MathML, which needs neither scripts nor fonts."""
    return TEX.sub(mathml, content)


def mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if found[2] == "[" else "inline"
    return str(convert(html.unescape(found[3]).strip(), display=display))

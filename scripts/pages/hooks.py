"""Hooks of MkDocs: pages outside ``docs/``, notebooks, equations as MathML, and ``llms.txt``."""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import cells, links, llms

TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.+?)\\[)\]]</\1>', re.DOTALL)
texts: dict[str, str] = {}  # the Markdown of each page, by its path


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside ``docs/``, and a page with its pictures for each notebook."""
    from mkdocs.structure.files import File

    for source, name in links.OUTSIDE.items():
        text = (links.ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    for notebook in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        name = notebook.relative_to(config.docs_dir).with_suffix("")
        for path, content in cells.pages(notebook, str(name), os.environ.get("GITHUB_REPOSITORY")):
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    texts[page.file.src_uri] = links.on_site(markdown, page.file.src_uri)
    return texts[page.file.src_uri]


def on_page_content(content: str, **_: Any) -> str:
    """Write equations as MathML, which needs neither scripts nor fonts."""
    return TEX.sub(mathml, content)


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, ``llms-full.txt`` and the Markdown of each page."""
    for path, text in llms.files(config.site_name, config.site_description, config.nav, texts):
        place = Path(config.site_dir, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if match[2] == "[" else "inline"
    return str(convert(html.unescape(match[3]).strip(), display=display))

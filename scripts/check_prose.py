#!/usr/bin/env python
"""Check the wording of docstrings, comments, strings and documentation; part of ``make lint``."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md")
CHECKED = (*PAGES, "sgp_runner/**/*.py", "scripts/**/*.py")
AVOIDED = ("nobody", "everybody", "whoever", "goes on", "for good", "anew", "roll call")
# Checked on pages only; instead: "next to", "the server's", "instead of", "in flight", "separate".
AVOIDED_ON_PAGES = (
    *("beside", "meanwhile", "that of", "those of", "in place of", "under way", "of its own"),
    *("of their own", "told apart", "keep apart", "keeps apart", "kept apart", "folded in"),
)
# A part of a page that scripts/write_pages.py writes; its words are checked where they come from.
GENERATED = re.compile(r"^<!-- \w+: .+ -->\n(?:(?!<!-- ).*\n)*<!-- end -->$", re.MULTILINE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}


def findings(lines: list[tuple[int, str]], avoided: Iterable[str] = AVOIDED) -> Iterator[str]:
    """Yield ``line: sentence`` for every phrase to avoid, even if it continues on the next line."""
    text = "\n".join(line for _, line in lines)
    for phrase in avoided:
        for match in re.finditer(rf"\b{phrase}\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            number, _ = lines[text.count("\n", 0, match.start())]
            yield f"{number}: say it without '{phrase}'"


def docstrings(source: str) -> Iterator[str]:
    """Yield ``line: sentence`` for every docstring that begins with "Of" or "What"."""
    for node in (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)):
        if first := re.match(r"(Of|What)\b", ast.get_docstring(node) or ""):
            yield f"{node.body[0].lineno}: begin with a verb or a noun, not with '{first[0]}'"


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of comments and strings, without comment signs and quotes."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXT:
            bare = re.sub(r"""^(#|[a-zA-Z]{0,2}["']+)|["']+$""", "", token.string)
            yield from enumerate(bare.split("\n"), start=token.start[0])


def check(path: Path) -> list[str]:
    """Return the findings of a Python module or a Markdown page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [*docstrings(source), *findings(list(prose(source)))]
    source = GENERATED.sub(lambda part: "\n" * part[0].count("\n"), source)
    numbered = list(enumerate(source.splitlines(), start=1))
    return list(findings(numbered, (*AVOIDED, *AVOIDED_ON_PAGES)))


if __name__ == "__main__":
    paths = sorted({path for pattern in CHECKED for path in ROOT.glob(pattern)} - {Path(__file__)})
    problems = [f"{path.relative_to(ROOT)}:{problem}" for path in paths for problem in check(path)]
    sys.exit("\n".join(problems) or None)

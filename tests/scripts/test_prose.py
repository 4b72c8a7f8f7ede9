"""The check of wording finds every phrase that it is meant to find, and passes a good text."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_prose import AVOIDED, AVOIDED_ON_PAGES, check

GOOD = '''"""Resume a run. Offset and Whatever begin otherwise; a forgoes on is no phrase."""

nobody = None  # a name is no prose


class Run:
    """A run that continues permanently."""
'''


def module(folder: Path, text: str, name: str = "module.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def page(folder: Path, text: str) -> Path:
    return module(folder, text, "page.md")


def test_a_good_text_passes(tmp_path: Path) -> None:
    assert check(module(tmp_path, GOOD)) == []


@pytest.mark.parametrize("first", ["Of", "What"])
def test_docstrings_that_begin_with_a_fragment_are_found(tmp_path: Path, first: str) -> None:
    text = f'"""{first} it is."""\n\n\ndef f() -> None:\n    """{first}\n    that is."""\n'
    sentence = f"begin with a verb or a noun, not with '{first}'"
    assert check(module(tmp_path, text)) == [f"1: {sentence}", f"5: {sentence}"]


@pytest.mark.parametrize("phrase", AVOIDED)
def test_phrases_are_found_in_docstrings_comments_strings_and_pages(
    tmp_path: Path, phrase: str
) -> None:
    text = f'"""A run\n{phrase.title()}."""\n\nx = 1  # it {phrase}\ny = f"it {{x}} {phrase}"\n'
    assert check(module(tmp_path, text)) == [
        f"{line}: say it without '{phrase}'" for line in (2, 4, 5)
    ]
    assert check(page(tmp_path, f"A run\n{phrase}.\n")) == [f"2: say it without '{phrase}'"]


@pytest.mark.parametrize("phrase", AVOIDED_ON_PAGES)
def test_more_phrases_are_found_on_pages_only(tmp_path: Path, phrase: str) -> None:
    assert check(page(tmp_path, f"A run\n{phrase}.\n")) == [f"2: say it without '{phrase}'"]
    assert check(module(tmp_path, f'"""A run {phrase}."""\n')) == []


def test_phrases_are_found_across_the_ends_of_lines(tmp_path: Path) -> None:
    text = 'x = (\n    f"a run goes "\n    "on"\n)\n# lost for\n# good\n'
    assert check(module(tmp_path, text)) == [
        "2: say it without 'goes on'",
        "5: say it without 'for good'",
    ]


def test_generated_parts_of_a_page_are_not_checked(tmp_path: Path) -> None:
    text = "<!-- tests: x -->\n\nbeside\n\n<!-- end -->\n\nIt is beside it.\n"
    assert check(page(tmp_path, text)) == ["7: say it without 'beside'"]

"""The documentation for language models: ``llms.txt`` and ``llms-full.txt`` (llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

Nav = Sequence[str | Mapping[str, "str | Nav"]]
# Lines that do not begin a paragraph of text.
NO_TEXT = re.compile(r"^(?:#|<|!|\||```|    |\[The notebook\])")


def files(name: str, about: str, nav: Nav, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and content: the index, all pages in one file, and each page's Markdown.

    nav: the navigation of ``mkdocs.yml``; its groups are the sections of the index
    texts: Markdown of each page, by path
    """
    index, whole = [f"# {name}\n\n> {about}"], []
    for group in nav:
        for title, inside in group.items() if isinstance(group, Mapping) else ():
            paths = [*pages([inside] if isinstance(inside, str) else inside)]
            index.append("\n".join([f"## {title}\n", *(line(path, texts[path]) for path in paths)]))
            whole += [f"<!-- {path} -->\n\n{texts[path].strip()}" for path in paths]
            yield from ((path, texts[path]) for path in paths)
    yield "llms.txt", "\n\n".join(index) + "\n"
    yield "llms-full.txt", "\n\n".join(whole) + "\n"


def pages(nav: Nav) -> Iterator[str]:
    """Yield the paths of the pages in a navigation, in order."""
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for inside in item.values():
                yield from pages([inside] if isinstance(inside, str) else inside)


def line(path: str, text: str) -> str:
    """Return a page's line in the index: its title and its first sentence."""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    first = next((part for part in text.split("\n\n") if not NO_TEXT.match(part)), "")
    sentence = re.split(r"(?<=[.?])\s", " ".join(first.split()), maxsplit=1)[0]
    summary = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", sentence)
    return f"- [{title[1] if title else path}]({path}): {summary}"

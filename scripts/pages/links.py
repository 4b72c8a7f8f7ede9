"""Links between the site's pages and the rest of the repository.

Pages link to paths in the repository, so that the links work in a clone too. If the site does not
contain a link's target, the link is replaced by its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = PurePosixPath("docs")
# Pages of the site that are not in docs/.
OUTSIDE = {name: f"{name.partition('.')[0].lower()}.md" for name in (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
)}  # fmt: skip
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_site(markdown: str, page: str) -> str:
    """Rewrite the links of the site's ``page`` to files outside ``docs/``.

    Raises FileNotFoundError if a link's target is not in the repository.
    """
    sources = {name: source for source, name in OUTSIDE.items()}
    source = PurePosixPath(sources.get(page, str(DOCS / page)))

    def rewritten(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = PurePosixPath(os.path.normpath(source.parent / link))
        if target.is_relative_to(DOCS):
            place = re.sub(r"\.ipynb$", ".md", str(target.relative_to(DOCS)))
        elif str(target) in OUTSIDE:
            place = OUTSIDE[str(target)]
        elif (ROOT / target).exists():
            return text
        else:
            raise FileNotFoundError(f"{source}: there is no {target}")
        return f"[{text}]({os.path.relpath(place, PurePosixPath(page).parent)}{anchor})"

    parts = FENCED.split(markdown)
    return "".join(part if i % 2 else LINK.sub(rewritten, part) for i, part in enumerate(parts))

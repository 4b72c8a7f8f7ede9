#!/usr/bin/env python3
"""Print the changes of a release, from CHANGELOG.md.

scripts/release_notes.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(changelog: str, version: str) -> str:
    """Return the section of ``version``, without its heading; empty if there is none."""
    match = re.search(rf"^## \[{re.escape(version)}\].*\n((?:(?!## ).*\n)*)", changelog, re.M)
    return "" if match is None else match[1].strip()


def main(tag: str) -> str | None:
    """Print the changes; return an error message if tag, version and changes are inconsistent."""
    code = (ROOT / "sgp_runner/_version.py").read_text(encoding="utf-8")
    version = code.partition('__version__ = "')[2].partition('"')[0]
    if tag != f"v{version}":
        return f"The tag is {tag}, but sgp_runner/_version.py has {version}."
    section = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not section:
        return f"CHANGELOG.md has no section [{version}]."
    print(section)
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

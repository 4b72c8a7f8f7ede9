#!/usr/bin/env python
"""Write the generated parts of docs/: tables, code and figures that come from the package."""

from __future__ import annotations

from pages.fill import DOCS, generated

if __name__ == "__main__":
    for path, text in generated():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{path.relative_to(DOCS)}", flush=True)

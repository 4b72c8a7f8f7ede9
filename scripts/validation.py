#!/usr/bin/env python
"""Write ``docs/validation.md``, which compares simulated times with real ones.

scripts/validation.py     takes a minute
"""

from __future__ import annotations

import sys

from validation.page import PAGE, text


def main() -> int:
    PAGE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

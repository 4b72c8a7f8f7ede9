"""Tests that look for processes read ``/proc``, which only Linux has; elsewhere their modules are
left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
MODULES = HERE.rglob("test_*.py")
collect_ignore = [
    str(path.relative_to(HERE))
    for path in MODULES
    if sys.platform != "linux" and re.search("/proc|ranks_of", path.read_text(encoding="utf-8"))
]

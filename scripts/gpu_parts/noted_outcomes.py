"""A pytest plug-in that records the outcome and the duration of each test as it finishes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpu_parts.for_tests import OUTCOMES


def pytest_runtest_logreport(report: Any) -> None:
    """Record a test's outcome: of its call, or of a set-up that fails or skips it."""
    if report.when != "call" and report.passed:
        return
    line = {
        "test": report.nodeid.partition("::")[2],
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
    }
    if report.failed:
        line["error"] = str(report.longrepr)[-500:]
    with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")

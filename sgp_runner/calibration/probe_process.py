"""The program of one measuring rank: ``python -m sgp_runner.calibration.probe_process FILE``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sgp_runner.assembly import rank_process


def main(arguments: Sequence[str], **sizes: Any) -> int:
    """Measure with the experiment in a file; options ``--plugin=...`` may follow the path."""
    from sgp_runner.calibration.probe import measuring

    return rank_process.main(arguments, partial(measuring, **sizes))


if __name__ == "__main__":
    rank_process.run(main)

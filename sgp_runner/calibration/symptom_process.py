"""A rank of ``sgp-run doctor --measure``: ``python -m sgp_runner.calibration.symptom_process``."""

from __future__ import annotations

from collections.abc import Sequence

from sgp_runner.assembly import rank_process


def main(arguments: Sequence[str]) -> int:
    """Measure with the experiment in a file; options ``--plugin=...`` may follow the path."""
    from sgp_runner.calibration.symptoms import diagnosing

    return rank_process.main(arguments, diagnosing)


if __name__ == "__main__":
    rank_process.run(main)

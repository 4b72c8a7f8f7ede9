"""The program of one rank: ``python -m sgp_runner.calibration.rank_process config.yaml``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sgp_runner.utils.signals import end_at_once, install_in_rank


def main(words: Sequence[str]) -> int:
    from sgp_runner.calibration import rank

    return rank.main(words)


if __name__ == "__main__":
    install_in_rank()
    end_at_once(main(sys.argv[1:]))

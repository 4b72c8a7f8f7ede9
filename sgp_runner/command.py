"""How the smaller commands say what is wrong with their arguments."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says it in one sentence on stderr, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr, flush=True)
        sys.exit(2)

"""Compositions by Hydra, each made once by all the processes of a session of tests.

Hydra takes a tenth of a second, and a copy from a file a thousandth. A composition of this
package's files depends on its overrides alone, so `sgp_runner` makes it once in a process, too.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import hydra
from omegaconf import DictConfig

from sgp_runner.config import composed

FOLDER = "SGP_TEST_COMPOSITIONS"  # the variable that tells the server of ranks


def share(folder: Path) -> None:
    """Read what this process composes from ``folder``, where another one has written it there."""

    def compose(
        config_name: str, overrides: Sequence[str], return_hydra_config: bool = False
    ) -> DictConfig:
        key = hashlib.sha256(repr((overrides, return_hydra_config)).encode()).hexdigest()
        file = folder / key
        fixed = composed.is_fixed(overrides)
        if fixed and file.exists():
            read: DictConfig = pickle.loads(file.read_bytes())
            return read
        config = hydra.compose(config_name, list(overrides), return_hydra_config)
        if fixed:
            part = file.with_suffix(f".{os.getpid()}")
            with suppress(OSError):  # a test may limit the size of files
                part.write_bytes(pickle.dumps(config))
                part.replace(file)
        return config

    composed.compose = compose


if FOLDER in os.environ:  # in the server of ranks, whose forks compose as well
    share(Path(os.environ[FOLDER]))

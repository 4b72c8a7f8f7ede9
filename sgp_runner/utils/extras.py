"""Optional packages, which the extras of this package install."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

from sgp_runner.utils.errors import ConfigError

NEED_TORCH = ("all", "dev", "fairseq", "vision")  # extras with packages that need one torch


def install(extra: str) -> str:
    """Return the command that installs ``extra``.

    Otherwise pip would install the newest torchvision and replace the installed torch to match it.
    """
    command = f"pip install 'sgp-runner[{extra}]'"
    if extra in NEED_TORCH and installed("torch"):
        command += f" torch=={version('torch').partition('+')[0]}"
    return command


def installed(*modules: str) -> bool:
    """Return whether all ``modules`` can be found, without importing them."""
    return all(importlib.util.find_spec(module) for module in modules)


def require(key: str, extra: str, *modules: str, otherwise: str = "") -> None:
    """Raise ConfigError, for ``key`` and with pip's command, unless ``modules`` are installed.

    otherwise: how to do without them
    """
    for module in modules:
        if not installed(module):
            raise ConfigError(key, f"{module} is not installed: {install(extra)}{otherwise}.")

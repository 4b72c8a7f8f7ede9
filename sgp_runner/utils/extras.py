"""Optional packages, which the extras of this package install."""

from __future__ import annotations

import importlib.util

from sgp_runner.utils.errors import ConfigError


def installed(*modules: str) -> bool:
    """Return whether all ``modules`` can be found; none is imported."""
    return all(importlib.util.find_spec(module) for module in modules)


def require(key: str, extra: str, *modules: str, otherwise: str = "") -> None:
    """Raise ConfigError, for ``key`` and with pip's command, unless ``modules`` are installed.

    otherwise: how to do without them
    """
    for module in modules:
        if not installed(module):
            raise ConfigError(
                key, f"{module} is not installed: pip install 'sgp-runner[{extra}]'{otherwise}."
            )

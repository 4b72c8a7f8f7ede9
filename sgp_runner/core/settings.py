"""Range checks of numeric settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from sgp_runner.utils.errors import ConfigError

#: Range -> (end of the error message, test of a number).
RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "[0, 1)": ("must be in [0, 1)", lambda x: 0 <= x < 1),
    "[0, 1]": ("must be between 0 and 1", lambda x: 0 <= x <= 1),
    "[-1, 1]": ("must be between -1 and 1", lambda x: -1 <= x <= 1),
    "(0, 1]": ("must be above 0 and at most 1", lambda x: 0 < x <= 1),
    "positive": ("must be positive and finite", lambda x: 0 < x < inf),
    "not negative": ("must be zero or positive, and finite", lambda x: 0 <= x < inf),
}


def check_range(kind: str, group: str, part: object, *names: str) -> None:
    """Raise ConfigError if one of the settings ``names`` of ``part`` is outside range ``kind``.

    group: prefix of the settings' keys
    """
    sentence, holds = RANGES[kind]
    for name in names:
        if not holds(value := getattr(part, name)):
            raise ConfigError(f"{group}.{name}", f"{value} {sentence}.")

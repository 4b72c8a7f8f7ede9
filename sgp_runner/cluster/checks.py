"""Range checks of machine and fault settings, which raise ConfigError with the key."""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.utils.errors import ConfigError


def check_positive(key: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(key, f"{value} must be positive and finite.")


def check_not_negative(key: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(key, f"{value} must be zero or positive, and finite.")


def check_each_not_negative(settings: object, prefix: str, *names: str) -> None:
    """Raise ConfigError if one of the settings ``names`` is negative; null is allowed."""
    for name in names:
        check_not_negative(f"{prefix}.{name}", getattr(settings, name) or 0.0)


def check_power(key: str, value: float, power: int) -> None:
    """Raise ConfigError unless ``value ** power`` is finite."""
    try:
        _ = value**power
    except OverflowError:
        size = "large" if power > 0 else "small"
        raise ConfigError(key, f"{value} is too {size}: times would not be finite.") from None


def check_rate(key: str, bits_per_second: float) -> None:
    check_positive(key, bits_per_second)
    check_power(key, bits_per_second, -1)


def check_ranks(key: str, values: Mapping[int, float], ranks: int) -> None:
    """Raise ConfigError if ``values`` contains a rank outside 0 to ``ranks - 1``."""
    for rank in values:
        if not 0 <= rank < ranks:
            raise ConfigError(f"{key}.{rank}", f"the run has no such rank; use 0 to {ranks - 1}.")

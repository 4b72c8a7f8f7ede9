"""Human-readable numbers."""

from __future__ import annotations

import math

MINUTE = 60.0
HOUR = 3600.0
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """A time: ``12.3 ms``, ``1.23 s``, ``45 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if not math.isfinite(seconds):
        return str(seconds)
    # Half a step below each limit, or rounding would give "60 s" and "1000 ms".
    if seconds >= HOUR - 0.5:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    if seconds >= MINUTE - 0.05:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    if seconds == int(seconds):
        return f"{int(seconds)} s"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 - 0.0005 else f"{seconds:.3g} s"


def milliseconds(ms: float) -> str:
    """A time in milliseconds, for comparison: ``392 ms``, ``1,304 ms``, ``9.8 ms``."""
    return f"{ms:,.0f} ms" if ms >= 99.95 else f"{ms:.3g} ms"


def num_bytes(count: float) -> str:
    """A size, in powers of 1000 as networks count: ``812 B``, ``1.23 MB``."""
    unit = 0
    while count >= 1000 - 0.5 and unit < len(BYTE_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.3g} {BYTE_UNITS[unit]}"


def percent(fraction: float) -> str:
    """A fraction in [0, 1]: ``97.5 %``."""
    return f"{100 * fraction:.1f} %"


def number(value: object) -> float | None:
    """``value`` if it is a number (not a bool), else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

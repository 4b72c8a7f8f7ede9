"""Human-readable numbers, and settings that may be written with a unit."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from sgp_runner.utils.errors import ConfigError

MINUTE = 60.0
HOUR = 3600.0
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
IN_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}


@dataclass(frozen=True, eq=False)
class Unit:
    """The unit of a setting, and the units in which a user may write the setting.

    name: name of the unit; a number without a unit is in this unit
    example: a number with a unit, for messages
    factors: name of each accepted unit -> its size in the unit ``name``
    """

    name: str
    example: str
    factors: Mapping[str, Fraction]

    @property
    def short(self) -> str:
        """The unit of the example."""
        return self.example.rsplit(" ", 1)[-1].lstrip("0123456789.")

    def number(self, text: str) -> int | float | None:
        """Return ``text`` as a number in this unit, correctly rounded; None for any other text."""
        match = re.fullmatch(r"(\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?) ?(\D+)", text)
        if match is None or match[2] not in self.factors:
            return None
        exact = Fraction(match[1]) * self.factors[match[2]]
        if exact > sys.float_info.max:
            return None
        return int(exact) if exact.denominator == 1 else float(exact)


@dataclass(frozen=True, eq=False)
class UnitInterval:
    """An interval of a setting with a unit, such as ``4..10Gbit/s``.

    unit: unit of both ends
    example: an interval, for messages
    """

    unit: Unit
    example: str

    def number(self, text: str) -> list[int | float] | None:
        """Return both ends of ``text`` in this unit; None for any other text.

        The first end may have a unit too. ``[4Gbit/s,10Gbit/s]`` is the same interval.
        """
        match = re.fullmatch(r"\[?([^\[\],]*?)(?:\.\.|, ?)([^\[\],]*)\]?", text)
        if match is None:
            return None
        first, last = match[1], match[2]
        unit = re.fullmatch(r"[\d.eE+]+", first) and re.search(r" ?[^\d.eE+].*", last)
        ends = [self.unit.number(first + (unit[0] if unit else "")), self.unit.number(last)]
        return [end for end in ends if end is not None] if None not in ends else None


SECONDS = Unit("seconds", "10s or 1ms", IN_SECONDS)
MINUTES = Unit("minutes", "30min", {unit: seconds / 60 for unit, seconds in IN_SECONDS.items()})
BYTES = Unit(
    "bytes",
    "25MB",
    {f"{prefix}B": Fraction(factor) for prefix, factor in PREFIXES.items()}
    | {f"{prefix}iB": Fraction(2 ** (10 * (i + 1))) for i, prefix in enumerate("KMGT")},
)
BITS_PER_SECOND = Unit(
    "bit/s",
    "100Mbit/s",
    {
        prefix + unit: Fraction(factor * bits)
        for prefix, factor in PREFIXES.items()
        for unit, bits in (("bit/s", 1), ("bps", 1), ("B/s", 8))
    },
)

# What a number without a unit probably means: a part of its key -> its unit, the least and the
# largest likely number, and the likely unit.
LIKELY = {
    "bandwidth": ("bit/s", 1e6, math.inf, "Gbit/s"),
    "latency": ("s", 0.0, 1.0, "ms"),
    "delay_seconds": ("s", 0.0, 1.0, "ms"),
    "device_memory": ("B", 1e6, math.inf, "GB"),
    "site_window": ("B", 1e3, math.inf, "MB"),
}

# Types of fields: the numbers of these units.
Seconds = Annotated[float, SECONDS]
Minutes = Annotated[float, MINUTES]
Bytes = Annotated[int, BYTES]
BitsPerSecond = Annotated[float, BITS_PER_SECOND]
RATE_INTERVAL = UnitInterval(BITS_PER_SECOND, "4..10Gbit/s")
BitsPerSecondInterval = Annotated[Sequence[BitsPerSecond], RATE_INTERVAL]


def refuse_unlikely(key: str, value: object) -> None:
    """Raise ConfigError for a number without a unit that is probably a mistake.

    value: of the setting ``key``, or a mapping or list of such values
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            refuse_unlikely(f"{key}.{name}", item)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            refuse_unlikely(f"{key}[{place}]", item)
    elif bare := number(value):
        for part, (unit, least, most, likely) in LIKELY.items():
            if part in key and bare > 0 and not least <= bare <= most:
                raise ConfigError(
                    key,
                    f"{bare:g} without a unit is {bare:g} {unit}: did you mean {bare:g}{likely}? "
                    f"Otherwise write {bare:g}{unit}.",
                )


def duration(seconds: float) -> str:
    """Return a time as text: ``12.3 ms``, ``1.23 s``, ``45 s``, ``2 min 05 s``, ``3 h 07 min``."""
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
    """Return a time as text in milliseconds: ``392 ms``, ``1,304 ms``, ``9.8 ms``."""
    return f"{ms:,.0f} ms" if ms >= 99.95 else f"{ms:.3g} ms"


def num_bytes(count: float) -> str:
    """Return a size as text, in powers of 1000 as usual for networks: ``812 B``, ``1.23 MB``."""
    unit = 0
    while count >= 1000 - 0.5 and unit < len(BYTE_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.3g} {BYTE_UNITS[unit]}"


def bit_rate(bits_per_second: float) -> str:
    """Return a bandwidth as text: ``10 Gbit/s``, ``12.5 Mbit/s``."""
    return with_prefix(bits_per_second, "bit/s")


def bit_rate_range(rates: Sequence[float]) -> str:
    """Return a bandwidth, or the lowest and the highest of a range, as text."""
    return " to ".join(map(bit_rate, rates))


def with_prefix(value: float, unit: str) -> str:
    """Return a number as text with a unit prefix: ``1.23 TFLOP/s``, ``0.5 FLOP/s``."""
    prefix = max(
        (name for name, factor in PREFIXES.items() if factor <= value),
        key=PREFIXES.__getitem__,
        default="",
    )
    return f"{value / PREFIXES[prefix]:.3g} {prefix}{unit}"


def counted(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 node``, ``8 nodes``, ``0.5 epochs``."""
    return f"{count:g} {noun if count == 1 else plural or f'{noun}s'}"


def quoted(names: Iterable[str]) -> str:
    """Return different names in quotes: ``'m', 'v'``."""
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))


def rank_list(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def percent(fraction: float) -> str:
    """Return a fraction in [0, 1] as text: ``97.5 %``."""
    return f"{100 * fraction:.1f} %"


def number(value: object) -> float | None:
    """Return ``value`` if it is a number (not a bool), else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

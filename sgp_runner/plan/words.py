"""Parser of the ``key=value`` arguments of ``sgp-run plan`` and ``doctor``, without Hydra."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.units import (
    BITS_PER_SECOND,
    BYTES,
    PREFIXES,
    RATE_INTERVAL,
    SECONDS,
    refuse_unlikely,
)

Kind = Literal["text", "count", "number", "seconds", "bytes", "rate"]

UNITS = {"seconds": SECONDS, "bytes": BYTES, "rate": BITS_PER_SECOND}
# Short forms of large numbers: 110M or 7B parameters.
SUFFIXES = {**PREFIXES, "B": 10**9}


@dataclass(frozen=True)
class Key:
    """A key of a command.

    kind: count: a positive integer, also as 7e9 or 110M; number: zero or positive; seconds,
        bytes and rate: positive, with a unit; a latency may be 0
    text: description in the help of the command
    zero: whether 0 is allowed
    """

    kind: Kind
    text: str
    zero: bool = False


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a command line.

    values: by key, in the unit of the key: seconds, bytes or bit/s
    passed: arguments passed to ``sgp-run`` unchanged
    """

    values: Mapping[str, float | int | str]
    passed: tuple[str, ...] = ()

    def number(self, key: str) -> float | None:
        """Return the number of ``key``; None if it was not set."""
        value = self.values.get(key)
        return None if value is None else float(value)

    def count(self, key: str) -> int | None:
        """Return the integer value of ``key``; None if it was not set."""
        value = self.values.get(key)
        return None if value is None else int(value)

    def text(self, key: str) -> str | None:
        """Return the text of ``key``; None if it was not set."""
        value = self.values.get(key)
        return None if value is None else str(value)


def read_settings(
    arguments: Sequence[str],
    keys: Mapping[str, Key],
    aliases: Mapping[str, str],
    groups: Sequence[str] = (),
) -> PlanSettings:
    """Read a command line.

    keys: keys of the command
    aliases: other names of keys
    groups: groups of ``sgp-run`` that may also be set, such as ``cluster``
    """
    values: dict[str, float | int | str] = {}
    passed = []
    for word in arguments:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(word, "this is not a setting; write key=value, for example nodes=4.")
        written, name = name, aliases.get(name, name)
        if name.partition(".")[0] in groups:
            refuse_unlikely(name, plain_number(text, short=False))
            passed.append(f"{name}={text}")
        elif name in keys:
            values[name] = value_of(written, text, keys[name])
        else:
            raise ConfigError(
                name, f"there is no such setting here.{nearest(name, keys)} --help lists all."
            )
    return PlanSettings(values, tuple(passed))


def split_options(
    arguments: Sequence[str], options: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Split a command line into positional arguments and (option, value) pairs."""
    positional, values, rest = [], [], iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            positional.append(argument)
        elif option not in options:
            raise ConfigError(option, f"there is no such option; there are {', '.join(options)}.")
        elif not (value := value if equals else next(rest, "")):
            raise ConfigError(option, f"its value is missing, for example {option} out.")
        else:
            values.append((option, value))
    return positional, values


def both_ends(arguments: Sequence[str]) -> list[list[str]]:
    """Return the arguments once for each end of an interval such as bandwidth=4..10Gbit/s."""
    for number, word in enumerate(arguments):
        name, _, text = word.partition("=")
        ends = RATE_INTERVAL.number(text) if name.endswith("bandwidth") else None
        if ends is not None:
            return [
                [*arguments[:number], f"{name}={end}bit/s", *arguments[number + 1 :]]
                for end in ends
            ]
    return [list(arguments)]


def help_lines(keys: Mapping[str, Key]) -> str:
    """Return a help text that describes ``keys``."""
    return "\n".join(
        line
        for name, key in keys.items()
        for line in textwrap.wrap(
            key.text,
            80,
            initial_indent=f"  {name}= ".ljust(24),
            subsequent_indent=" " * 24,
        )
    )


def value_of(name: str, text: str, key: Key) -> float | int | str:
    """Return the value of an argument. Raises ConfigError if ``text`` does not match its kind."""
    if key.kind == "text":
        return text
    refuse_unlikely(name, plain_number(text, short=False))
    unit = UNITS.get(key.kind)
    number = None if unit is None else unit.number(text)
    if number is None:
        number = plain_number(text, unit is None)
    if number is None and key.kind == "rate":
        match = re.fullmatch(r"([\d.]+) ?([kMGT]?).*", text)
        meant = f"{match[1]}{match[2] or 'G'}bit/s" if match and ".." not in text else "10Gbit/s"
        raise ConfigError(name, f"'{text}' is not a rate: write {name}={meant}, for example.")
    if number is None or not isfinite(number):
        example = "7e9 or 110M" if unit is None else unit.example
        what = "negative" if text.startswith("-") and text[1:2].isdigit() else "not a number"
        raise ConfigError(name, f"'{text}' is {what}; write for example {example}.")
    if number < 0 or (number == 0 and not key.zero):
        least = "zero or positive" if key.zero else "positive"
        raise ConfigError(name, f"{text} must be {least}.")
    if key.kind == "count":
        if number != int(number):
            raise ConfigError(name, f"{text} must be a whole number.")
        return int(number)
    return number


def plain_number(text: str, short: bool) -> float | None:
    """Return a number without a unit; None for any other text.

    short: whether a suffix such as M is allowed
    """
    match = re.fullmatch(r"([+-]?\d+(?:_\d+)*(?:\.\d*)?(?:[eE][+-]?\d+)?)([kMGTB]?)", text)
    if match is None or (match[2] and not short):
        return None
    return float(match[1]) * SUFFIXES[match[2]]

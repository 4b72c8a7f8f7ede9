"""The arms of a study as written in its file, with searched or published settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgp_runner.utils.errors import ConfigError, nearest

TRANSFERRED = "transferred"
PUBLISHED = ("of", "at", "settings")  # keys of an arm with published settings


@dataclass(frozen=True)
class Arm:
    """One side of the comparison.

    overrides: the settings that differ from those of the other arms
    of: the searched arm whose published settings this arm uses, transferred to the size of the
        study; empty: this arm is itself searched
    """

    name: str
    overrides: tuple[str, ...]
    of: str = ""


def arms_in(value: object) -> tuple[Arm, ...]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError("arms", "a study needs at least one arm: write sgp: algo=sgp.")
    for name in map(str, value):
        if not name.isprintable():
            raise ConfigError("arms", f"the name '{name}' has characters that cannot be printed.")
    texts = {str(name): text for name, text in value.items() if not isinstance(text, Mapping)}
    return tuple(arm_in(str(name), content, texts) for name, content in value.items())


def arm_in(name: str, content: object, others: Mapping[str, object]) -> Arm:
    """Return an arm with the settings ``content``, or with published settings of another arm."""
    key = f"arms.{name}"
    if not isinstance(content, Mapping):
        return Arm(name, split(key, content))
    if strange := {*map(str, content)} - {*PUBLISHED}:
        raise ConfigError(
            f"{key}.{min(strange)}", f"an arm with published settings has {', '.join(PUBLISHED)}."
        )
    if content.get("at") != TRANSFERRED:
        raise ConfigError(f"{key}.at", f"'{content.get('at')}' is unknown: write {TRANSFERRED}.")
    if not (settings := split(key, content.get("settings"))):
        raise ConfigError(
            f"{key}.settings",
            f"at: {TRANSFERRED} needs the published settings, for example optim.lr=0.05.",
        )
    searched = one_of([*others], f"{key}.of", content.get("of"))
    return Arm(name, (*split(f"arms.{searched}", others[searched]), *settings), searched)


def split(key: str, text: object) -> tuple[str, ...]:
    """Split overrides, quoted as in a shell. Raises ConfigError for other words."""
    overrides = unquoted(key, str(text or ""))
    for word in overrides:
        if "=" not in word:
            raise ConfigError(key, f"'{word}' is not a setting; write key=value, such as algo=sgp.")
    return tuple(overrides)


def unquoted(key: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(key, f"'{text}' cannot be read ({error}).") from None


def one_of(names: Sequence[str], key: str, value: object) -> str:
    if str(value) not in names:
        hint = nearest(str(value), names)
        raise ConfigError(key, f"'{value}' is not an arm: choose from {', '.join(names)}.{hint}")
    return str(value)

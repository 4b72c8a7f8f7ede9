"""Conversion of Python values to command-line overrides."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sgp_runner.config.choices import choice_of, class_of, group_of, has_names
from sgp_runner.config.command_line import quoted
from sgp_runner.config.plugins.from_python import bring
from sgp_runner.config.schema import NAME, is_part, join
from sgp_runner.utils.errors import ConfigError


def split(texts: Sequence[str]) -> list[str]:
    """Split ``texts`` into overrides; a text has one or more overrides, quoted as in a shell."""
    overrides = []
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(
                "settings",
                f"{text!r} is not a string; write 'key=value', or key=value without quotes.",
            )
        try:
            overrides += shlex.split(text)
        except ValueError as error:
            raise ConfigError("settings", f"'{text}' cannot be read ({error}).") from None
    return overrides


def overrides_of(key: str, value: Any) -> Iterator[str]:
    """Yield the overrides that set ``key`` to a Python ``value``.

    A mapping sets the keys below ``key``. A class becomes a choice. An instance becomes a choice
    and sets its fields.
    """
    group = group_of(key)
    if group is not None and (isinstance(value, type) or dataclasses.is_dataclass(value)):
        cls = value if isinstance(value, type) else type(value)
        if has_names(group) or cls is not class_of(group, ""):
            yield f"{key}={choice_of(group, cls) or bring(group, cls)}"
        for field in () if cls is value else dataclasses.fields(value):
            if field.init and (field.name != NAME or not has_names(group)):
                yield from overrides_of(join(key, field.name), getattr(value, field.name))
    elif is_part(key) and (isinstance(value, Mapping) or dataclasses.is_dataclass(value)):
        rest = dict(value if isinstance(value, Mapping) else vars(value))
        if group is not None and has_names(group) and NAME in rest:
            yield from overrides_of(key, rest.pop(NAME))
        for name, inner in rest.items():
            yield from overrides_of(join(key, str(name)), inner)
    else:
        yield f"{key}={literal(value, choice=group is not None)}"


def literal(value: object, choice: bool = False) -> str:
    """Return a value in Hydra's notation.

    choice: whether to leave strings unquoted that may name a choice or a file"""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return repr(int(value))
        case float():
            return repr(float(value))
        case str() | PurePath():
            text = str(value)
            return text if choice and re.fullmatch(r"[\w./~-]+", text) else quoted(text)
        case Mapping():
            return "{" + ",".join(f"{name}: {literal(value[name])}" for name in value) + "}"
        case list() | tuple() | range():
            return "[" + ",".join(map(literal, value)) + "]"
    plain = getattr(value, "tolist", None)  # of numpy and torch
    if callable(plain):
        return literal(plain())
    raise ConfigError("settings", f"{value!r} is not a valid value of a setting.")

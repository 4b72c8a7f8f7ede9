"""Settings as Python values, turned into the words of a command line."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sgp_runner.config.choices import choice_of, class_of, group_of, has_names
from sgp_runner.config.overrides import quoted
from sgp_runner.config.plugins.from_python import bring
from sgp_runner.config.schema import NAME, is_part, join
from sgp_runner.utils.errors import ConfigError


def words_in(texts: Sequence[str]) -> list[str]:
    """The words in ``texts``, each of which has one or several, quoted as in a shell."""
    words = []
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(
                "settings", f"{text!r} is no text; write 'key=value', or key=value without quotes."
            )
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise ConfigError("settings", f"'{text}' cannot be read ({error}).") from None
    return words


def words_of(key: str, value: object) -> Iterator[str]:
    """The words that set ``key`` to a Python ``value``.

    A mapping sets what is below a part, a class or an instance of one chooses it.
    """
    group = group_of(key)
    if group is not None and (isinstance(value, type) or dataclasses.is_dataclass(value)):
        yield from words_of_choice(key, group, value)
    elif isinstance(value, Mapping) and is_part(key):
        rest = dict(value)
        if group is not None and has_names(group) and NAME in rest:
            yield from words_of(key, rest.pop(NAME))
        for name, inner in rest.items():
            yield from words_of(join(key, str(name)), inner)
    else:
        yield f"{key}={literal(value, choice=group is not None)}"


def words_of_choice(key: str, group: str, value: Any) -> Iterator[str]:
    """The words that choose a class, with the settings of an instance."""
    cls = value if isinstance(value, type) else type(value)
    if has_names(group) or cls is not class_of(group, ""):
        yield f"{key}={choice_of(group, cls) or bring(group, cls)}"
    if cls is not value:
        for field in dataclasses.fields(value):
            if field.init and (field.name != NAME or not has_names(group)):
                yield from words_of(join(key, field.name), getattr(value, field.name))


def literal(value: object, choice: bool = False) -> str:
    """A value in Hydra's notation; ``choice``: whether it is the name of one, or a file."""
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
    raise ConfigError("settings", f"{value!r} is no value of a setting.")

"""Checks of a configuration: values against their dataclasses, then the objects built from them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from sgp_runner.config.choices import group_of
from sgp_runner.config.run import Run
from sgp_runner.config.schema import (
    NAME,
    PARTS_OF_PROFILE,
    MissingValue,
    Tree,
    choice_error,
    class_at,
    fields_of,
    has_default,
    is_named,
    join,
    missing,
    too_long,
    unknown_key,
    value_text,
)
from sgp_runner.utils.devices import AUTO
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import MAX_DIGITS, is_too_long
from sgp_runner.utils.units import UnitInterval
from sgp_runner.utils.user_code import user_code_line


@dataclass(frozen=True)
class CheckedPart:
    """The settings of ``cls`` in a configuration, each value converted to its annotated type.

    name: name of the choice, if its group has named choices
    """

    cls: type[Any]
    name: str | None
    values: Mapping[str, object]


def check_tree(tree: Tree) -> CheckedPart:
    """Check a whole run; raise ConfigError for an unknown key, a missing value or a wrong type."""
    return check_part(tree, "", Run, tree)


def check_part(node: Tree, key: str, cls: type[Any], root: Tree) -> CheckedPart:
    """Return ``node`` as a part of ``cls``, with every value converted to its annotated type.

    For a float, 1 becomes 1.0, so that both spellings identify the same run. Missing values are
    reported last, because a misspelt key may be the cause.
    """
    fields, named = fields_of(cls, key), is_named(key)
    needed = (name for name in fields if not has_default(fields[name]))
    node = {name: {} for name in needed if join(key, name) in PARTS_OF_PROFILE} | dict(node)
    values, absent = {}, None
    for name, value in node.items():
        if name == NAME and named:
            continue
        if name not in fields:
            raise unknown_key(join(key, name), root, [join(key, field) for field in fields])
        try:
            values[name] = check(value, annotation(cls, fields[name]), join(key, name), root)
        except MissingValue as error:
            absent = absent or error
    if absent is not None:
        raise absent
    for name, field in fields.items():
        if name not in node and not has_default(field):
            raise (
                choice_error(join(key, name), None)
                if group_of(join(key, name))
                else missing(join(key, name))
            )
    return CheckedPart(cls, str(node[NAME]) if named else None, values)


def annotation(cls: type[Any], field: dataclasses.Field[Any]) -> Any:
    """Return the type of a field of ``cls``, which the class or one of its bases annotates.

    The type is ``object`` if it has a name that is imported for type checkers only. A field with
    such a type holds a part; the part's class follows from its key and ``name``.
    """
    bases = (base for base in cls.__mro__ if field.name in vars(base).get("__annotations__", ()))
    return resolved(next(bases).__module__, field)


@functools.cache
def resolved(module: str, field: dataclasses.Field[Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        names = vars(importlib.import_module(module))
        return typing.get_type_hints(holder, names, include_extras=True)[field.name]
    except NameError:
        return object


def check(value: object, hint: Any, key: str, root: Tree) -> object:
    """Return ``value`` converted to the type ``hint``. Raises ConfigError if it does not fit."""
    kind, arms = kind_of(hint)
    if kind is Union:
        for arm in arms:
            with contextlib.suppress(ConfigError):
                return check(value, arm, key, root)
    elif kind is Annotated:
        number = arms[1].number(value) if isinstance(value, str) else value
        if isinstance(number, int | float | list):
            return check(number, arms[0], key, root)
    elif kind is Literal:
        if any(value == arm and type(value) is type(arm) for arm in arms):
            return value
        choices = [str(arm) for arm in arms]
        raise ConfigError(
            key,
            f"{value_text(value)} is not one of {', '.join(choices)}."
            f"{nearest(str(value), choices)}",
        )
    elif kind is types.NoneType:
        if value is None:
            return None
    elif kind is Mapping:
        if isinstance(value, Mapping):
            return {
                check_name(name, arms[0], key): check(
                    value[name], arms[1], join(key, str(name)), root
                )
                for name in value
            }
    elif kind in (Sequence, tuple, list):
        if isinstance(value, list):
            return [check(item, arms[0], f"{key}[{i}]", root) for i, item in enumerate(value)]
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return finite(value, key)
    elif kind in (bool, int, str):
        if type(value) is kind and not is_too_long(value):
            return value
        if kind is str and value is not None:
            raise ConfigError(
                key, f"""{value_text(value)} is not text; quote it: "{key}='{value}'"."""
            )
    elif isinstance(value, Mapping):
        cls: Any = kind if dataclasses.is_dataclass(kind) else class_at(value, key)
        if cls is None:
            raise choice_error(key, value.get(NAME))
        return check_part(value, key, cls, root)
    else:
        raise choice_error(key, value)
    if value is None:
        raise missing(key)
    if int in (kind, *arms, *(part for arm in arms for part in kind_of(arm)[1])):
        if isinstance(value, float) and value.is_integer():  # 7e9
            return check(int(value), hint, key, root)
        if is_too_long(value):
            raise too_long(key)
    raise ConfigError(key, f"{value_text(value)} is not {words_for(hint)}.")


def kind_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type into origin and arguments: ``list[int]`` gives ``list, (int,)``.

    The origin of every union, including ``X | Y``, is ``Union``."""
    kind = typing.get_origin(hint) or hint
    return Union if kind is types.UnionType else kind, typing.get_args(hint)


def finite(value: float, key: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(key, f"{value} must be finite.")
    return number


def check_name(name: object, hint: Any, key: str) -> object:
    """Return the key ``name`` of a mapping, converted to the type ``hint``.

    A key from a dotted name (``cluster.compute.node_factors.3=2``) is text before the conversion.
    """
    if hint is int and isinstance(name, str) and name.isdecimal() and len(name) <= MAX_DIGITS:
        return int(name)
    if type(name) is not hint:
        raise ConfigError(
            key, f"{value_text(name)} is not {words_for(hint)}; write {key}={{0: ...}}."
        )
    if is_too_long(name):
        raise too_long(key)
    return name


def build(part: CheckedPart, key: str) -> object:
    """Build the object for a checked part, inner parts first.

    A field ``name`` of the class is set to the name of the choice.
    """
    values = {name: built(value, join(key, name)) for name, value in part.values.items()}
    named = {NAME: part.name} if part.name is not None and NAME in fields_of(part.cls, "") else {}
    try:
        return part.cls(**values, **named)
    except ConfigError as error:
        # The key of the error is relative to the part: algo.tau may be algo.base.tau.
        field = error.key.rpartition(".")[2]
        raise ConfigError(
            join(key, field) if key and field in values else error.key, error.sentence
        ) from None
    except Exception as error:
        raise ConfigError(
            key or "settings",
            f"these settings conflict ({type(error).__name__}: {error}){user_code_line(error)}.",
        ) from error


def built(value: object, key: str) -> object:
    if isinstance(value, CheckedPart):
        return build(value, key)
    return (
        tuple(built(item, f"{key}[{i}]") for i, item in enumerate(value))
        if isinstance(value, list)
        else value
    )


def plain(part: CheckedPart, instance: object) -> dict[str, object]:
    """Return ``part`` as plain values for config.yaml.

    instance: the object built from ``part``; settings that are null or ``auto`` are replaced by its
        attributes, such as the checksum of a file or the detected device
    """
    named = {} if part.name is None else {NAME: part.name}
    return named | {
        name: plain_value(value, getattr(instance, name)) for name, value in part.values.items()
    }


def plain_value(value: object, attribute: Any) -> object:
    if isinstance(value, list):
        return [plain_value(item, other) for item, other in zip(value, attribute, strict=True)]
    return (
        plain(value, attribute)
        if isinstance(value, CheckedPart)
        else attribute
        if value in (None, AUTO)
        else value
    )


def words_for(hint: Any) -> str:
    """Describe a type in words that can follow "is not"."""
    kind, arms = kind_of(hint)
    if kind is Union:
        return " or ".join(words_for(arm) for arm in arms)
    if kind is Annotated and isinstance(arms[1], UnitInterval):
        return f"an interval such as {arms[1].example}"
    if kind is Annotated:
        return f"{words_for(arms[0])} in {arms[1].name} (such as {arms[1].example})"
    if kind is Literal:
        return f"{'one of ' * (len(arms) > 1)}{', '.join(map(str, arms))}"
    if kind is Mapping:
        return "a mapping such as {0: 2}" if arms[0] is int else "a mapping such as {name: 2}"
    if kind in (Sequence, tuple, list):
        inner, parts = kind_of(arms[0])
        unit = parts[1].short if inner is Annotated else ""
        return f"a list such as [1{unit},2{unit}]"
    return {
        types.NoneType: "null",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }.get(kind, "text")

"""From a configuration tree to validated objects.

Every part of the tree is a frozen dataclass of this package, whose fields are the schema: they
alone define the keys, their types and their defaults. Where a group has several classes, ``name``
selects one: ``algo: {name: sgp}``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, Union

from sgp_runner.config import corrections
from sgp_runner.config.choices import (
    class_of,
    extension_of,
    group_of,
    groups,
    has_names,
)
from sgp_runner.config.experiment import NOT_IN_NAME, Experiment
from sgp_runner.config.plugins import loading as plugins
from sgp_runner.config.plugins.composition import default_part
from sgp_runner.config.plugins.from_python import IN_MEMORY, InMemory
from sgp_runner.config.plugins.loading import Plugin
from sgp_runner.config.run import Run
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import MAX_DIGITS, is_too_long, read_yaml
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.user_code import user_code_line

NAME = "name"
IDENTITY = (corrections.KEY, plugins.KEY)  # beside the settings
FORMAT = 2  # of a stored configuration
PROFILE = "cluster"  # its files are data, not choices of code: omitted keys are not stored
# Parts of a run that have one class each and no group of choices.
OWN_PARTS = {
    field.name: type(field.default)
    for field in dataclasses.fields(Run)
    if dataclasses.is_dataclass(field.default)
}
Tree = Mapping[str, object]


@dataclass(frozen=True)
class CheckedPart:
    """The settings of ``cls`` in a configuration, each value as its annotation wants it.

    name: of the choice, where its group has names.
    """

    cls: type[Any]
    name: str | None
    values: Mapping[str, object]


def make_experiment(tree: Tree, group: str | None = None) -> Experiment:
    """The experiment that a resolved configuration describes; ``group`` is its sweep.

    Raises ConfigError for an unknown key, a value of the wrong type, a missing value, or settings
    that do not go together.
    """
    refuse_secrets(tree, "")
    plugins.check_stored(tree.get(plugins.KEY, {}))
    part = check_tree({key: value for key, value in tree.items() if key not in IDENTITY})
    run = build(part, "")
    assert isinstance(run, Run)
    config = plain(part, run)
    version = tree.get(corrections.KEY, corrections.results_version(config))
    found = list(extensions_in(part, ""))
    refuse_in_memory(run, found)
    used = [(key, each) for key, each in found if each.hash is not None]
    hashes = plugins.hashes(plugin for key, plugin in used if key not in NOT_IN_NAME)
    identity = {corrections.KEY: version, plugins.KEY: hashes}
    config |= {key: value for key, value in identity.items() if value}
    return Experiment(run, config, group, plugins=list(dict.fromkeys(plugin for _, plugin in used)))


def extensions_in(part: CheckedPart, key: str) -> Iterator[tuple[str, Plugin | InMemory]]:
    """The key of each part whose class a plug-in or a Python program brings, and which."""
    extension = extension_of(group_of(key) or "", part.name or "")
    if isinstance(extension, Plugin | InMemory):
        yield key, extension
    for name, value in part.values.items():
        if isinstance(value, CheckedPart):
            yield from extensions_in(value, join(key, name))


def refuse_in_memory(run: Run, found: Sequence[tuple[str, Plugin | InMemory]]) -> None:
    """Raise ConfigError if processes of a real run would need what a Python program brings."""
    for key, extension in found:
        if isinstance(extension, InMemory) and run.network.clock == "wall":
            raise ConfigError(
                key,
                f"{extension.title} is in the memory of this program, where the processes of "
                f"network={run.network.name} cannot see it: use network=sim, or write it as a "
                f"plug-in, {key}=./mine.py.",
            )


def load_experiment(path: Path, group: str | None) -> Experiment:
    """The experiment stored in the file ``path``, with the same name as the original."""
    try:
        tree = read_yaml(path)
    except (OSError, ValueError):
        tree = None
    if not isinstance(tree, dict):
        raise ConfigError("config.yaml", f"{path} is not the configuration of a run.")
    return from_stored(tree, path, group)


def from_stored(tree: Tree, path: Path, group: str | None = None) -> Experiment:
    """The experiment that the stored configuration ``tree`` in ``path`` describes.

    Raises ConfigError for one of another format.
    """
    if tree.get("format") != FORMAT:
        raise ConfigError(
            "config.yaml",
            f"{path} was written by another version of sgp-run, which this one cannot read: "
            "run it again.",
        )
    return make_experiment(
        {corrections.KEY: 0, **{key: value for key, value in tree.items() if key != "format"}},
        group,
    )


def stored(experiment: Experiment) -> dict[str, object]:
    """The configuration as `from_stored` reads it."""
    return {"format": FORMAT, **experiment.config}


def completed(node: Tree, key: str = "") -> dict[str, object]:
    """``node`` with the defaults of its class and of its parts, in the order of their fields."""
    cls = class_at(node, key)
    fields = {} if cls is None else fields_of(cls, key)
    given = {**{name: {} for name in OWN_PARTS if not key}, **node}
    if not key:
        given |= brought_by_algorithm(given)
    given = {
        name: completed(value, inner) if is_node(value, inner := join(key, name)) else value
        for name, value in given.items()
    }
    if key == PROFILE:
        return given
    defaults = {
        name: default_at(field, join(key, name))
        for name, field in fields.items()
        if has_default(field)
    }
    names = [
        name
        for name in ([NAME] if is_named(key) else []) + list(fields)
        if name in given or name in defaults
    ]
    return {name: given.get(name, defaults.get(name)) for name in names} | given


def brought_by_algorithm(tree: Tree) -> dict[str, object]:
    """The part ``optim`` of a run, if it is SGD, with defaults that its algorithm has for it."""
    algo, optim = tree.get("algo"), tree.get("optim")
    if not isinstance(algo, Mapping) or not isinstance(optim, Mapping) or optim.get(NAME) != "sgd":
        return {}
    cls = class_at(algo, "algo")
    return {"optim": {**getattr(cls, "sgd_defaults", {}), **optim}}


def is_node(value: object, key: str) -> TypeGuard[Tree]:
    """Whether ``value`` is a part, which has a class; other mappings are values."""
    return isinstance(value, Mapping) and is_part(key)


def is_part(key: str) -> bool:
    return group_of(key) is not None or key in OWN_PARTS


def class_at(node: Tree, key: str) -> type[Any] | None:
    """The dataclass of the part ``node`` at ``key``; None if its group has no such name."""
    group = group_of(key)
    return (
        (OWN_PARTS.get(key) if key else Run)
        if group is None
        else class_of(group, str(node.get(NAME)))
    )


def fields_of(cls: type[Any], key: str) -> Mapping[str, dataclasses.Field[Any]]:
    """The settings of ``cls`` at ``key``, where ``name`` may be the choice itself."""
    return {
        field.name: field
        for field in dataclasses.fields(cls)
        if field.name != NAME or not is_named(key)
    }


def has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def default_at(field: dataclasses.Field[Any], key: str) -> object:
    """The default of the setting ``key``; that of a part is a tree."""
    value, group = default_of(field), group_of(key)
    if group is None or not dataclasses.is_dataclass(value):
        return value
    tree = default_part(group, field)
    return completed({NAME: tree.pop(NAME, None), **tree}, key)


def default_of(field: dataclasses.Field[Any]) -> object:
    """The default as it would stand in a file."""
    value = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    return list(value) if isinstance(value, tuple) else value


def check_tree(tree: Tree) -> CheckedPart:
    """Check a whole run; raise ConfigError for what no run can have, whatever else is set."""
    return check_part(tree, "", Run, tree)


def check_part(node: Tree, key: str, cls: type[Any], root: Tree) -> CheckedPart:
    """``node`` as a part of ``cls``, with every value as its annotation wants it.

    1 becomes 1.0 for a float, so that both name the same run.
    """
    fields, named = fields_of(cls, key), is_named(key)
    values = {}
    for name, value in node.items():
        if name == NAME and named:
            continue
        if name not in fields:
            raise unknown_key(join(key, name), root, [join(key, field) for field in fields])
        values[name] = check(value, annotation(cls, fields[name]), join(key, name), root)
    for name, field in fields.items():
        if name not in node and not has_default(field):
            raise (
                choice_error(join(key, name), None)
                if group_of(join(key, name))
                else missing(join(key, name))
            )
    return CheckedPart(cls, str(node[NAME]) if named else None, values)


def is_named(key: str) -> bool:
    """Whether ``name`` selects the class at ``key``."""
    group = group_of(key)
    return group is not None and has_names(group)


def annotation(cls: type[Any], field: dataclasses.Field[Any]) -> Any:
    """The type of a field; ``object`` where only type checkers know the name.

    That is the case for parts that have a class.
    """
    holder = types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        names = vars(importlib.import_module(cls.__module__))
        return typing.get_type_hints(holder, names, include_extras=True)[field.name]
    except NameError:
        return object


def check(value: object, hint: Any, key: str, root: Tree) -> object:
    """``value`` as ``hint`` wants it; raises ConfigError for ``key`` if it does not fit."""
    kind, arms = kind_of(hint)
    if kind is Union:
        for arm in arms:
            with contextlib.suppress(ConfigError):
                return check(value, arm, key, root)
    elif kind is Annotated:
        number = arms[1].number(value) if isinstance(value, str) else value
        if isinstance(number, int | float):
            return check(number, arms[0], key, root)
    elif kind is Literal:
        if any(value == arm and type(value) is type(arm) for arm in arms):
            return value
        choices = [str(arm) for arm in arms]
        raise ConfigError(
            key, f"{shown(value)} is none of {', '.join(choices)}.{nearest(str(value), choices)}"
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
            return [check(each, arms[0], f"{key}[{i}]", root) for i, each in enumerate(value)]
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return finite(value, key)
    elif kind in (bool, int, str):
        if type(value) is kind and not is_too_long(value):
            return value
        if kind is str and value is not None:
            raise ConfigError(key, f"""{shown(value)} is not text; quote it: "{key}='{value}'".""")
    elif isinstance(value, Mapping):
        cls: Any = kind if dataclasses.is_dataclass(kind) else class_at(value, key)
        if cls is None:
            raise choice_error(key, value.get(NAME))
        return check_part(value, key, cls, root)
    else:
        raise choice_error(key, value)
    if value is None:
        raise missing(key)
    if int in (kind, *arms):
        if isinstance(value, float) and value.is_integer():  # 7e9
            return check(int(value), hint, key, root)
        if is_too_long(value):
            raise too_long(key)
    raise ConfigError(key, f"{shown(value)} is not {words_for(hint)}.")


def kind_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """``list[int]`` -> ``list, (int,)``; both notations of a union are ``Union``."""
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
    """A key of a mapping as ``hint`` wants it.

    A key set by its dotted name (``cluster.node_factors.3=2``) is text that may be a number.
    """
    if hint is int and isinstance(name, str) and name.isdecimal() and len(name) <= MAX_DIGITS:
        return int(name)
    if type(name) is not hint:
        raise ConfigError(key, f"{shown(name)} is not {words_for(hint)}; write {key}={{0: ...}}.")
    if is_too_long(name):
        raise too_long(key)
    return name


def build(part: CheckedPart, key: str) -> object:
    """The object of a checked part, inner parts first.

    A class with a field ``name`` receives its choice.
    """
    values = {name: built(value, join(key, name)) for name, value in part.values.items()}
    named = {NAME: part.name} if part.name is not None and NAME in fields_of(part.cls, "") else {}
    try:
        return part.cls(**values, **named)
    except ConfigError as error:
        # A part does not know where it is used: algo.tau may be algo.base.tau.
        field = error.key.rpartition(".")[2]
        raise ConfigError(
            join(key, field) if key and field in values else error.key, error.sentence
        ) from None
    except Exception as error:
        raise ConfigError(
            key or "settings",
            f"these do not go together ({type(error).__name__}: {error}){user_code_line(error)}.",
        ) from error


def built(value: object, key: str) -> object:
    if isinstance(value, CheckedPart):
        return build(value, key)
    return (
        tuple(built(each, f"{key}[{i}]") for i, each in enumerate(value))
        if isinstance(value, list)
        else value
    )


def plain(part: CheckedPart, made: object) -> dict[str, object]:
    """``part`` as it is stored.

    A null becomes the value that ``made``, built from the part, has put there, such as the checksum
    of a file.
    """
    named = {} if part.name is None else {NAME: part.name}
    return named | {
        name: plain_value(value, getattr(made, name)) for name, value in part.values.items()
    }


def plain_value(value: object, made: Any) -> object:
    if isinstance(value, list):
        return [plain_value(each, other) for each, other in zip(value, made, strict=True)]
    return (
        plain(value, made) if isinstance(value, CheckedPart) else made if value is None else value
    )


def unknown_key(key: str, root: Tree, siblings: Sequence[str] = ()) -> ConfigError:
    """An error that suggests the most similar key, or lists the keys there are.

    siblings: the keys beside it, if ``root`` does not have them.
    """
    parent, _, word = key.rpartition(".")
    everywhere = list(keys_of(completed(root), ""))
    siblings = list(siblings) or [
        other for other in everywhere if other.rpartition(".")[0] == parent
    ]
    siblings += ["experiment"] if not parent else []
    same = [other for other in everywhere if last(other) == word]
    close = same or similar(word, siblings or everywhere)
    if close:
        return ConfigError(key, f"there is no such setting. Did you mean '{close[0]}'?")
    have = (
        f"{parent or 'a run'} has {', '.join(map(last, siblings))}"
        if siblings
        else f"{parent} has no settings"
    )
    return ConfigError(key, f"there is no such setting; {have}.")


def keys_of(node: Tree, parent: str) -> Iterator[str]:
    """Every dotted key below ``node`` that is a setting, outer ones first."""
    cls = class_at(node, parent)
    names = node if cls is None else fields_of(cls, parent)
    yield from (join(parent, str(name)) for name in names)
    for name in names:
        value = node.get(name)
        if isinstance(value, Mapping):
            yield from keys_of(value, join(parent, str(name)))


def similar(word: str, keys: Sequence[str]) -> list[str]:
    """The key whose last part is closest to ``word``, if any is close."""
    close = difflib.get_close_matches(word.lower(), map(last, keys), n=1, cutoff=0.6)
    return [key for key in keys if last(key) in close]


def choice_error(key: str, value: object) -> ConfigError:
    """The error for a part that has to be chosen from a group."""
    group = group_of(key)
    if group is None:
        return ConfigError(key, f"{shown(value)} is not a set of settings.")
    if value == IN_MEMORY:
        return ConfigError(key, f"this run used a {group} {plugins.GONE}")
    choices = groups()[group]
    if (plugin := extension_of(group, str(value))) is not None:
        return ConfigError(
            key,
            f"the plug-in {plugin.name} names no class for '{value}': add it to CHOICES of its "
            "__init__.py.",
        )
    if value in choices:
        place = f"{group}@{key}" if "." in key else key
        return ConfigError(
            key,
            f"'{value}' is a choice, which a file makes in its defaults list, with a line "
            f"'- override /{place}: {value}' under 'defaults:'.",
        )
    close = nearest(value, choices) if isinstance(value, str) else ""
    if value is None:
        return ConfigError(key, f"nothing is chosen; use one of {', '.join(choices)}.")
    return ConfigError(key, f"{shown(value)} is none of {', '.join(choices)}.{close}")


def too_long(key: str) -> ConfigError:
    """Return the error of a whole number that could not be read from a file again."""
    return ConfigError(key, f"a whole number has at most {MAX_DIGITS} digits: use a smaller one.")


def missing(key: str) -> ConfigError:
    return ConfigError(key, f"it has no value; write {key}=...")


def words_for(hint: Any) -> str:
    """A type in words, as in "is not ..."."""
    kind, arms = kind_of(hint)
    if kind is Union:
        return " or ".join(words_for(arm) for arm in arms)
    if kind is Annotated:
        return f"{words_for(arms[0])} in {arms[1].name} (such as {arms[1].example})"
    if kind is Literal:
        return f"one of {', '.join(map(str, arms))}"
    if kind is Mapping:
        return "a mapping such as {0: 2}" if arms[0] is int else "a mapping such as {name: 2}"
    if kind in (Sequence, tuple, list):
        return "a list such as [1,2]"
    return {
        types.NoneType: "null",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }.get(kind, "text")


def shown(value: object) -> str:
    """A value as a person would type it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def last(key: str) -> str:
    return key.rpartition(".")[2]

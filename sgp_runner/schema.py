"""From a configuration tree to validated objects.

Every part of the tree stands for a frozen dataclass of this package, whose fields and annotations are the schema: nothing else says which
keys exist and what they may hold. In ``configs/``, and so in what Hydra composes, ``_target_`` names the class. What is stored has the name
of the choice instead, ``name: sgp``, where there are several, so that classes may move.
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
from pathlib import Path
from typing import Any, Literal, Union

from sgp_runner import corrections
from sgp_runner.credentials import refuse_secrets
from sgp_runner.errors import ConfigError, nearest
from sgp_runner.groups import classes, group_of, groups, has_one_class
from sgp_runner.run import Experiment, Run

TARGET, NAME = "_target_", "name"
FORMAT = 2  # of a stored configuration
Tree = Mapping[str, object]


def make_experiment(tree: Tree, group: str | None = None) -> Experiment:
    """The experiment that a resolved configuration describes; ``group`` is the sweep it belongs to.

    Raises ConfigError for an unknown key, a value of the wrong type, a missing value, or settings that do not go together.
    """
    settings = {key: value for key, value in tree.items() if key != corrections.KEY}
    config = check_node(settings, "", settings)
    refuse_secrets(config, "")
    run = build(config, "")
    assert isinstance(run, Run)
    named = with_names(recorded(config, run), "")
    version = tree.get(corrections.KEY, corrections.results_version(named))
    return Experiment(run, {**named, corrections.KEY: version} if version else named, group)


def load_experiment(path: Path, group: str | None) -> Experiment:
    """The experiment whose ``config.yaml`` this is, with the same name as the original."""
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        tree = None
    if not isinstance(tree, dict):
        raise ConfigError("config.yaml", f"{path} is not the configuration of a run.")
    return from_stored(tree, path, group)


def from_stored(tree: Tree, path: Path, group: str | None = None) -> Experiment:
    """The experiment that the stored configuration ``tree`` in ``path`` describes. Raises ConfigError for one of another format."""
    if tree.get("format") != FORMAT or f"'{TARGET}':" in str(tree):
        raise ConfigError("config.yaml", f"{path} was written by another version of sgp-run, which this one cannot read: run it again.")
    return make_experiment({corrections.KEY: 0, **{key: value for key, value in tree.items() if key != "format"}}, group)


def stored(experiment: Experiment) -> dict[str, object]:
    """The configuration as `from_stored` reads it."""
    return {"format": FORMAT, **experiment.config}


def check_node(node: Tree, key: str, root: Tree) -> dict[str, object]:
    """``node`` with every value as its annotation wants it (1 becomes 1.0 for a float, so that both name the same run)."""
    node = with_class(node, key)
    cls = target_of(node, key)
    check_place(cls, key)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    out: dict[str, object] = {TARGET: node[TARGET]}
    for name, value in node.items():
        if name == TARGET:
            continue
        if name not in fields:
            raise unknown_key(join(key, name), root, [join(key, field) for field in fields])
        out[name] = check(value, annotation(cls, fields[name]), join(key, name), root)
    for name, field in fields.items():
        if name not in node and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise choice_error(join(key, name), None) if group_of(join(key, name)) else missing(join(key, name))
    return out


def with_class(node: Tree, key: str) -> Tree:
    """``node`` with the class that the name of its choice, or its place alone, stands for."""
    group = group_of(key)
    if TARGET in node or (key and group is None):
        return node
    if group is None:
        return {TARGET: f"{Run.__module__}.{Run.__qualname__}", **node}
    known = classes(group)
    if has_one_class(group):
        return {TARGET: next(iter(known.values())), **node}
    if node.get(NAME) not in known:
        raise choice_error(key, node.get(NAME))
    return {TARGET: known[str(node[NAME])], **{name: value for name, value in node.items() if name != NAME}}


def with_names(node: Tree, key: str) -> dict[str, object]:
    """``node`` without classes, and with the names of choices where they tell classes apart."""
    group = group_of(key)
    chosen = {} if group is None or has_one_class(group) else {NAME: next(k for k, v in classes(group).items() if v == node[TARGET])}
    return chosen | {name: without_classes(value, join(key, name)) for name, value in node.items() if name != TARGET}


def without_classes(value: object, key: str) -> object:
    if isinstance(value, list):
        return [without_classes(each, f"{key}[{i}]") for i, each in enumerate(value)]
    return with_names(value, key) if isinstance(value, Mapping) and TARGET in value else value


def is_part(key: str) -> bool:
    """Whether a class stands at ``key``; other mappings there are values."""
    return group_of(key) is not None or key in {field.name for field in dataclasses.fields(Run) if dataclasses.is_dataclass(field.default)}


def target_of(node: Tree, key: str) -> type[Any]:
    """The dataclass that ``node`` stands for."""
    name = node.get(TARGET)
    if name is None:
        raise choice_error(key, None)
    module, _, word = str(name).rpartition(".")
    if not module.startswith("sgp_runner."):
        raise ConfigError(join(key, TARGET), f"'{name}' is refused: only classes of sgp_runner can be configured.")
    try:
        cls = getattr(importlib.import_module(module), word, None)
    except ImportError:
        cls = None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and getattr(cls, "__dataclass_params__").frozen):  # noqa: B009
        raise ConfigError(join(key, TARGET), f"'{name}' is not a frozen dataclass of sgp_runner.")
    return cls


def check_place(cls: type[Any], key: str) -> None:
    """Raises ConfigError for a class that does not belong at ``key``."""
    group = group_of(key)
    if not key and cls is not Run:
        raise ConfigError(TARGET, f"a configuration describes a sgp_runner.run.Run, not a {cls.__name__}.")
    if group is not None and f"{cls.__module__}.{cls.__name__}" not in classes(group).values():
        raise ConfigError(join(key, TARGET), f"{cls.__name__} does not belong here; choose with {key}={'|'.join(groups()[group])}.")


def annotation(cls: type[Any], field: dataclasses.Field[Any]) -> Any:
    """The type of a field; ``object`` where its name is only known to type checkers, as those of parts with a class are."""
    holder = types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        return typing.get_type_hints(holder, vars(importlib.import_module(cls.__module__)))[field.name]
    except NameError:
        return object


def check(value: object, hint: Any, key: str, root: Tree) -> object:
    """``value`` as ``hint`` wants it; a ConfigError for ``key`` if it does not fit."""
    kind, arms = kind_of(hint)
    if kind is Union:
        for arm in arms:
            with contextlib.suppress(ConfigError):
                return check(value, arm, key, root)
    elif kind is Literal:
        if any(value == arm and type(value) is type(arm) for arm in arms):
            return value
        choices = [str(arm) for arm in arms]
        raise ConfigError(key, f"{shown(value)} is none of {', '.join(choices)}.{nearest(str(value), choices)}")
    elif kind is types.NoneType:
        if value is None:
            return None
    elif kind is Mapping:
        if isinstance(value, Mapping):
            return {check_name(name, arms[0], key): check(value[name], arms[1], join(key, str(name)), root) for name in value}
    elif kind in (Sequence, tuple, list):
        if isinstance(value, list):
            return [check(stand_in(each, arms[0]), arms[0], f"{key}[{i}]", root) for i, each in enumerate(value)]
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return finite(value, key)
    elif kind in (bool, int, str):
        if type(value) is kind:
            return value
        if kind is str and value is not None:
            raise ConfigError(key, f"""{shown(value)} is not text; quote it: "{key}='{value}'".""")
    elif isinstance(value, Mapping):
        node = stand_in(value, kind)
        assert isinstance(node, Mapping)
        if dataclasses.is_dataclass(kind) and target_of(node, key) is not kind:
            raise ConfigError(join(key, TARGET), f"{node[TARGET]} does not belong here.")
        return check_node(node, key, root)
    else:
        raise choice_error(key, value)
    if value is None:
        raise missing(key)
    raise ConfigError(key, f"{shown(value)} is not {words_for(hint)}.")


def stand_in(value: object, hint: Any) -> object:
    """A part that can only be of one class, with that class."""
    if isinstance(value, Mapping) and dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return {TARGET: f"{hint.__module__}.{hint.__qualname__}", **value}
    return value


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
    """A key of a mapping. One that was set by its dotted name (``cluster.node_factors.3=2``) is text that may be a number."""
    if hint is int and isinstance(name, str) and name.isdecimal():
        return int(name)
    if type(name) is not hint:
        raise ConfigError(key, f"{shown(name)} is not {words_for(hint)}; write {key}={{0: ...}}.")
    return name


def build(node: Tree, key: str) -> object:
    """The object that a checked node stands for, parts first."""
    values = {name: built(value, join(key, name)) for name, value in node.items() if name != TARGET}
    try:
        return target_of(node, key)(**values)
    except ConfigError as error:
        # A part does not know where it is used: algo.tau may be algo.base.tau.
        field = error.key.rpartition(".")[2]
        raise ConfigError(join(key, field) if key and field in values else error.key, error.sentence) from None
    except Exception as error:
        raise ConfigError(key or "settings", f"these do not go together ({type(error).__name__}: {error}).") from error


def recorded(node: Tree, part: object) -> dict[str, object]:
    """``node`` with what ``part``, which it stands for, has put in place of null: the checksum of a file, for example."""
    values = {name: getattr(part, name) if value is None else value for name, value in node.items()}
    return {
        name: recorded(value, getattr(part, name)) if isinstance(value, Mapping) and TARGET in value else value
        for name, value in values.items()
    }


def built(value: object, key: str) -> object:
    if isinstance(value, Mapping) and TARGET in value:
        return build(value, key)
    return tuple(built(each, f"{key}[{i}]") for i, each in enumerate(value)) if isinstance(value, list) else value


def unknown_key(key: str, root: Tree, siblings: Sequence[str] = ()) -> ConfigError:
    """Says which keys there are, the most similar one if there is any; ``siblings``: those beside it, if ``root`` does not tell."""
    parent, _, word = key.rpartition(".")
    everywhere = list(keys_of(root, ""))
    siblings = list(siblings) or [other for other in everywhere if other.rpartition(".")[0] == parent]
    siblings += ["experiment"] if not parent else []
    same = [other for other in everywhere if last(other) == word]
    close = same or similar(word, siblings or everywhere)
    if close:
        return ConfigError(key, f"there is no such setting. Did you mean '{close[0]}'?")
    have = f"{parent or 'a run'} has {', '.join(map(last, siblings))}" if siblings else f"{parent} has no settings"
    return ConfigError(key, f"there is no such setting; {have}.")


def keys_of(node: Tree, parent: str) -> Iterator[str]:
    """Every dotted key below ``node`` that is a setting, outer ones first."""
    names = {str(name): value for name, value in node.items() if name != TARGET}
    if TARGET in node:
        with contextlib.suppress(ConfigError):
            fields = dataclasses.fields(target_of(node, parent))
            names = {field.name: node.get(field.name) for field in fields}
    yield from (join(parent, name) for name in names)
    for name, value in names.items():
        if isinstance(value, Mapping):
            yield from keys_of(value, join(parent, name))


def similar(word: str, keys: Sequence[str]) -> list[str]:
    """The key whose last part is closest to ``word``, if any is close."""
    close = difflib.get_close_matches(word, map(last, keys), n=1, cutoff=0.6)
    return [key for key in keys if last(key) in close]


def choice_error(key: str, value: object) -> ConfigError:
    """For a part that has to be chosen from a group."""
    group = group_of(key)
    if group is None:
        return ConfigError(key, f"{shown(value)} is not a set of settings with a {TARGET}.")
    choices = groups()[group]
    close = nearest(value, choices) if isinstance(value, str) else ""
    if value is None:
        return ConfigError(key, f"nothing is chosen; use one of {', '.join(choices)}.")
    return ConfigError(key, f"{shown(value)} is none of {', '.join(choices)}.{close}")


def missing(key: str) -> ConfigError:
    return ConfigError(key, f"it has no value; write {key}=...")


def words_for(hint: Any) -> str:
    """A type in words, as in "is not ..."."""
    kind, arms = kind_of(hint)
    if kind is Union:
        return " or ".join(words_for(arm) for arm in arms)
    if kind is Literal:
        return f"one of {', '.join(map(str, arms))}"
    if kind is Mapping:
        return "a mapping such as {0: 2}" if arms[0] is int else "a mapping such as {name: 2}"
    if kind in (Sequence, tuple, list):
        return "a list such as [1,2]"
    return {types.NoneType: "null", bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")


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

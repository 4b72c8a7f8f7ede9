"""The tree of a configuration: its parts, their keys and their defaults.

Every part of the tree is a frozen dataclass. Its fields are the schema: they define the keys, their
types and their defaults. If a group has several classes, ``name`` selects the class:
``algo: {name: sgp}``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from sgp_runner.config.choices import EXTENSIONS, class_of, group_of, groups, has_names
from sgp_runner.config.old_names import GROUPS, NAMES
from sgp_runner.config.plugins.composition import default_of, default_part
from sgp_runner.config.plugins.from_python import IN_MEMORY
from sgp_runner.config.plugins.loading import IN_MEMORY_HINT
from sgp_runner.config.plugins.loading import KEY as KEY_OF_PLUGINS
from sgp_runner.config.run import Run
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import MAX_DIGITS

NAME = "name"
RESIZED = "resized_from"  # the checkpoint of another run that a run continues
IDENTITY = (KEY_OF_PLUGINS, RESIZED)  # in addition to settings
# The files of clusters are data, not choices of code: omitted keys are not stored.
PROFILE = "cluster"
PARTS_OF_PROFILE = {f"{PROFILE}.{name}": cls for name, cls in GROUPS.items()}
# Parts of a run with a single class and no group of choices.
OWN_PARTS = {
    field.name: type(field.default)
    for field in dataclasses.fields(Run)
    if dataclasses.is_dataclass(field.default)
}
#: Names of one setting in different papers and libraries.
SYNONYMS = (
    {"period", "tau", "H"},  # local steps between two exchanges
    {"epochs", "steps", "max_steps", "iterations", "train_steps"},
    {"nodes", "world_size", "workers", "replicas"},
    {"lr", "learning_rate", "rate"},
    {"schedule", "scheduler", "lr_scheduler"},
    {"autocast", "precision", "amp"},
    {"results", "output_dir", "out", "folder"},
    {"gpus_per_node", "gpus", "devices"},
    {"algo", "algorithm", "method"},
    {"logger", "wandb"},
)
NOT_A_SETTING = "there is no such setting"
Tree = Mapping[str, object]


def completed(node: Tree, key: str = "") -> dict[str, object]:
    """Return ``node`` and its parts with all defaults; settings are in the order of the fields."""
    cls = class_at(node, key)
    fields = {} if cls is None else fields_of(cls, key)
    aliases: Mapping[str, str] = getattr(cls, "aliases", {})
    # Each setting by its first name; of two names the later one holds.
    named = {aliases.get(name, name): value for name, value in node.items()}
    values: dict[str, object] = {**{name: {} for name in OWN_PARTS if not key}, **named}
    if not key:
        values |= brought_by_algorithm(values)
    values = {
        name: completed(value, inner) if is_node(value, inner := join(key, name)) else value
        for name, value in values.items()
    }
    if key == PROFILE or key in PARTS_OF_PROFILE:
        return values
    defaults = {
        name: default_at(field, join(key, name))
        for name, field in fields.items()
        if has_default(field)
    }
    names = [
        name
        for name in ([NAME] if is_named(key) else []) + list(fields)
        if name in values or name in defaults
    ]
    return {name: values.get(name, defaults.get(name)) for name in names} | values


def brought_by_algorithm(tree: Tree) -> dict[str, object]:
    """Return ``optim`` with the algorithm's defaults for SGD; empty if it is not SGD."""
    algo, optim = tree.get("algo"), tree.get("optim")
    if not isinstance(algo, Mapping) or not isinstance(optim, Mapping) or optim.get(NAME) != "sgd":
        return {}
    return {"optim": {**getattr(class_at(algo, "algo"), "sgd_defaults", {}), **optim}}


def is_node(value: object, key: str) -> TypeGuard[Tree]:
    """Return whether ``value`` is a part (a mapping with a class) rather than a value."""
    return isinstance(value, Mapping) and is_part(key)


def is_part(key: str) -> bool:
    return group_of(key) is not None or key in OWN_PARTS or key in PARTS_OF_PROFILE


def class_at(node: Tree, key: str) -> type[Any] | None:
    """Return the dataclass of the part ``node`` at ``key``; None if its ``name`` is unknown."""
    group = group_of(key)
    return (
        ((OWN_PARTS | PARTS_OF_PROFILE).get(key) if key else Run)
        if group is None
        else class_of(group, str(node.get(NAME)))
    )


def fields_of(cls: type[Any], key: str) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of ``cls`` by name, without ``name`` if it selects the class at ``key``.

    Settings that several classes share (keyword-only fields of a base) come last.
    """
    bases = filter(dataclasses.is_dataclass, cls.__mro__)
    shared = {field.name for base in bases for field in dataclasses.fields(base) if field.kw_only}
    return {
        field.name: field
        for field in sorted(dataclasses.fields(cls), key=lambda field: field.name in shared)
        if field.name != NAME or not is_named(key)
    }


def has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def default_at(field: dataclasses.Field[Any], key: str) -> object:
    """Return the default of the setting ``key``; for a part this is a tree."""
    value, group = default_of(field), group_of(key)
    if group is None or not dataclasses.is_dataclass(value):
        return value
    tree = default_part(group, field)
    return completed({NAME: tree.pop(NAME, None), **tree}, key)


def is_named(key: str) -> bool:
    """Return whether the part at ``key`` has a setting ``name`` that selects its class."""
    group = group_of(key)
    return group is not None and has_names(group)


def node_at(tree: Tree, key: str) -> object:
    """Return the node at the dotted ``key``; None if there is none."""
    node: object = tree
    for name in key.split(".") if key else ():
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def unknown_key(key: str, root: Tree, siblings: Sequence[str] = ()) -> ConfigError:
    """Return an error that suggests the most similar key or lists the existing keys.

    siblings: the keys of the same part, if ``root`` does not contain the part
    """
    parent, _, word = key.rpartition(".")
    everywhere = list(keys_of(completed(root), ""))
    siblings = list(siblings) or [
        other for other in everywhere if other.rpartition(".")[0] == parent
    ]
    siblings += ["experiment"] if not parent else []
    present = f"{PROFILE}.{NAMES.get(word)}" if parent == PROFILE else None
    same = [other for other in everywhere if last(other) == word or other == present]
    inside = [
        other for other in everywhere if other.startswith(f"{PROFILE}.") and parent == PROFILE
    ]
    alike = next((names for names in SYNONYMS if word in names), set())
    where = siblings, [] if parent else everywhere
    near, far = ([key for key in keys if last(key) in alike] for keys in where)
    close = near or same or far or similar(word, [*siblings, *inside] or everywhere)
    if close:
        return ConfigError(key, f"{NOT_A_SETTING}. Did you mean '{close[0]}'?")
    have = (
        f"{parent or 'a run'} has {', '.join(map(last, siblings))}"
        if siblings
        else f"{parent} has no settings"
    )
    return ConfigError(key, f"{NOT_A_SETTING}; {have}.")


def keys_of(node: Tree, parent: str) -> Iterator[str]:
    """Yield the dotted keys of all settings below ``node``, outer keys first."""
    cls = class_at(node, parent)
    names = node if cls is None else fields_of(cls, parent)
    yield from (join(parent, str(name)) for name in names)
    for name in names:
        value = node.get(name, {} if join(parent, str(name)) in PARTS_OF_PROFILE else None)
        if isinstance(value, Mapping):
            yield from keys_of(value, join(parent, str(name)))


def similar(word: str, keys: Sequence[str]) -> list[str]:
    """Return the keys whose last component is closest to ``word``; empty if none is close."""
    close = difflib.get_close_matches(word.lower(), map(last, keys), n=1, cutoff=0.6)
    return [key for key in keys if last(key) in close]


def choice_error(key: str, value: object) -> ConfigError:
    """Return the error for a part that has to be chosen from a group."""
    group = group_of(key)
    if group is None:
        return ConfigError(key, f"{value_text(value)} is not a set of settings.")
    if value == IN_MEMORY:
        return ConfigError(key, f"this run used a {group} {IN_MEMORY_HINT}")
    choices = groups()[group]
    if (plugin := EXTENSIONS.get((group, str(value)))) is not None:
        return ConfigError(
            key,
            f"the plug-in {plugin.name} has no class for '{value}': add it to CHOICES of its "
            "__init__.py.",
        )
    if value in choices:
        place = f"{group}@{key}" if "." in key else key
        return ConfigError(
            key,
            f"'{value}' is a choice; a file selects it in its defaults list, with a line "
            f"'- override /{place}: {value}' under 'defaults:'.",
        )
    close = nearest(value, choices) if isinstance(value, str) else ""
    if value is None:
        return ConfigError(key, f"no choice is selected; use one of {', '.join(choices)}.")
    return ConfigError(key, f"{value_text(value)} is not one of {', '.join(choices)}.{close}")


def too_long(key: str) -> ConfigError:
    """Return the error for an integer with more digits than a stored file may contain."""
    return ConfigError(key, f"a whole number has at most {MAX_DIGITS} digits: use a smaller one.")


class MissingValue(ConfigError):
    """A setting without a value; another error, such as a misspelt name, may be the cause."""


def missing(key: str) -> MissingValue:
    return MissingValue(key, f"the value is missing; write {key}=...")


def value_text(value: object) -> str:
    """Return a value as text for an error message."""
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

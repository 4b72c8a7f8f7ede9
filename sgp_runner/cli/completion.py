"""Shell completion of settings: keys, part by part, choices, and values from a fixed set."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union

from hydra.plugins.completion_plugin import CompletionPlugin

from sgp_runner.cli.export_texts import HOSTS
from sgp_runner.cli.options import OPTIONS, SHORT, read
from sgp_runner.config import old_names
from sgp_runner.config.check import annotation, kind_of
from sgp_runner.config.choices import NESTED, group_of, groups
from sgp_runner.config.command_line import choices_in, parse
from sgp_runner.config.composed import tree_of
from sgp_runner.config.overrides import compose_all
from sgp_runner.config.schema import (
    OWN_PARTS,
    PARTS_OF_PROFILE,
    PROFILE,
    class_at,
    fields_of,
    keys_of,
    node_at,
)
from sgp_runner.utils.errors import ConfigError

GROUPS = ("cluster", "faults", "optim")  # settings of sgp-run that a plan has too
PLAN_OPTIONS = ("--json", "--html", "--config-dir", "--help")
PATHS = ("quality",)  # keys of a plan that are paths
FILES = (".", "/", "~")  # beginnings of values that are paths
OF_HYDRA = ("--hydra-help", "--shell-completion")  # options for programs


def candidates(line: str) -> list[str]:
    """Return the completions of the last word of ``line``, a command line without the command."""
    argv = line.split()
    word = argv.pop() if argv and not line[-1].isspace() else ""
    if argv[:1] == ["export"]:
        if argv[-1] == "--to":
            return starting(word, HOSTS)
        return starting(word, ["--to"]) if word.startswith("-") else []  # the shell completes files
    if argv[:1] in (["calibrate"], ["check"]):
        del argv[0]
    if argv[:1] in (["plan"], ["doctor"]):
        group = word.partition("=")[0].partition(".")[0]
        if argv[0] == "doctor" or group not in GROUPS:
            return of_planner(argv[0], word)
        argv = [argument for argument in argv if argument.startswith(GROUPS)]
    if argv and OPTIONS.get(SHORT.get(argv[-1], argv[-1])):
        return []  # the value of an option: the shell completes files
    if word.startswith("-"):
        return starting(word, (option for option in OPTIONS if option not in OF_HYDRA))
    try:
        command = read(argv)
        search, overrides = command.folder, command.overrides
    except ConfigError:
        search, overrides = [], [argument for argument in argv if not argument.startswith("-")]
    tree = composed([*search, *overrides])
    plain = word.lstrip("+~")
    key, equals, value = plain.partition("=")
    if not equals:
        completions = starting(plain, next_parts(plain, keys(tree)))
    elif value.startswith(FILES):
        completions = [f"{key}={path}" for path in CompletionPlugin.complete_files(value)]
    else:
        done = "".join(value.rpartition(",")[:2])
        completions = starting(
            plain, (f"{key}={done}{completion}" for completion in values(tree, key, search))
        )
    return [word[: len(word) - len(plain)] + completion for completion in completions]


def of_planner(command: str, word: str) -> list[str]:
    """Return the completions of a word of ``sgp-run plan`` or ``sgp-run doctor``."""
    from sgp_runner.plan import keys as plan_keys
    from sgp_runner.plan import observation
    from sgp_runner.plan.models import known_models

    catalogue = plan_keys.KEYS if command == "plan" else observation.KEYS
    if word.startswith("-"):
        return starting(word, PLAN_OPTIONS if command == "plan" else ("--measure",))
    key, equals, value = word.partition("=")
    if not equals:
        names = [f"{name}=" for name in catalogue if "." not in name]
        groups_of_plan = [f"{group}=" for group in GROUPS] if command == "plan" else []
        return starting(word, [*names, *groups_of_plan])
    if key in PATHS:
        return [f"{key}={path}" for path in CompletionPlugin.complete_files(value)]
    values = {
        "model": known_models(),
        "methods": groups()["algo"],
        "traffic": observation.TRAFFIC,
    }
    done = "".join(value.rpartition(",")[:2])
    return starting(word, (f"{key}={done}{choice}" for choice in values.get(key, ())))


def starting(word: str, texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text.startswith(word)})


def composed(overrides: Sequence[str]) -> Mapping[str, object]:
    """Return the configuration of the longest prefix of ``overrides`` that can be composed."""
    try:
        return tree_of(compose_all(parse(overrides)))
    except ConfigError:
        return composed(overrides[:-1])


def keys(tree: Mapping[str, object]) -> Iterator[str]:
    """Yield every key that can be set, as typed on the command line."""
    yield from (f"{group}=" for group in groups() if group not in NESTED)
    parts = OWN_PARTS | PARTS_OF_PROFILE
    yield from (f"{key}." if key in parts else f"{key}=" for key in keys_of(tree, ""))
    yield from (f"{PROFILE}.{name}=" for name in old_names.SHORT)


def next_parts(word: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the prefix of each of ``texts`` up to the first dot after ``word``."""
    for text in texts:
        first, dot, _ = text[len(word) :].partition(".")
        yield text[: len(word)] + first + dot


def values(tree: Mapping[str, object], key: str, search: Sequence[str]) -> Iterator[str]:
    """Yield the possible values of ``key`` or, if these cannot be listed, its current value."""
    if (group := group_of(key)) is not None:
        yield from choices_in(group, search)
        return
    flat = key.removeprefix(f"{PROFILE}.")
    if flat in old_names.SHORT and flat != key:
        key = f"{PROFILE}.{old_names.NAMES[flat]}"
    parent, _, name = key.rpartition(".")
    node: Any = node_at(tree, parent)
    cls = class_at(node, parent) if isinstance(node, Mapping) else None
    field = fields_of(cls, parent).get(name) if cls is not None else None
    if cls is None or field is None:
        return
    choices = list(words_of(annotation(cls, field)))
    value = node.get(name)
    yield from choices or ([str(value)] if isinstance(value, int | float | str) else [])


def words_of(hint: Any) -> Iterator[str]:
    """Yield the values of a type, as far as they can be listed."""
    kind, arms = kind_of(hint)
    if kind is Union:
        for arm in arms:
            yield from words_of(arm)
    elif kind is Literal:
        yield from map(str, arms)
    elif kind is bool:
        yield from ("true", "false")
    elif kind is types.NoneType:
        yield "null"

"""Tables of settings: of one choice, and of all choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sgp_runner.config.choices import CONFIGS, NESTED, PRESET, group_of, groups
from sgp_runner.config.command_line import parse
from sgp_runner.config.overrides import compose, configs
from sgp_runner.report.render.text_tables import markdown_table

# Groups that need a setting of another group, and this setting.
BESIDE = {"base": ("algo=slowmo",), "codec": ("algo=choco_sgd",), "model": ("network=sim",)}


def of_choice(word: str) -> str:
    """Return the table of settings of a choice such as ``algo=sgp``."""
    key, _, choice = word.partition("=")
    return table(rows_of(key, choice, group_of(key) or key))


def rows_of(key: str, choice: str, group: str) -> list[tuple[str, ...]]:
    with configs():
        node: Any = compose(parse([*BESIDE.get(group, ()), f"{key}={choice}"]))
    for part in key.split("."):
        node = node[part]
    return list(rows(node, key))


def rows(node: Mapping[str, object], key: str) -> Iterator[tuple[str, ...]]:
    """Yield key, default, description and type of each setting of ``node``, the part at ``key``."""
    from sgp_runner.cli.help import settings_of, typed

    types = dict(types_in(node, key))
    for setting, value, said in settings_of(node, key):
        yield setting, typed(value), said, types.get(setting, "")


def types_in(node: Mapping[str, object], key: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the type, in words, of each setting of ``node`` and of its parts."""
    from sgp_runner.config.check import annotation, words_for
    from sgp_runner.config.schema import class_at, fields_of, is_node, join

    cls = class_at(node, key)
    for name, field in fields_of(cls, key).items() if cls else ():
        inner, value = join(key, name), node.get(name)
        group = group_of(inner)
        yield inner, f"a choice of `{group}`" if group else words_for(annotation(cls, field))
        if is_node(value, inner):
            yield from types_in(value, inner)


def reference(_: str) -> str:
    """Return all groups with their choices, and all keys with type, default and description."""
    with configs():
        run = compose(parse([]))
    own = [row for row in rows(run, "") if "." not in row[0]]
    own += [row for part in ("checkpoint", "timed_as", "pretrain") for row in rows(run[part], part)]
    parts = ["## A run", table(own)]
    for group in groups():
        parts += presets() if group == PRESET else choices(group)
    return "\n\n".join(parts)


def choices(group: str) -> Iterator[str]:
    """Yield the section of ``group``: its choices, and the settings of each choice."""
    key = key_of(group)
    yield f"## `{key}=`"
    yield table([(f"`{each}`", comment(group, each)) for each in groups()[group]], ("choice", ""))
    by_rows: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    # Of base, settings are shown with algo=; all clusters and all faults are of one class.
    several = groups()[group][: {"base": 0, "cluster": 1, "faults": 1}.get(group)]
    for choice in several:
        by_rows.setdefault(tuple(rows_of(key, choice, group)), []).append(choice)
    for found, names in by_rows.items():
        if found:
            shown = names if several == groups()[group] else ["..."]
            yield f"### {', '.join(f'`{key}={name}`' for name in shown)}"
            yield table(found)


def key_of(group: str) -> str:
    return NESTED.get(group, group)


def presets() -> Iterator[str]:
    yield f"## `{PRESET}=`"
    yield "Presets set anything; `sgp-run experiment=NAME --help` shows what one sets."
    found = [(f"`{name}`", comment(PRESET, name)) for name in groups()[PRESET]]
    yield table(found, ("preset", ""))


def comment(group: str, choice: str) -> str:
    """Return the comment at the top of a choice's file."""
    text = (CONFIGS / group / f"{choice}.yaml").read_text(encoding="utf-8")
    head = re.match(r"(?:#.*\n|\s)*", text)
    lines = re.findall(r"^# (?!@|sgp-run )(.+)", head[0] if head else "", re.MULTILINE)
    return " ".join(lines)


HEAD = ("key", "default", "description", "type")


def table(body: Iterable[Sequence[str]], head: Sequence[str] = HEAD) -> str:
    """Return a table in Markdown; keys and defaults are set as code."""
    if head is HEAD:
        body = [(f"`{key}`", f"`{value}`", said, kind) for key, value, said, kind in body]
    return markdown_table([*map(cell, head)], (map(cell, line) for line in body))


def cell(text: str) -> str:
    """Return ``text`` for a cell; braces outside code are escaped, as they begin attributes."""
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if text.startswith("`") else text.replace("{", "&#123;")

"""Tables of the settings of one choice, and of all choices."""

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
# Groups whose choices are all of one class, with the choice that the reference shows.
ONE_CLASS = {"cluster": "ethernet_10g", "faults": "none"}
# Choices that describe what they reproduce at length; `--help` shows all of it.
SHORTENED = ("cluster", PRESET)


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
    """Yield key, default, description and type of each setting of ``node``, which is at ``key``."""
    from sgp_runner.cli.help import settings_of, typed

    types = dict(types_in(node, key))
    for setting, value, description in settings_of(node, key):
        parts = description.rpartition(" (one of ") if group_of(setting) else (description,)
        yield setting, typed(value), parts[0], types.get(setting, "")


def types_in(node: Mapping[str, object], key: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the type, as text, of each setting of ``node`` and its children."""
    from sgp_runner.config.check import annotation, words_for
    from sgp_runner.config.schema import class_at, fields_of, is_node, join

    cls = class_at(node, key)
    for name, field in fields_of(cls, key).items() if cls else ():
        inner, value = join(key, name), node.get(name)
        group = group_of(inner)
        kind = f"a choice of `{group}`" if group else words_for(annotation(cls, field))
        yield inner, re.sub(r" \(such as [^)]*\)", "", kind)
        if is_node(value, inner):
            yield from types_in(value, inner)


def reference(_: str) -> str:
    """Return all groups with their choices, and all keys with type, default and description."""
    with configs():
        run = compose(parse([]))
    settings = [row for row in rows(run, "") if "." not in row[0]]
    settings += [
        row for part in ("checkpoint", "timed_as", "pretrain") for row in rows(run[part], part)
    ]
    parts = ["## A run", table(settings)]
    for group in groups():
        parts += presets() if group == PRESET else choices(group)
    return "\n\n".join(parts)


def choices(group: str) -> Iterator[str]:
    """Yield the section of ``group``: its choices, and the settings of each choice.

    Choices with the same settings share a table, and so do all choices of one class. Settings of
    algorithms are on the algorithms' pages.
    """
    key = key_of(group)
    yield f"## `{key}=`"
    if group == "algo":
        yield "The settings of an algorithm are on its page."
    body = [(label(group, choice), comment(group, choice)) for choice in groups()[group]]
    yield table(body, ("choice", ""))
    if group in ONE_CLASS:
        yield f"### `{key}=...`"
        yield table(rows_of(key, ONE_CLASS[group], group))
        return
    alike: dict[tuple[tuple[str, str, str], ...], dict[str, list[str]]] = {}
    for choice in groups()[group] if group not in ("algo", "base") else ():
        body = [row for row in rows_of(key, choice, group) if not of_inner_group(row[0], key)]
        settings = tuple((name, description, kind) for name, _, description, kind in body)
        alike.setdefault(settings, {})[choice] = [default for _, default, _, _ in body]
    earlier: dict[tuple[str, ...], str] = {}
    for settings, defaults in alike.items():
        if settings:
            yield f"### {', '.join(f'`{key}={choice}`' for choice in defaults)}"
            body = [
                (name, values[0] if len({*values}) == 1 else " / ".join(values), text, kind)
                for (name, text, kind), *values in zip(settings, *defaults.values(), strict=True)
            ]
            yield from described_once(body, next(iter(defaults)), earlier)


def described_once(
    rows: Sequence[tuple[str, ...]], choice: str, earlier: dict[tuple[str, ...], str]
) -> Iterator[str]:
    """Yield the table of the settings of ``choice``, with references to identical ones above."""
    firsts = [earlier.setdefault(row, choice) for row in rows]
    if new := [row for row, first in zip(rows, firsts, strict=True) if first == choice]:
        yield table(new)
    for other in dict.fromkeys(first for first in firsts if first != choice):
        same = (f"`{row[0]}`" for row, first in zip(rows, firsts, strict=True) if first == other)
        yield f"As for `{other}`: {', '.join(same)}."


def of_inner_group(setting: str, key: str) -> bool:
    """Return whether ``setting`` belongs to a choice nested inside ``key``."""
    parent = setting.rpartition(".")[0]
    return parent != key and group_of(parent) is not None


def label(group: str, choice: str) -> str:
    return f"[`{choice}`](../algorithms/{choice}.md)" if group == "algo" else f"`{choice}`"


def key_of(group: str) -> str:
    return NESTED.get(group, group)


def presets() -> Iterator[str]:
    yield f"## `{PRESET}=`"
    yield "Presets set anything; `sgp-run experiment=NAME --help` shows what one sets."
    body = [(f"`{name}`", comment(PRESET, name)) for name in groups()[PRESET]]
    yield table(body, ("preset", ""))


def comment(group: str, choice: str) -> str:
    """Return the comment at the top of a choice's file, or its first sentence."""
    source = (CONFIGS / group / f"{choice}.yaml").read_text(encoding="utf-8")
    head = re.match(r"(?:#.*\n|\s)*", source)
    lines = re.findall(r"^# (?!@|sgp-run )(.+)", head[0] if head else "", re.MULTILINE)
    text = " ".join(lines)
    return re.sub(r"\. +[A-Z].*", ".", text) if group in SHORTENED else text


HEAD = ("key", "default", "description", "type")


def table(body: Iterable[Sequence[str]], head: Sequence[str] = HEAD) -> str:
    """Return a table in Markdown; keys and defaults are set as code."""
    if head is HEAD:
        body = [
            (f"`{key}`", f"`{value}`", description, kind) for key, value, description, kind in body
        ]
    return markdown_table([*map(cell, head)], (map(cell, line) for line in body))


def cell(text: str) -> str:
    """Return ``text`` for a cell; braces outside code are escaped, as they begin attributes."""
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if text.startswith("`") else text.replace("{", "&#123;")

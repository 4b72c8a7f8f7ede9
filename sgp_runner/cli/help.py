"""Texts of ``--help`` and ``--cfg job``, read from the dataclasses and ``configs/``.

The docstring of a class describes each field in a line that starts with the field's name. The
following lines continue the description if they are indented.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgp_runner.config.choices import (
    ALGORITHM_PARTS,
    CONFIGS,
    NESTED,
    PRESET,
    group_of,
    groups,
    without_path,
)
from sgp_runner.config.experiment import flat
from sgp_runner.config.plugins.composition import default_of
from sgp_runner.config.schema import (
    NAME,
    PARTS_OF_PROFILE,
    class_at,
    completed,
    fields_of,
    has_default,
    is_node,
    is_part,
    join,
    node_at,
)
from sgp_runner.utils.reading import parse_settings, read_text

WIDTH = 80
INDENT = 25
CFG_WIDTH = 100
CFG_INDENT = 32


def descriptions(cls: type[Any]) -> Mapping[str, str]:
    """Map each field of ``cls`` to its description, on one line."""
    texts = (inspect.cleandoc(base.__doc__ or "") for base in reversed(cls.__mro__))
    return {
        name: " ".join(text.replace("``", "").split())
        for name, text in re.findall(r"^(\w+): (.+(?:\n +.+)*)", "\n".join(texts), re.MULTILINE)
        if name in fields_of(cls, "")
    }


HELP = """\
Trains with a decentralised algorithm, in simulated time or on real processes.

usage: sgp-run [GROUP=CHOICE ...] [KEY=VALUE ...]
       sgp-run -m GROUP=A,B KEY=1,2 ...   a sweep: one run for each combination

groups (the default comes first)
{groups}

chosen inside these
{nested}

keys (with the defaults of model={model}; another model may have others)
{keys}

examples
  sgp-run experiment=compare                eight algorithms, in half a minute
  sgp-run algo=slowmo model=mlp nodes=4     one run
  sgp-run -m algo=sgp,osgp seed=1,2 ...     a run for each combination
  sgp-run -m jobs=2 seed=1,2,3 ...          two at a time; default: all cores
  sgp-run -m algo=sgp,osgp algo.osgp.tau=2  tau of the runs with algo=osgp

  sgp-run algo=slowmo --help      what a choice is, and its settings
  sgp-run algo=osgp --cfg job     all settings of a run, and what they are
  sgp-run --config-dir FOLDER ... your own presets, in FOLDER/experiment/
  sgp-run algo=./mine.py ...      your own algorithm (model=, data=, ...)
  sgp-run --plugin PACKAGE ...    your own package, with its YAML files
  sgp-run new algorithm NAME      start one, with a test; or model, data
  sgp-run download fashion_mnist  get the data; or mnist, gutenberg, ...
  sgp-run study mine.yaml         compare methods: searches, seeds, tests
  sgp-run export RUN --to ddp F   the method of a run for other training loops
  sgp-run diff RUN RUN            what differs between two runs
  sgp-run calibrate nodes=4 ...   measure this machine for the simulator
  sgp-run check network=nccl ...  is this machine ready for a run?
  sgp-run plan nodes=4 ...        which method fits my machines?
  sgp-run doctor one_node=1s ...  why are several nodes slower?
  sgp-run --version"""


def usage(folder: str | None = None) -> str:
    """Return the text of ``--help``, including the choices in the user's ``folder``."""
    text = (CONFIGS / "config.yaml").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^  - (\w+): (\w+)", text, re.MULTILINE))
    others = (name for name in groups() if name not in defaults and name not in NESTED)
    outer = [*(name for name in defaults if name in groups()), *others]
    nested = {key: listed(group, "", folder) for group, key in NESTED.items()}
    nested |= {
        "= ".join(f"algo.{part}" for part in ALGORITHM_PARTS): "an algorithm; for algo=hybrid"
    }
    model = (CONFIGS / "model" / f"{defaults['model']}.yaml").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+): (\S+)", model, re.MULTILINE))  # the model's defaults
    keys = {
        f"{key}={values.get(key, typed(value))}": description
        for key, value, description in settings_of(completed({}), "")
        if group_of(key) is None
    }
    return HELP.format(
        model=defaults["model"],
        groups=rows(
            {f"{group}=": listed(group, defaults.get(group, ""), folder) for group in outer}
        ),
        nested=rows({f"{key}=": choices for key, choices in nested.items()}),
        keys=rows(keys),
    )


def rows(texts: Mapping[str, str]) -> str:
    return "\n".join(line for left, right in texts.items() for line in row(f"  {left}", right))


def commented(node: Mapping[str, object], key: str, indent: str) -> Iterator[str]:
    """Yield the lines of ``node`` as YAML, with the description of each setting."""
    import yaml

    cls = class_at(node, key)
    texts = {} if cls is None else descriptions(cls)
    for name, value in node.items():
        inner = join(key, name)
        block = isinstance(value, Mapping) and (value or is_part(inner))
        left = f"{indent}{name}:" if block else f"{indent}{name}: {flow(value)}"
        yield from row(left, texts.get(name, ""), CFG_INDENT, CFG_WIDTH, "# ")
        if is_node(value, inner):
            yield from commented(value, inner, indent + "  ")
        elif block:
            yield from textwrap.indent(
                yaml.safe_dump(value, sort_keys=False, allow_unicode=True), indent + "  "
            ).splitlines()


def flow(value: object) -> str:
    """Return ``value`` as one line of YAML."""
    import yaml

    return (
        str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf))
        .removesuffix("...\n")
        .strip()
    )


def settings_of(node: Mapping[str, object], key: str) -> Iterator[tuple[str, object, str]]:
    """Yield (key, value, description) of every setting of the part ``node`` at ``key``.

    The value of a group is the name of its choice. A setting without a default has the value
    ``...``.
    """
    cls = class_at(node, key)
    if cls is None:
        return
    texts = descriptions(cls)
    for name, field in fields_of(cls, key).items():
        inner = join(key, name)
        default = default_of(field) if has_default(field) else ...
        value = node.get(name, {} if inner in PARTS_OF_PROFILE else default)
        if (group := group_of(inner)) is not None:
            chosen = value.get(NAME, ...) if is_node(value, inner) else ...
            yield inner, chosen, f"{texts[name]} (one of {' '.join(groups()[group])})"
        elif isinstance(value, Mapping) and value and not is_part(inner):
            for i, entry in enumerate(value):
                yield join(inner, str(entry)), value[entry], "" if i else texts[name]
        elif not is_part(inner):
            yield inner, value, texts[name]
        if is_node(value, inner):
            yield from settings_of(value, inner)


def typed(value: object) -> str:
    """Return ``value`` as a user types it on the command line."""
    if isinstance(value, str):
        return value
    return "..." if value is ... else json.dumps(value)


def explained(
    config: Mapping[str, object], key: str, choice: str, folders: Sequence[Path]
) -> Iterator[str]:
    """Yield the help lines for ``choice``, with the values of its settings in the run ``config``.

    folders: folders that may have the YAML file of the choice"""
    group = group_of(key) or key
    paths = [folder / group / f"{without_path(group, choice)}.yaml" for folder in folders]
    text = next((read_text(path) for path in paths if path.is_file()), "")
    yield f"{key}={choice}"
    head = re.match(r"(?:#.*\n|\s)*", text)
    comment = re.findall(r"^# (?!@|sgp-run )(.+)", head[0] if head else "", re.MULTILINE)
    yield from textwrap.wrap(" ".join(comment), WIDTH, initial_indent="  ", subsequent_indent="  ")
    node: Any = node_at(config, key)
    if is_node(node, key) and (settings := list(settings_of(node, key))):
        yield "\nsettings (with their values in this run)"
        for name, value, description in settings:
            yield from row(f"  {name}={typed(value)}", description)
    anywhere = group == PRESET or "# @package _global_" in text
    if anywhere and (
        overrides := [word for word in words_in(text) if not word.startswith(f"{key}.")]
    ):
        yield f"\n{'sets' if group == PRESET else 'also sets'} (--cfg job shows all settings)"
        yield from (f"  {word}" for word in overrides)
    if key == "algo" and is_node(node, key):
        defaults = getattr(class_at(node, key), "sgd_defaults", {})
        yield from ("\ndefaults of optim=sgd with it",) if defaults else ()
        yield from (f"  optim.{name}={typed(value)}" for name, value in defaults.items())


def words_in(text: str) -> Iterator[str]:
    """Yield the settings in a YAML file as overrides of a command line."""
    tree = parse_settings(text) or {}
    for entry in tree.pop("defaults", []):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            yield f"{group.split()[-1].rpartition('@')[2].lstrip('/')}={choice}"
    yield from (f"{key}={typed(value)}" for key, value in flat(tree))


def listed(group: str, default: str, folder: str | None) -> str:
    files = Path(folder, group).glob("*.yaml") if folder else ()
    choices = sorted({*groups()[group], *(path.stem for path in files)})
    return " ".join(sorted(choices, key=lambda choice: choice != default)) or "(none yet)"


def row(
    left: str, right: str, indent: int = INDENT, width: int = WIDTH, mark: str = ""
) -> list[str]:
    """Return lines with ``left`` and ``right`` in two columns.

    If ``left`` is too long for its column, ``right`` starts on the next line.

    mark: prefix of each line of the right column.
    """
    folded = [mark + line for line in textwrap.wrap(right, width - indent - len(mark))]
    if len(left) < indent and folded:
        left, *folded = [left.ljust(indent) + folded[0], *folded[1:]]
    return [left, *(" " * indent + line for line in folded)]

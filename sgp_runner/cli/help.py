"""Texts of ``--help`` and ``--cfg job``, read from the dataclasses and ``configs/``.

A field is described in the docstring of its class, in a line that starts with its name and may
continue below, indented.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sgp_runner.config.choices import ALGORITHM_PARTS, CONFIGS, NESTED, groups
from sgp_runner.config.schema import class_at, completed, fields_of, is_node, is_part, join
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

WIDTH = 80
INDENT = 25
CFG_WIDTH = 100
CFG_INDENT = 32


def descriptions(cls: type[Any]) -> Mapping[str, str]:
    """Map each field of ``cls`` to its description, on one line."""
    found = re.findall(r"^(\w+): (.+(?:\n +.+)*)", inspect.getdoc(cls) or "", re.MULTILINE)
    return {
        name: " ".join(text.replace("``", "").split())
        for name, text in found
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

keys (with their defaults; a model brings its own batch_size and epochs)
{keys}

examples
  sgp-run algo=osgp model=resnet50 nodes=32
  sgp-run -m algo=ar_sgd,sgp,osgp,slowmo nodes=4,8 optim.lr=0.05

  sgp-run algo=osgp --cfg job     all settings of a run, and what they are
  sgp-run --config-dir FOLDER ... presets of your own, in FOLDER/experiment/
  sgp-run algo=./mine.py ...      an algorithm (model=, data=, ...) of your own
  sgp-run --plugin PACKAGE ...    a package of your own, with its YAML files
  sgp-run new algorithm NAME      start one: a folder with a test; or model, data
  sgp-run calibrate nodes=4 ...   measure this machine for the simulator
  sgp-run --version"""


def usage() -> str:
    text = (CONFIGS / "config.yaml").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^  - (\w+): (\w+)", text, re.MULTILINE))
    outer = [*(name for name in defaults if name in groups()), *others(defaults)]
    nested = {key: listed(group, "") for group, key in NESTED.items()}
    nested |= {
        "= ".join(f"algo.{part}" for part in ALGORITHM_PARTS): "an algorithm; for algo=hybrid"
    }
    keys = {
        key: (value if isinstance(value, str) else json.dumps(value), said)
        for key, value, said in settings(completed({}), "")
    }
    return HELP.format(
        groups=rows({f"{group}=": listed(group, defaults.get(group, "")) for group in outer}),
        nested=rows({f"{key}=": choices for key, choices in nested.items()}),
        keys=rows({f"{key}={value}": said for key, (value, said) in keys.items()}),
    )


def rows(texts: Mapping[str, str]) -> str:
    return "\n".join(line for left, right in texts.items() for line in row(f"  {left}", right))


def described(config: DictConfig, package: str, resolve: bool) -> str:
    """Return the settings, or those below ``package``, as YAML with descriptions.

    resolve: return plain YAML with interpolations resolved.
    """
    from omegaconf import Container, OmegaConf

    node = OmegaConf.select(config, package) if package not in ("", "_global_") else config
    if node is None:
        raise ConfigError("--package", f"there is nothing at '{package}'.")
    if not isinstance(node, Container):
        return str(node)
    key = package.removeprefix("_global_")
    head = [f"# @package {key}"] if key else []
    if resolve or "hydra" in config or (key and not is_part(key)):
        return "\n".join([*head, OmegaConf.to_yaml(node, resolve=resolve).rstrip()])
    tree: Any = OmegaConf.to_container(node)
    return "\n".join([*head, *commented(tree, key, "")])


def commented(node: Mapping[str, object], key: str, indent: str) -> Iterator[str]:
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
    """Return ``value`` on one line of YAML."""
    import yaml

    return (
        str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf))
        .removesuffix("...\n")
        .strip()
    )


def settings(node: Mapping[str, object], parent: str) -> Iterator[tuple[str, object, str]]:
    """Yield (key, value, description) of every setting below ``node`` that belongs to no group."""
    cls = class_at(node, parent)
    for name, value in node.items():
        key = join(parent, name)
        if is_node(value, key):
            yield from settings(value, key)
        elif cls is not None:
            yield key, value, descriptions(cls)[name]


def others(defaults: dict[str, str]) -> Iterator[str]:
    """Yield the groups that have choices but no default in ``config.yaml``."""
    return (name for name in groups() if name not in defaults and name not in NESTED)


def listed(group: str, default: str) -> str:
    choices = groups()[group]
    return " ".join(sorted(choices, key=lambda choice: choice != default)) or "(none yet)"


def row(
    left: str, right: str, indent: int = INDENT, width: int = WIDTH, mark: str = ""
) -> list[str]:
    """Return ``left`` with ``right`` folded into a column beside it, or below if it is too long.

    mark: prefix of each line of the column.
    """
    folded = [mark + line for line in textwrap.wrap(right, width - indent - len(mark))]
    if len(left) < indent and folded:
        left, *folded = [left.ljust(indent) + folded[0], *folded[1:]]
    return [left, *(" " * indent + line for line in folded)]

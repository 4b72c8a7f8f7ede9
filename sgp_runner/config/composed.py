"""Configurations composed by Hydra, each composed once per process."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hydra import compose
from hydra.errors import MissingConfigException
from omegaconf import Container, DictConfig, OmegaConf, read_write

from sgp_runner.config.choices import EXTENSIONS, PRESET, class_of, groups
from sgp_runner.config.command_line import Setting, no_choice, parse
from sgp_runner.config.plugins import composition
from sgp_runner.config.schema import (
    NAME,
    PROFILE,
    Tree,
    class_at,
    completed,
    fields_of,
    is_named,
    keys_of,
    node_at,
    unknown_key,
)
from sgp_runner.utils.errors import ConfigError, first_line, nearest
from sgp_runner.utils.messages import logger

#: Overrides of a run -> those without its algorithm, the name of the algorithm, and its node.
PREPARED: dict[tuple[str, ...], tuple[tuple[str, ...], str, Any]] = {}


def composed_of(lines: Sequence[str], hydra_too: bool = False) -> DictConfig:
    """Return the configuration that Hydra composes for the overrides ``lines``.

    Hydra takes a tenth of a second, so a process composes choices from this package alone once and
    copies them later, unless Hydra's own settings matter (``hydra_too``).
    """
    if hydra_too or not is_fixed(lines):
        return compose("config", overrides=list(lines), return_hydra_config=True)
    if tuple(lines) not in PREPARED:
        return copy.deepcopy(composed_once(tuple(lines)))
    rest, name, node = PREPARED[tuple(lines)]
    config = copy.deepcopy(composed_once(rest))
    with read_write(config):
        config.hydra.runtime.choices.algo = name
        config.algo = node
    return config


def is_fixed(lines: Sequence[str]) -> bool:
    """Return whether the overrides compose only files of this package."""
    return not EXTENSIONS and not any("searchpath" in line for line in lines)


@functools.lru_cache(maxsize=500)
def composed_once(lines: tuple[str, ...]) -> DictConfig:
    return compose("config", overrides=list(lines), return_hydra_config=True)


def compose_algorithms(run: Sequence[Setting], algorithms: Sequence[Sequence[Setting]]) -> None:
    """Compose all algorithms at once for `composed_of`, each under a separate key.

    run: settings of a run without its algorithm
    algorithms: settings of each algorithm; the first one chooses it
    """
    rest = tuple(setting.line for setting in run if setting.composed)
    if not is_fixed(rest):
        return
    chosen = [[setting.line for setting in settings if setting.composed] for settings in algorithms]
    lines = [
        re.sub(r"^algo=", f"+algo@algo{number}=", line.replace("@algo.", f"@algo{number}."))
        for number, overrides in enumerate(chosen)
        for line in overrides
    ]
    composed = compose("config", overrides=lines)
    for number, overrides in enumerate(chosen):
        node = OmegaConf.to_container(composed[f"algo{number}"])
        PREPARED[*rest, *overrides] = rest, overrides[0].partition("=")[2], node


def chosen(lines: tuple[str, ...], chooses: bool, hydra_too: bool = False) -> DictConfig:
    """Compose the choices with Hydra.

    lines: the choices of a run
    chooses: whether the run selects its optimizer
    """
    choices = parse(lines)
    try:
        composed = composed_of(lines, hydra_too)
        if not chooses and (needed := optimizer_needed(composed)):
            composed = composed_of([*lines, needed], hydra_too)
    except Exception as error:
        raise misplaced(choices) or unclear(error) from error
    OmegaConf.set_struct(composed, False)
    OmegaConf.set_readonly(composed, False)
    name_cluster(composed)
    leave_out_replaced(composed, choices)
    if not hydra_too:
        del composed["hydra"]
    return composed


chosen_once = functools.lru_cache(maxsize=500)(chosen)


def optimizer_needed(composed: DictConfig) -> str | None:
    """Return the choice of the optimizer that the algorithm needs.

    None if it does not need one, or if a preset or the command line selects an optimizer.
    """
    choices = composed.hydra.runtime.choices
    needed = getattr(class_of("algo", choices["algo"]), "needs_optim", None)
    is_chosen = choices["optim"] != "sgd" or choices[f"{PRESET}@_global_"] is not None
    return None if needed is None or is_chosen else f"optim={needed}"


def leave_out_replaced(config: DictConfig, choices: Sequence[Setting]) -> None:
    """Remove a preset's settings of a choice if the command line selects a choice without them.

    A warning lists them once.
    """
    presets = [choice for choice in choices if choice.name == PRESET]
    others = [choice for choice in choices if choice.name != PRESET]
    tree = tree_of(config)
    nodes = [(choice, node_at(tree, choice.name)) for choice in others if is_named(choice.name)]
    unknown = [
        (choice, name)
        for choice, node in nodes
        if isinstance(node, dict)
        for name in node.keys() - {NAME} - set(fields_of_choice(node, choice.name))
    ]
    if not presets or not unknown:
        return
    without = tree_of(composed_of([choice.line for choice in others]))
    for choice, name in sorted(unknown, key=lambda pair: pair[1]):
        alone = node_at(without, choice.name)
        if isinstance(alone, dict) and name not in alone:
            del OmegaConf.select(config, choice.name)[name]
            warn_of_replaced(f"{choice.name}.{name}", presets[0].text, choice.text)


def fields_of_choice(node: Tree, key: str) -> Iterable[str]:
    cls = class_at(node, key)
    return node if cls is None else [*fields_of(cls, key), *getattr(cls, "aliases", ())]


@functools.cache
def warn_of_replaced(key: str, preset: str, choice: str) -> None:
    """Warn once that a setting of a preset has no effect."""
    part = key.rpartition(".")[0]
    logger.warning(f"{key} of {PRESET}={preset} is ignored: {part}={choice} has no such setting.")


def name_cluster(config: DictConfig) -> None:
    """Name the cluster after its file, unless the file or a preset sets a name.

    Otherwise it would inherit the name of the cluster in its defaults list.
    """
    choice, search = config.hydra.runtime.choices[PROFILE], list(config.hydra.searchpath)
    path = composition.file_of(
        PROFILE, choice, [folder.removeprefix("file://") for folder in search]
    )
    if path is None or NAME in composition.read_values(str(path), PROFILE):
        return
    lines = [f"hydra.searchpath={search}", f"{PROFILE}={choice}"]
    if config.cluster.get(NAME) == compose("config", overrides=lines).cluster.get(NAME):
        config.cluster.name = choice


def tree_of(config: Container, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as plain mappings."""
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def misplaced(choices: Sequence[Setting]) -> ConfigError | None:
    """Return the error for the first choice that Hydra cannot compose, outer choices first."""
    lines: list[str] = []
    composed = composed_of([])
    outer_first = sorted(choices, key=lambda choice: choice.name.count("."))
    for choice in sorted(outer_first, key=lambda choice: "searchpath" not in choice.line):
        key, name = choice.name, choice.text
        lines.append(choice.line)
        try:
            composed = composed_of(lines)
        except MissingConfigException as error:
            group, _, lacking = str(error.missing_cfg_file).partition("/")
            if group in groups() and lacking != name:  # chosen by a file of the user
                return ConfigError(
                    key,
                    f"'{name}' chooses {group}={lacking}, which does not exist; "
                    f"there are {', '.join(groups()[group])}.",
                )
            return no_choice(key, name, error.options or [])
        except Exception as error:
            if key.startswith("hydra"):
                parent, _, word = key.rpartition(".")
                whole = compose("config", overrides=lines[:-1], return_hydra_config=True)
                close = nearest(word, map(str, OmegaConf.select(whole, parent) or ()))
                return ConfigError(key, f"Hydra has no such setting.{close}")
            tree = completed(tree_of(composed))
            if key == PRESET or key in keys_of(tree, ""):
                return ConfigError(key, f"'{name}' cannot be composed: {reason(error)}.")
            return unknown_key(key, tree)
    return None


def unclear(error: Exception) -> ConfigError:
    """Return the error for choices that Hydra can compose alone but not together."""
    because = f" ({first_line(error.__cause__)})" if isinstance(error.__cause__, Exception) else ""
    return ConfigError(
        "settings",
        f"these settings cannot be combined: {first_line(error)}{because}.",
    )


def reason(error: Exception) -> str:
    """Return Hydra's reason for refusing a file, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentences = [
        line for line in lines if not re.match("object_type=|reference_type=|full_key:", line)
    ]
    where = [line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")]
    return " ".join([*sentences, *(f"({key})" for key in where if key)]).rstrip(".")

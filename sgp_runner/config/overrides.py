"""Conversion of settings to a configuration.

Hydra composes the choices from their files. Values are set afterwards, and
`sgp_runner.config.check` compares them with the dataclasses. A mapping on the command line replaces
the mapping of a preset. A dotted name, such as ``faults.slow_nodes.3=10``, sets one entry of it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.config.choices import CONFIGS, class_of, groups
from sgp_runner.config.command_line import (
    Setting,
    condition_of,
    parse,
    refuse_several,
    unmet,
)
from sgp_runner.config.composed import (
    chosen,
    chosen_once,
    compose_algorithms,
    is_fixed,
    tree_of,
)
from sgp_runner.config.experiment import Experiment, make_experiment
from sgp_runner.config.plugins import composition
from sgp_runner.config.plugins.loading import named
from sgp_runner.config.schema import (
    IDENTITY,
    NAME,
    PROFILE,
    completed,
    is_named,
    is_part,
    join,
    keys_of,
    missing,
    node_at,
    unknown_key,
)
from sgp_runner.config.sources import PathChoices, Sources
from sgp_runner.utils.errors import ConfigError, first_line, nearest
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.units import refuse_unlikely


@contextmanager
def configs() -> Iterator[None]:
    """Initialise Hydra with the configuration trees of this package and of plug-ins."""
    plugins = Plugins.instance()  # registers the sources of files
    for plugin in (PathChoices, Sources):
        plugins.register(plugin)
    store, nodes = ConfigStore.instance(), list(composition.nodes())
    for group, name, node in nodes:
        store.store(name, node, group)
    try:
        with initialize_config_dir(str(CONFIGS), job_name="sgp_run", version_base="1.3"):
            yield
    finally:
        for group, name, _ in nodes:
            del store.repo[group][f"{name}.yaml"]


def narrow(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings of a run, and the settings that belong to choices that it does not use.

    In a run with ``algo=osgp``, ``algo.osgp.tau=1`` means ``algo.tau=1`` and overrides any other
    value of ``algo.tau``.
    """
    active = [setting for setting in settings if condition_of(setting.name) is None]
    left_out = []
    for setting in settings:
        if (condition := condition_of(setting.name)) is None:
            continue
        part, choice, key = condition
        if choice_at(part, active) == choice:
            active += parse([f"{key}={setting.text}"])
        else:
            left_out.append(setting)
    return active, left_out


def choice_at(part: str, settings: Sequence[Setting]) -> object:
    """Return the name of the choice at ``part`` of a run, such as ``algo.base``."""
    root = part.partition(".")[0]
    lines = [
        setting.line
        for setting in settings
        if setting.composed or setting.name.split(".")[0] == root
    ]
    return (choice_once if is_fixed(lines) else choice_in)(part, tuple(lines))


def choice_in(part: str, lines: tuple[str, ...]) -> object:
    node = node_at(put_together(parse(lines)), part)
    return node.get(NAME) if isinstance(node, dict) else None


choice_once = functools.lru_cache(maxsize=500)(choice_in)


def experiment_of(overrides: Sequence[str]) -> Experiment:
    """Return the experiment that ``sgp-run`` runs for these overrides."""
    overrides = named(overrides)
    with configs():
        settings = parse(overrides)
        refuse_several(settings, "; pass one value for a single run.")
        return make_experiment(compose(settings))


def prepare_algorithms(overrides: Sequence[str], algorithms: Sequence[Sequence[str]]) -> None:
    """Compose a run with each of several algorithms at once, so that `experiment_of` is quick.

    overrides: overrides of the run without its algorithm
    algorithms: overrides of each algorithm; the first one chooses it
    """
    overrides = named(overrides)
    with configs():
        compose_algorithms(parse(overrides), list(map(parse, algorithms)))


def compose(settings: Sequence[Setting]) -> dict[str, object]:
    """Return the resolved configuration of one run, without secrets."""
    tree = whole_tree(settings)
    refuse_secrets(tree, "")
    if any(sign in repr(tree) for sign in ("${", "???")):
        tree = resolved(tree)
        refuse_secrets(tree, "")
    for key in IDENTITY:
        if key in tree:
            raise unknown_key(key, tree)
    for group in ("cluster", "network", "faults"):
        refuse_unlikely(group, tree.get(group))
    return tree


def resolved(tree: dict[str, object]) -> dict[str, object]:
    """Return a configuration with the values of interpolations. Raises ConfigError."""
    try:
        return tree_of(created(tree), resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        if isinstance(error, MissingMandatoryValue):
            raise missing(key) from error
        raise ConfigError(
            key, f"the interpolation cannot be resolved: {first_line(error)}."
        ) from error


def compose_all(settings: Sequence[Setting], hydra_too: bool = False) -> DictConfig:
    """Return the configuration of `whole_tree`, which accepts Hydra's notation of keys."""
    return created(whole_tree(settings, hydra_too))


def created(tree: dict[str, object]) -> DictConfig:
    config = OmegaConf.create(tree)
    assert OmegaConf.is_dict(config)
    return config


def whole_tree(settings: Sequence[Setting], hydra_too: bool = False) -> dict[str, object]:
    """Return the complete configuration before interpolations are resolved.

    With ``rehearsal=true``, the overrides that a preset lists under ``rehearse`` apply unless the
    command line sets the same keys.

    hydra_too: whether to include Hydra's own settings
    """
    settings, left_out = narrow(settings)
    if left_out:
        raise unmet(left_out[0], "this run has a different choice")
    tree = put_together(settings, hydra_too)
    rehearse: Any = tree.pop("rehearse", None)
    if tree["rehearsal"] is True:
        if rehearse is None:
            raise ConfigError(
                "rehearsal",
                "this preset does not support rehearsal; choose one that does, for example "
                "experiment=sgp_sgp_90.",
            )
        names = {setting.name for setting in settings}
        rehearsed = [setting for setting in parse(list(rehearse)) if setting.name not in names]
        tree = put_together([*rehearsed, *settings], hydra_too)
        del tree["rehearse"]
    return tree


def put_together(settings: Sequence[Setting], hydra_too: bool = False) -> dict[str, object]:
    """Compose the choices with Hydra, then set values, then add the defaults that are missing."""
    lines = tuple(setting.line for setting in settings if setting.composed)
    chooses = any(setting.name == "optim" for setting in settings)
    if hydra_too or not is_fixed(lines):
        composed = chosen(lines, chooses, hydra_too)
    else:
        composed = copy.deepcopy(chosen_once(lines, chooses))
    listed = models_timed(composed)
    for setting in settings:
        if not setting.composed:
            apply(setting, composed)
    check_models_timed(composed, listed.values())
    return {key: lists_in(value) for key, value in completed(tree_of(composed)).items()}


def lists_in(value: Any) -> Any:
    """Return plain data with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {name: lists_in(inner) for name, inner in value.items()}
    return [lists_in(item) for item in value] if isinstance(value, list | tuple) else value


def apply(setting: Setting, config: DictConfig) -> None:
    """Set a value, or reset it to its default if the override starts with ``~``."""
    key = setting.override.key_or_group
    if not setting.override.is_delete():
        put(config, key, setting.override.value())
        return
    tree = completed(tree_of(config))
    if key not in keys_of(tree, ""):
        raise unknown_key(key, tree)
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    for name in [name for name in node or () if str(name) == last]:
        del node[name]


def models_timed(config: DictConfig) -> dict[str, str]:
    """Return dotted key -> model, for every entry of ``step_seconds`` and ``step_batch``."""
    profile, keys = config.get(PROFILE), ("step_seconds", "step_batch")
    tree = {PROFILE: tree_of(profile) if isinstance(profile, DictConfig) else profile}
    timed = {key: node_at(tree, key) for key in (f"{PROFILE}.compute.{name}" for name in keys)}
    return {
        f"{key}.{name}": str(name)
        for key, models in timed.items()
        if isinstance(models, dict)
        for name in models
    }


def check_models_timed(config: DictConfig, listed: Iterable[str]) -> None:
    """Raise ConfigError if the command line sets the step time of an unknown model.

    listed: models in the cluster's file, whose names are arbitrary
    """
    listed, timed = set(listed), models_timed(config)
    if listed.issuperset(timed.values()):
        return
    tree = tree_of(config)
    model = tree["model"] if isinstance(tree.get("model"), dict) else {}
    # A model has the name of its choice, its class or its architecture.
    names = [*model.values(), getattr(class_of("model", str(model.get(NAME))), NAME, None)]
    names.append(node_at(tree, "timed_as.model"))
    models = {"default", *LANGUAGE_MODELS, *groups()["model"], *listed}
    models |= {name for name in names if isinstance(name, str)}
    for key, name in timed.items():
        if name not in models:
            raise ConfigError(
                key,
                f"there is no model '{name}', and timed_as.model differs."
                f"{nearest(name, sorted(models))}",
            )


def put(config: DictConfig, key: str, value: object) -> None:
    """Set ``key``; a mapping updates a part unless it has a ``name``, which selects a class."""
    if isinstance(value, dict) and is_part(key) and not (NAME in value and is_named(key)):
        for name, inner in value.items():
            put(config, join(key, name), inner)
    else:
        OmegaConf.update(config, key, value, merge=False, force_add=True)

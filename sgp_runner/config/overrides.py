"""From settings to a configuration.

Hydra composes the choices from their files. Values are set afterwards, and
`sgp_runner.config.check` compares them with the dataclasses. A mapping on the command line replaces
the mapping of a preset. A dotted name, such as ``faults.slow_nodes.3=10``, sets one entry of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as compose_choices
from hydra import initialize_config_dir
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.config.choices import CONFIGS, PRESET, class_of, group_of, groups
from sgp_runner.config.command_line import (
    Setting,
    condition_of,
    no_choice,
    parse,
    refuse_several,
    unmet,
)
from sgp_runner.config.composed import compose_algorithms, composed_of
from sgp_runner.config.experiment import Experiment, make_experiment
from sgp_runner.config.old_names import grouped_file
from sgp_runner.config.plugins import composition
from sgp_runner.config.plugins.loading import named
from sgp_runner.config.schema import (
    IDENTITY,
    NAME,
    PROFILE,
    Tree,
    class_at,
    completed,
    fields_of,
    is_named,
    is_part,
    join,
    keys_of,
    missing,
    node_at,
    unknown_key,
)
from sgp_runner.config.sources import FileConfigSource, PathChoices, Sources
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.messages import logger
from sgp_runner.utils.secrets import refuse_secrets


@contextmanager
def configs() -> Iterator[None]:
    """Initialise Hydra with the configuration trees of this package and of plug-ins."""
    plugins = Plugins.instance()  # registers the sources of files
    for plugin in (PathChoices, Sources):
        plugins.register(plugin)
    store, nodes = ConfigStore.instance(), list(composition.nodes())
    for group, name, node in nodes:
        store.store(name, node, group)
    sources = SourcesRegistry.instance().types
    files = sources["file"]
    try:
        sources["file"] = FileConfigSource
        with initialize_config_dir(str(CONFIGS), job_name="sgp_run", version_base="1.3"):
            yield
    finally:
        sources["file"] = files
        for group, name, _ in nodes:
            del store.repo[group][f"{name}.yaml"]


def narrow(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings of a run, and the settings that belong to choices that it does not use.

    In a run with ``algo=osgp``, ``algo.osgp.tau=1`` means ``algo.tau=1`` and overrides any other
    value of ``algo.tau``.
    """
    taken = [setting for setting in settings if condition_of(setting.name) is None]
    left_out = []
    for setting in settings:
        if (condition := condition_of(setting.name)) is None:
            continue
        part, choice, key = condition
        node = node_at(tree_of(put_together(taken)), part)
        if isinstance(node, dict) and node.get(NAME) == choice:
            taken += parse([f"{key}={setting.text}"])
        else:
            left_out.append(setting)
    return taken, left_out


def experiment_of(overrides: Sequence[str]) -> Experiment:
    """Return the experiment that ``sgp-run`` would run with these overrides."""
    overrides = named(overrides)
    with configs():
        settings = parse(overrides)
        refuse_several(settings, ", and this is one run.")
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
    config = compose_all(settings)
    refuse_secrets(tree_of(config), "")
    try:
        tree = tree_of(config, resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        if isinstance(error, MissingMandatoryValue):
            raise missing(key) from error
        raise ConfigError(key, f"it cannot be resolved: {first_line(error)}.") from error
    refuse_secrets(tree, "")
    for key in IDENTITY:
        if key in tree:
            raise unknown_key(key, tree)
    return tree


def compose_all(settings: Sequence[Setting], hydra_too: bool = False) -> DictConfig:
    """Return the complete configuration before interpolations are resolved.

    With ``rehearsal=true``, the overrides that a preset lists under ``rehearse`` apply unless the
    command line sets the same keys.

    hydra_too: whether to include Hydra's own settings
    """
    settings, left_out = narrow(settings)
    if left_out:
        raise unmet(left_out[0], "this run has another one")
    config = put_together(settings, hydra_too)
    rehearse = config.pop("rehearse", None)
    if tree_of(config)["rehearsal"] is True:
        if rehearse is None:
            raise ConfigError(
                "rehearsal",
                "only presets that say how can be rehearsed; choose one, for example "
                "experiment=sgp_sgp_90.",
            )
        names = {setting.name for setting in settings}
        rehearsed = [setting for setting in parse(list(rehearse)) if setting.name not in names]
        config = put_together([*rehearsed, *settings], hydra_too)
        del config["rehearse"]
    return config


def put_together(settings: Sequence[Setting], hydra_too: bool = False) -> DictConfig:
    """Compose the choices with Hydra, then set values, then add the defaults that are missing."""
    choices = [setting for setting in settings if setting.composed]
    lines = [setting.line for setting in choices]
    try:
        composed = composed_of(lines, hydra_too)
        if needed := optimizer_needed(composed, settings):
            composed = composed_of([*lines, needed], hydra_too)
    except Exception as error:
        raise misplaced(choices) or unclear(error) from error
    OmegaConf.set_struct(composed, False)
    OmegaConf.set_readonly(composed, False)
    name_cluster(composed)
    leave_out_replaced(composed, choices)
    if not hydra_too:
        del composed["hydra"]
    listed = models_timed(composed).values()
    for setting in settings:
        if not setting.composed:
            apply(setting, composed)
    check_models_timed(composed, listed)
    config = OmegaConf.create(completed(tree_of(composed)))
    assert OmegaConf.is_dict(config)
    return config


def optimizer_needed(composed: DictConfig, settings: Sequence[Setting]) -> str | None:
    """Return the choice of the optimizer that the algorithm needs, if nothing chooses another."""
    choices = composed.hydra.runtime.choices
    needed = getattr(class_of("algo", choices["algo"]), "needs_optim", None)
    chosen = choices["optim"] != "sgd" or choices[f"{PRESET}@_global_"] is not None
    if needed is None or chosen or any(setting.name == "optim" for setting in settings):
        return None
    return f"optim={needed}"


def leave_out_replaced(config: DictConfig, choices: Sequence[Setting]) -> None:
    """Remove settings of a preset for a choice that the command line replaces by one without them.

    The first time, a warning names them.
    """
    presets = [choice for choice in choices if choice.name == PRESET]
    others = [choice for choice in choices if choice.name != PRESET]
    tree = tree_of(config)
    nodes = [(choice, node_at(tree, choice.name)) for choice in others if is_choice(choice.name)]
    unknown = [
        (choice, name)
        for choice, node in nodes
        if isinstance(node, dict)
        for name in node.keys() - {NAME} - set(fields_of_choice(node, choice.name))
    ]
    if not presets or not unknown:
        return
    without = tree_of(composed_of([choice.line for choice in others]))
    for choice, name in sorted(unknown, key=lambda each: each[1]):
        alone = node_at(without, choice.name)
        if isinstance(alone, dict) and name not in alone:
            del OmegaConf.select(config, choice.name)[name]
            warn_of_replaced(f"{choice.name}.{name}", presets[0].text, choice.text)


def is_choice(key: str) -> bool:
    """Return whether ``key`` is a part of a run that has a class by name."""
    return group_of(key) in groups() and is_named(key)


def fields_of_choice(node: Tree, key: str) -> Iterable[str]:
    cls = class_at(node, key)
    return node if cls is None else [*fields_of(cls, key), *getattr(cls, "aliases", ())]


@functools.cache
def warn_of_replaced(key: str, preset: str, choice: str) -> None:
    """Warn once that a setting of a preset has no effect."""
    part = key.rpartition(".")[0]
    logger.warning(f"{key} of {PRESET}={preset} is left out: {part}={choice} has no such setting.")


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
    tree, keys = tree_of(config), ("step_seconds", "step_batch")
    timed = {key: node_at(tree, key) for key in (f"{PROFILE}.compute.{name}" for name in keys)}
    return {
        f"{key}.{name}": str(name)
        for key, models in timed.items()
        if isinstance(models, dict)
        for name in models
    }


def check_models_timed(config: DictConfig, listed: Iterable[str]) -> None:
    """Raise ConfigError if the command line sets the time of a model that does not exist.

    listed: models in the cluster's file, which may have any names
    """
    tree = tree_of(config)
    model = tree["model"] if isinstance(tree.get("model"), dict) else {}
    # A model has the name of its choice, its class or its architecture.
    names = [*model.values(), getattr(class_of("model", str(model.get(NAME))), NAME, None)]
    names.append(node_at(tree, "timed_as.model"))
    known = {"default", *LANGUAGE_MODELS, *groups()["model"], *listed}
    known |= {name for name in names if isinstance(name, str)}
    for key, name in models_timed(config).items():
        if name not in known:
            raise ConfigError(
                key,
                f"there is no model '{name}', nor is it timed_as.model."
                f"{nearest(name, sorted(known))}",
            )


def name_cluster(config: DictConfig) -> None:
    """Name the cluster after its file, unless the file or a preset sets a name.

    Otherwise its name would be the name of the cluster in its defaults list.
    """
    choice, search = config.hydra.runtime.choices[PROFILE], list(config.hydra.searchpath)
    path = composition.file_of(PROFILE, choice, [each.removeprefix("file://") for each in search])
    if path is None or NAME in composition.read_values(str(path), PROFILE):
        return
    lines = [f"hydra.searchpath={search}", f"{PROFILE}={choice}"]
    if config.cluster.get(NAME) == compose_choices("config", overrides=lines).cluster.get(NAME):
        config.cluster.name = choice


def tree_of(config: Container, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as plain mappings."""
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def put(config: DictConfig, key: str, value: object) -> None:
    """Set ``key``; a mapping updates a part unless it has a ``name``, which selects a class."""
    if key == PROFILE and isinstance(value, dict):
        value = grouped_file(value, PROFILE, f"{PROFILE}=")
    if isinstance(value, dict) and is_part(key) and not (NAME in value and is_named(key)):
        for name, inner in value.items():
            put(config, join(key, name), inner)
    else:
        OmegaConf.update(config, key, value, merge=False, force_add=True)


def misplaced(choices: Sequence[Setting]) -> ConfigError | None:
    """Return the error of the first choice that Hydra cannot compose; try outer choices first."""
    lines: list[str] = []
    composed = composed_of([])
    outer_first = sorted(choices, key=lambda choice: choice.name.count("."))
    for choice in sorted(outer_first, key=lambda choice: "searchpath" not in choice.line):
        key, name = choice.name, choice.text
        lines.append(choice.line)
        try:
            composed = composed_of(lines)
        except MissingConfigException as error:
            if str(error.missing_cfg_file).endswith("submitit_slurm"):
                return ConfigError(
                    key, "slurm needs submitit; install it with: pip install 'sgp-runner[slurm]'"
                )
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
                whole = compose_choices("config", overrides=lines[:-1], return_hydra_config=True)
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
        f"they cannot be put together: {first_line(error) or type(error).__name__}{because}.",
    )


def reason(error: Exception) -> str:
    """Return Hydra's reason for refusing a file, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not re.match("object_type=|reference_type=|full_key:", line)]
    where = [line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")]
    return " ".join([*said, *(f"({key})" for key in where if key)]).rstrip(".")


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")

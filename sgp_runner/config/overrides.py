"""From the words of a command line to a configuration.

A word is a choice from a group (``algo=sgp``), which Hydra composes from its files, or a value
(``nodes=4``), which is set afterwards. ``algo.topology=ring`` reads like a value but is a choice:
Hydra writes it ``topology@algo.topology=ring``. `sgp_runner.config.schema`, which knows the
dataclasses, decides whether a key exists and its value fits. A mapping replaces the one of a
preset; dotted names set single entries, ``faults.slow_nodes.3=10``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.config.choices import (
    CONFIGS,
    NESTED,
    PRESET,
    class_of,
    group_of,
    groups,
    has_names,
)
from sgp_runner.config.plugins import composition
from sgp_runner.config.plugins.loading import KEY, named
from sgp_runner.config.schema import (
    IDENTITY,
    NAME,
    PROFILE,
    completed,
    is_named,
    is_part,
    join,
    keys_of,
    make_experiment,
    too_long,
    unknown_key,
)
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import Unbounded, read_yaml
from sgp_runner.utils.secrets import refuse_secrets

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

    from sgp_runner.config.experiment import Experiment

TARGET = "_target_"  # of Hydra, names a class to call
GLOBAL = f"{PRESET}@_global_"  # presets set anything, so their place is the root


@dataclass(frozen=True)
class Setting:
    """One word of the command line.

    word: in Hydra's notation. choice: whether it chooses from a group.
    """

    word: str
    override: Override
    choice: bool

    @property
    def name(self) -> str:
        """The key as a user types it."""
        return typed(self.word).partition("=")[0]

    @property
    def swept(self) -> bool:
        """Whether it has several values."""
        return self.override.is_sweep_override()

    @property
    def number(self) -> int:
        """How many values it has."""
        from hydra.core.override_parser.types import RangeSweep

        if not self.override.is_discrete_sweep():
            return 1
        if isinstance(values := self.override.value(), RangeSweep):
            assert values.start is not None and values.stop is not None
            return max(0, math.ceil((values.stop - values.start) / values.step))
        return len(list(self.override.sweep_iterator()))

    @property
    def for_hydra(self) -> bool:
        """Whether it configures Hydra itself rather than the run."""
        return self.name.startswith(("hydra.", "hydra/"))

    @property
    def composed(self) -> bool:
        """Whether Hydra composes it from its files."""
        return self.choice or "/" in self.name or self.for_hydra

    def apply(self, config: DictConfig) -> None:
        """Set the value, or delete it."""
        if self.override.is_delete():
            delete(config, self.override.key_or_group)
        else:
            put(config, self.override.key_or_group, self.override.value())


def typed(word: str) -> str:
    """Hydra's ``word`` as a user types it."""
    return re.sub(r"^[+~]*(\w+@(?=[\w.]))?", "", word.replace(GLOBAL, PRESET))


@contextmanager
def configs() -> Iterator[None]:
    """Initialise Hydra with this package's configuration tree and those of plug-ins."""
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in composition.folders():
                search_path.append(KEY, f"file://{folder}")

    if composition.folders():
        Plugins.instance().register(Folders)
    store, nodes = ConfigStore.instance(), list(composition.nodes())
    for group, name, node in nodes:
        store.store(name, node, group)
    try:
        with initialize_config_dir(str(CONFIGS), job_name="sgp_run", version_base="1.3"):
            yield
    finally:
        for group, name, _ in nodes:
            del store.repo[group][f"{name}.yaml"]


def loader() -> ConfigLoader:
    from hydra.core.global_hydra import GlobalHydra

    return GlobalHydra.instance().config_loader()


def condition_of(key: str) -> tuple[str, str, str] | None:
    """The part, the choice and the setting of a key for runs of one choice alone.

    ``algo, osgp, algo.tau`` for ``algo.osgp.tau``; None for any other key.
    """
    names = key.split(".")
    for end in range(1, len(names) - 1):
        part, choice = ".".join(names[:end]), names[end]
        group = group_of(part)
        if group is not None and has_names(group) and choice in groups()[group]:
            return part, choice, ".".join([part, *names[end + 1 :]])
    return None


def narrow(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """The settings of a run, and those for choices that it does not make.

    ``algo.osgp.tau=1`` is ``algo.tau=1`` in a run with ``algo=osgp``, after any other value.
    """
    taken = [setting for setting in settings if condition_of(setting.name) is None]
    left_out = []
    for setting in settings:
        if (condition := condition_of(setting.name)) is None:
            continue
        part, choice, key = condition
        node: object = tree_of(put_together(taken, hydra_too=False))
        for name in part.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(NAME) == choice:
            taken += parse([f"{key}={typed(setting.word).partition('=')[2]}"])
        else:
            left_out.append(setting)
    return taken, left_out


def unmet(setting: Setting, why: str) -> ConfigError:
    """The error of a setting for a choice that is not made."""
    part, choice, _ = condition_of(setting.name) or ("", "", "")
    return ConfigError(setting.name, f"it is a setting of {part}={choice}, but {why}.")


def search_in(folder: str) -> str:
    """The word that adds a folder of presets to the configuration tree."""
    if not Path(folder).is_dir():
        raise ConfigError("--config-dir", f"there is no folder '{folder}'.")
    for path in sorted(Path(folder).glob("*.yaml")) + sorted(Path(folder).glob("*/*.yaml")):
        try:
            read_yaml(path)
        except Unbounded as error:
            raise ConfigError("--config-dir", f"{path} cannot be read: {error}.") from None
        except (OSError, ValueError):  # an error where the file is chosen
            continue
    return f"hydra.searchpath=[{quoted(f'file://{Path(folder).absolute()}')}]"


def quoted(text: str) -> str:
    """``text``, with any characters, as a value in Hydra's grammar."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def parse(words: Sequence[str]) -> list[Setting]:
    """The settings on a command line, in order.

    Words in Hydra's own notation stay as they are. Raises ConfigError for an invalid word or an
    unknown choice.
    """
    overrides = [parse_word(word) for word in words]
    search = [
        str(override.input_line)
        for override in overrides
        if override.key_or_group == "hydra.searchpath"
    ]
    return [translate(override, search) for override in overrides]


def parse_word(word: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key = word.partition("=")[0].lstrip("+~") or word
    if key in groups():  # a choice that is made anyway; Hydra's users write +experiment=name
        word = word.lstrip("+")
    if "=" not in word and not word.startswith("~"):
        raise ConfigError(key, "this is not a setting; write key=value, for example nodes=4.")
    try:
        override = OverridesParser.create(config_loader=loader()).parse_override(word)
    except HydraException:
        raise ConfigError(
            key,
            f"cannot read '{word}'; write key=value, and quote special characters: \"key='a b'\".",
        ) from None
    except ValueError:  # Python converts no text of thousands of digits
        raise too_long(key) from None
    if not override.key_or_group:
        raise ConfigError(word, "the key is missing; write key=value, for example nodes=4.")
    override.input_line = word
    return override


def refuse_ranges(settings: Sequence[Setting]) -> None:
    """Raise ConfigError for values that cannot be counted, which only a search can choose from."""
    for setting in settings:
        if setting.swept and not setting.override.is_discrete_sweep():
            raise ConfigError(
                setting.name,
                "a sweep needs values that can be counted: write 0.1,0.2 or range(1,5); "
                "hydra/sweeper=optuna searches a range.",
            )


def translate(override: Override, search: Sequence[str]) -> Setting:
    word, key = str(override.input_line), override.key_or_group
    group = group_of(key)
    if override.package is not None:  # in Hydra's own notation
        group, key = key, override.package
    if key.startswith("hydra.") and key.endswith(f".{TARGET}"):
        raise foreign_class(key)
    if "/" in key or key.startswith("hydra.") or override.is_delete():
        return Setting(word, override, False)
    if key in NESTED and override.package is None:
        raise ConfigError(key, f"this is part of something; write {NESTED[key]}=...")
    names = None if group is None else choices_named(override)
    if group is None or (names is None and "." in key):
        return Setting(f"++{word.lstrip('+')}", override, False)
    if override.is_force_add():
        raise ConfigError(key, f"a choice is made without ++: write {typed(word)}.")
    check_choices(key, group, names or [word.partition("=")[2]], search)
    if override.package is None and key == PRESET:
        word = word.replace(PRESET, GLOBAL, 1)
    elif override.package is None and "." in key:
        word = f"{'+' if override.is_add() else ''}{group}@{word.lstrip('+')}"
    return Setting(word, override, True)


def foreign_class(key: str) -> ConfigError:
    return ConfigError(
        key,
        "Hydra calls no class but a launcher and a sweeper, which are chosen by name: "
        "write hydra/launcher=basic or hydra/sweeper=optuna.",
    )


def choices_named(override: Override) -> list[str] | None:
    """The names in a choice or a sweep over choices; None for anything but names."""
    if override.is_range_sweep():
        return None
    if override.is_discrete_sweep():
        values: list[object] = list(override.sweep_string_iterator())
    else:
        value = override.value()
        values = list(value) if isinstance(value, list) else [value]
    if all(
        isinstance(value, str | int | float) and not re.search(r"[${}]", str(value))
        for value in values
    ):
        return [str(value) for value in values]
    return None


def check_choices(key: str, group: str, names: Sequence[str], search: Sequence[str]) -> None:
    choices: Sequence[str] = groups().get(group, ())
    if not set(names) <= set(choices):
        choices = choices_in(group, search)
    for name in names:
        if name not in choices:
            raise no_choice(key, name, choices)


def choices_in(group: str, search: Sequence[str]) -> Sequence[str]:
    """The choices of ``group``, with those of the user's own folders, which ``search`` adds."""
    if not search:
        return groups().get(group, ())
    return loader().get_group_options(group, config_name="config", overrides=list(search))


def experiment_of(words: Sequence[str]) -> Experiment:
    """The experiment that ``sgp-run`` would run with these words."""
    words = named(words)
    with configs():
        return make_experiment(compose(words))


def compose(words: Sequence[str]) -> dict[str, object]:
    """The resolved configuration of one run, without secrets."""
    config = compose_all(words)
    refuse_secrets(tree_of(config), "")
    tree = resolved(config)
    refuse_secrets(tree, "")
    for key in IDENTITY:
        if key in tree:
            raise unknown_key(key, tree)
    return tree


def compose_all(words: Sequence[str], hydra_too: bool = False) -> DictConfig:
    """The configuration, complete but not resolved, with Hydra's own settings if ``hydra_too``.

    With ``rehearsal=true``, the words that a preset lists under ``rehearse`` apply unless the
    command line sets the same keys.
    """
    settings, left_out = narrow(parse(words))
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
        named = {setting.name for setting in settings}
        config = put_together(
            [*(each for each in parse(list(rehearse)) if each.name not in named), *settings],
            hydra_too,
        )
        del config["rehearse"]
    return config


def put_together(settings: Sequence[Setting], hydra_too: bool) -> DictConfig:
    """Compose the choices with Hydra, then set the values, then the missing defaults."""
    from hydra import compose as compose_choices
    from omegaconf import OmegaConf

    words = [setting.word for setting in settings if setting.composed]
    try:
        composed = compose_choices("config", overrides=words, return_hydra_config=True)
    except Exception as error:
        raise misplaced(words) or unclear(error) from error
    OmegaConf.set_struct(composed, False)
    OmegaConf.set_readonly(composed, False)
    name_cluster(composed)
    if not hydra_too:
        del composed["hydra"]
    listed = models_timed(composed)
    for setting in settings:
        if not setting.composed:
            setting.apply(composed)
    check_models_timed(composed, listed)
    config = OmegaConf.create(completed(tree_of(composed)))
    assert OmegaConf.is_dict(config)
    return config


def models_timed(config: DictConfig) -> dict[str, str]:
    """The models whose times or batches the cluster lists, by their dotted keys."""
    cluster = tree_of(config)[PROFILE]
    return {
        f"{PROFILE}.{key}.{name}": str(name)
        for key in ("step_seconds", "step_batch")
        if isinstance(cluster.get(key), dict)
        for name in cluster[key]
    }


def check_models_timed(config: DictConfig, listed: Mapping[str, str]) -> None:
    """Raise ConfigError for a model that the command line times, but that does not exist.

    listed: those of the cluster's file, which may name models of its own
    """
    tree = tree_of(config)
    model = tree["model"] if isinstance(tree.get("model"), dict) else {}
    timed = tree["timed_as"].get("model") if isinstance(tree.get("timed_as"), dict) else None
    # A model has the name of its choice, its class or its architecture.
    named = [timed, *model.values(), getattr(class_of("model", str(model.get(NAME))), NAME, None)]
    known = {"default", *LANGUAGE_MODELS, *groups()["model"], *listed.values()}
    known |= {name for name in named if isinstance(name, str)}
    for key, name in models_timed(config).items():
        if name not in known:
            raise ConfigError(
                key,
                f"there is no model '{name}', nor is it timed_as.model."
                f"{nearest(name, sorted(known))}",
            )


def name_cluster(config: DictConfig) -> None:
    """Give the cluster the name of its file, unless the file or a preset says another one.

    Without a name of its own it would have that of the file in its defaults list, whose machines
    are others.
    """
    from hydra import compose as compose_choices

    choice, search = config.hydra.runtime.choices[PROFILE], list(config.hydra.searchpath)
    path = composition.file_of(PROFILE, choice, [each.removeprefix("file://") for each in search])
    if path is None or NAME in composition.read_values(str(path), PROFILE):
        return
    words = [f"hydra.searchpath={search}", f"{PROFILE}={choice}"]
    if config.cluster.get(NAME) == compose_choices("config", overrides=words).cluster.get(NAME):
        config.cluster.name = choice


def tree_of(config: DictConfig, resolve: bool = False) -> dict[str, Any]:
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def put(config: DictConfig, key: str, value: object) -> None:
    """Set ``key``; a mapping updates a part unless it names another class."""
    from omegaconf import OmegaConf

    if isinstance(value, dict) and is_part(key) and not (NAME in value and is_named(key)):
        for name, inner in value.items():
            put(config, join(key, name), inner)
    else:
        OmegaConf.update(config, key, value, merge=False, force_add=True)


def delete(config: DictConfig, key: str) -> None:
    """Reset ``key`` to its default."""
    from omegaconf import OmegaConf

    tree = completed(tree_of(config))
    if key not in keys_of(tree, ""):
        raise unknown_key(key, tree)
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    for name in [name for name in node or () if str(name) == last]:
        del node[name]


def resolved(config: DictConfig) -> dict[str, object]:
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        return tree_of(config, resolve=True)
    except MissingMandatoryValue as error:
        raise ConfigError(
            str(error.full_key), f"it has no value; write {error.full_key}=..."
        ) from error
    except OmegaConfBaseException as error:
        raise ConfigError(
            str(error.full_key), f"it cannot be resolved: {first_line(error)}."
        ) from error


def misplaced(words: Sequence[str]) -> ConfigError | None:
    """The error of the first of the choices ``words`` that Hydra cannot make, outer ones first."""
    from hydra import compose as compose_choices
    from hydra.errors import MissingConfigException

    made: list[str] = []
    # Folders of presets come first.
    for word in sorted(
        words, key=lambda word: ("searchpath" not in word, typed(word).partition("=")[0].count("."))
    ):
        key, _, name = typed(word).partition("=")
        try:
            composed = compose_choices("config", overrides=made)
            compose_choices("config", overrides=[*made, word])
        except MissingConfigException as error:
            if str(error.missing_cfg_file).endswith("submitit_slurm"):
                return ConfigError(
                    key, "slurm needs submitit; install it with: pip install 'sgp-runner[slurm]'"
                )
            group, _, missing = str(error.missing_cfg_file).partition("/")
            if group in groups() and missing != name:  # chosen by a file of the user's
                return ConfigError(
                    key,
                    f"'{name}' chooses {group}={missing}, which does not exist; "
                    f"there are {', '.join(groups()[group])}.",
                )
            return no_choice(key, name, error.options or [])
        except Exception as error:
            if key.startswith("hydra"):
                return ConfigError(key, "Hydra has no such setting.")
            tree = completed(tree_of(composed))
            if key == PRESET or key in keys_of(tree, ""):
                return ConfigError(key, f"'{name}' cannot be composed: {reason(error)}.")
            return unknown_key(key, tree)
        made.append(word)
    return None


def unclear(error: Exception) -> ConfigError:
    because = f" ({first_line(error.__cause__)})" if isinstance(error.__cause__, Exception) else ""
    return ConfigError(
        "settings",
        f"they cannot be put together: {first_line(error) or type(error).__name__}{because}.",
    )


def no_choice(key: str, name: str, choices: Sequence[str]) -> ConfigError:
    those = (
        f"is none of {', '.join(choices)}.{nearest(name, choices)}"
        if choices
        else "does not exist; there is no choice yet."
    )
    more = " Runs of a sweep start side by side with jobs=." if key == "hydra/launcher" else ""
    return ConfigError(key, f"'{name}' {those}{more}")


def reason(error: Exception) -> str:
    """Return what Hydra says of a file that it cannot compose, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not re.match("object_type=|reference_type=|full_key:", line)]
    where = [line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")]
    return " ".join([*said, *(f"({key})" for key in where if key)]).rstrip(".")


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")

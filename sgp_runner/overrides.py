"""What users type, made into what Hydra understands, and what Hydra objects to, made into one sentence.

``algo.topology=ring`` reads like a value but is a choice from the group ``topology``: Hydra's name for it is
``topology@algo.topology=ring``. Values are handed over as ``++key=value``, which Hydra always accepts; whether the key
exists and the value fits is for `sgp_runner.schema` to say, which knows the dataclasses. A mapping replaces the one that a preset
has, where Hydra would merge them; single entries are set by their dotted names, ``faults.slow_nodes.3=10``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.corrections import KEY
from sgp_runner.errors import ConfigError, nearest
from sgp_runner.groups import CONFIGS, NESTED, group_of, groups
from sgp_runner.schema import TARGET, unknown_key

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


PRESET = "experiment"  # its files set anything, so their place is the root: Hydra's experiment@_global_


@dataclass(frozen=True)
class Setting:
    """One word of the command line, as Hydra wants it.

    swept: it has several values. choice: it chooses from a group.
    """

    word: str
    swept: bool
    choice: bool

    @property
    def name(self) -> str:
        """The key as a user types it."""
        return typed(self.word).partition("=")[0]

    @property
    def for_hydra(self) -> bool:
        """Meant for Hydra itself rather than for the run."""
        return self.name.startswith(("hydra.", "hydra/"))


def typed(word: str) -> str:
    """What a user types for Hydra's ``word``."""
    word = word.replace(f"{PRESET}@_global_", PRESET)
    return re.sub(r"^[+~]*(\w+@(?=[\w.]))?", "", word)


@contextmanager
def configs() -> Iterator[None]:
    """Hydra, ready to compose from this package's configuration tree."""
    from hydra import initialize_config_dir

    with initialize_config_dir(str(CONFIGS), job_name="sgp_run", version_base="1.3"):
        yield


def search_in(folder: str) -> str:
    """The word that adds a folder of presets to the configuration tree."""
    if not Path(folder).is_dir():
        raise ConfigError("--config-dir", f"there is no folder '{folder}'.")
    return f"hydra.searchpath=[{quoted(f'file://{Path(folder).absolute()}')}]"


def quoted(text: str) -> str:
    """``text`` as a value in Hydra's grammar, whatever characters it has."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def parse(words: Sequence[str]) -> list[Setting]:
    """The settings on a command line, in their order. Raises ConfigError for what is none and for unknown choices."""
    overrides = [parse_word(word) for word in words]
    search = [str(override.input_line) for override in overrides if override.key_or_group == "hydra.searchpath"]
    return [translate(override, search) for override in overrides]


def parse_word(word: str) -> Override:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key = word.partition("=")[0].lstrip("+~") or word
    if "=" not in word and not word.startswith("~"):
        raise ConfigError(key, "this is not a setting; write key=value, for example nodes=4.")
    try:
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        override = parser.parse_override(word)
    except HydraException:
        raise ConfigError(key, f"cannot read '{word}'; write key=value, and quote special characters: \"key='a b'\".") from None
    if not override.key_or_group:
        raise ConfigError(word, "the key is missing; write key=value, for example nodes=4.")
    override.input_line = word
    return override


def translate(override: Override, search: Sequence[str]) -> Setting:
    word, key, swept = str(override.input_line), override.key_or_group, override.is_sweep_override()
    group = group_of(key)
    if override.package is not None:  # in Hydra's own notation
        group, key = key, override.package
    if "/" in key or key.startswith("hydra.") or override.is_delete():
        return Setting(word, swept, False)
    if key in NESTED and override.package is None:
        raise ConfigError(key, f"this is part of something; write {NESTED[key]}=...")
    names = choices_named(override)
    if group is None or (names is None and "." in key):
        return Setting(f"++{word.lstrip('+')}", swept, False)
    if override.is_force_add():
        raise ConfigError(key, f"a choice is made without ++: write {typed(word)}.")
    check_choices(key, group, names or [word.partition("=")[2]], search)
    if key == PRESET:
        return Setting(word.replace(PRESET, f"{PRESET}@_global_", 1), swept, True)
    if "." not in key or override.package is not None:
        return Setting(word, swept, True)
    return Setting(f"{'+' if override.is_add() else ''}{group}@{word.lstrip('+')}", swept, True)


def choices_named(override: Override) -> list[str] | None:
    """The names that a choice, or a sweep over choices, consists of; None for anything that is not a name."""
    if override.is_discrete_sweep():
        values: list[object] = list(override.sweep_string_iterator())
    else:
        value = None if override.is_delete() else override.value()
        values = list(value) if isinstance(value, list) else [value]
    if all(isinstance(value, str | int | float) and not re.search(r"[${}]", str(value)) for value in values):
        return [str(value) for value in values]
    return None


def check_choices(key: str, group: str, names: Sequence[str], search: Sequence[str]) -> None:
    from hydra.core.global_hydra import GlobalHydra

    choices: Sequence[str] = groups().get(group, ())
    if set(names) <= set(choices):
        return
    if search:  # presets of the user's own may have more
        loader = GlobalHydra.instance().config_loader()
        choices = loader.get_group_options(group, config_name="config", overrides=list(search))
    for name in names:
        if name not in choices:
            raise no_choice(key, name, choices)


def compose(words: Sequence[str]) -> dict[str, object]:
    """The resolved configuration of one run, from words that were translated."""
    config = resolved(compose_all(rehearsed(words), hydra_too=False))
    config.pop("rehearse", None)
    if KEY in config:
        raise unknown_key(KEY, config)
    return config


def rehearsed(words: Sequence[str]) -> list[str]:
    """With ``rehearsal=true``, also the words that a preset lists under ``rehearse``, before those that are given and say otherwise."""
    if "++rehearsal=true" not in words:
        return list(words)
    rehearse = resolved(compose_all(words, hydra_too=False)).get("rehearse")
    if not isinstance(rehearse, list):
        raise ConfigError("rehearsal", "only presets that say how can be rehearsed; choose one, for example experiment=sgp_sgp_90.")
    named = {typed(word).partition("=")[0] for word in words}
    return [*(setting.word for setting in parse(list(map(str, rehearse))) if setting.name not in named), *words]


def compose_all(words: Sequence[str], hydra_too: bool) -> DictConfig:
    """The configuration, with Hydra's own settings if ``hydra_too``. Whatever goes wrong comes out as a ConfigError."""
    return merged(with_whole_mappings(words), hydra_too)


def merged(words: Sequence[str], hydra_too: bool = False) -> DictConfig:
    """The configuration that Hydra composes, which merges mappings."""
    import hydra

    try:
        return hydra.compose("config", overrides=list(words), return_hydra_config=hydra_too)
    except Exception as error:
        raise explained(error, words) from error


def with_whole_mappings(words: Sequence[str]) -> list[str]:
    """``words``, and before each that gives a mapping one that removes the preset's."""
    ours = (word for word in words if "{" in word and not Setting(word, False, False).for_hydra)
    mappings = {word: value for word in ours if isinstance(value := parse_word(word).value(), dict)}
    if not mappings:
        return list(words)
    config = merged(words)
    out = []
    for word in words:
        if word in mappings:
            key = word.lstrip("+").partition("=")[0]
            out += [f"++{each}=null" for each in mappings_in(config, key, mappings[word])]
        out.append(word)
    return out


def mappings_in(config: DictConfig, key: str, value: dict[str, object]) -> list[str]:
    """The keys of mappings that ``key={...}`` sets. A part, which has a class, is no mapping: its settings are set one by one."""
    from omegaconf import OmegaConf

    part = OmegaConf.select(config, key)
    if not (OmegaConf.is_dict(part) and TARGET in part and TARGET not in value):
        return [key]
    return [each for name, inner in value.items() if isinstance(inner, dict) for each in mappings_in(config, f"{key}.{name}", inner)]


def resolved(config: DictConfig) -> dict[str, object]:
    from omegaconf import OmegaConf

    try:
        tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except Exception as error:
        raise explained(error, ()) from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def explained(error: Exception, words: Sequence[str]) -> ConfigError:
    """A complaint of Hydra or OmegaConf, in one sentence."""
    from hydra.errors import MissingConfigException
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    text = first_line(error)
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if name == "submitit_slurm":
            return ConfigError(group, "slurm needs submitit; install it with: pip install 'sgp-runner[slurm]'")
        return no_choice(group, name, error.options or [])
    if match := re.match(r"Error merging override \+*([\w.]+)=(.*)", text):
        return ConfigError(
            match[1], f"{match[2] or 'this'} does not fit here{f' ({first_line(cause)})' if isinstance(cause, Exception) else ''}."
        )
    if match := re.match(r"Could not (?:override|delete from config\.) '([^'=]+)", text):
        return nothing_to_override(match[1], words)
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(str(error.full_key), f"it has no value; write {error.full_key}=...")
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return ConfigError(str(error.full_key), f"it cannot be resolved: {text}.")
    because = f" ({first_line(cause)})" if isinstance(cause, Exception) else ""
    return ConfigError("settings", f"they cannot be put together: {text or type(error).__name__}{because}.")


def no_choice(key: str, name: str, choices: Sequence[str]) -> ConfigError:
    those = f"is none of {', '.join(choices)}.{nearest(name, choices)}" if choices else "does not exist; there is no choice yet."
    return ConfigError(key, f"'{name}' {those}")


def nothing_to_override(name: str, words: Sequence[str]) -> ConfigError:
    """For a choice, or a deletion, of something that the configuration does not have."""
    group, at, package = name.partition("@")
    key = package if at else group
    if key.startswith("hydra"):
        return ConfigError(key, "Hydra has no such setting.")
    others = [word for word in words if not word.lstrip("+~").startswith(name)]
    return unknown_key(key, compose(others))


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")

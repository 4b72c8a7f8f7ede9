"""Parsing of the overrides on a command line into settings.

An override is a choice or a value. Hydra composes the configuration from the files of the choices
(``algo=sgp``). The values (``nodes=4``) are then set in the composed configuration.
``algo.topology=ring`` looks like a value but is a choice, in Hydra's notation
``topology@algo.topology=ring``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from sgp_runner.config.choices import (
    NESTED,
    PRESET,
    REMOVED,
    group_of,
    groups,
    has_names,
    without_path,
)
from sgp_runner.config.old_names import renamed
from sgp_runner.config.schema import too_long
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.reading import Unbounded, read_yaml

TARGET = "_target_"  # Hydra's key for a class to call
GLOBAL = f"{PRESET}@_global_"  # presets apply to the root: they may set any key


@dataclass(frozen=True)
class Setting:
    """A parsed override.

    line: the override in Hydra's notation
    choice: whether the override chooses from a group
    """

    line: str
    override: Override
    choice: bool

    @property
    def typed(self) -> str:
        """The override in the notation of this package, as a user types it."""
        return typed(self.line)

    @property
    def name(self) -> str:
        """The key as a user types it."""
        return self.typed.partition("=")[0]

    @property
    def key(self) -> str:
        """The key in Hydra's notation."""
        return self.line.partition("=")[0]

    @property
    def text(self) -> str:
        """The value as the user types it."""
        return self.line.partition("=")[2]

    @property
    def swept(self) -> bool:
        """Whether the override has several values."""
        return self.override.is_sweep_override()

    @property
    def number(self) -> int:
        """The number of values in the override."""
        if self.override.is_range_sweep():  # a range may be too long to be listed
            values: Any = self.override.value()
            count: int = math.ceil((values.stop - values.start) / values.step)
            return max(0, count)
        return len([*self.override.sweep_iterator()]) if self.override.is_choice_sweep() else 1

    @property
    def for_hydra(self) -> bool:
        """Whether the override configures Hydra itself rather than the run."""
        return self.override.is_hydra_override()

    @property
    def composed(self) -> bool:
        """Whether Hydra composes the setting from configuration files."""
        return self.choice or "/" in self.name or self.for_hydra


def typed(line: str) -> str:
    """Return an override in Hydra's notation as a user types it."""
    return re.sub(r"^[+~]*(\w+@(?=[\w.]))?", "", unescaped(line.replace(GLOBAL, PRESET)))


def unescaped(text: str) -> str:
    """Return ``text`` without the escaped colons that Hydra adds to the values of a sweep."""
    return text.replace("\\:", ":")


def loader() -> ConfigLoader:

    return GlobalHydra.instance().config_loader()


def condition_of(key: str) -> tuple[str, str, str] | None:
    """Split a key that applies to only one choice into part, choice and setting.

    For ``algo.osgp.tau``, return ``algo, osgp, algo.tau``. Return None for any other key.
    """
    names = key.split(".")
    for end in range(1, len(names) - 1):
        part, choice = ".".join(names[:end]), names[end]
        group = group_of(part)
        if group is not None and has_names(group) and choice in groups()[group]:
            return part, choice, ".".join([part, *names[end + 1 :]])
    return None


def unmet(setting: Setting, why: str) -> ConfigError:
    """Return the error for a setting that belongs to a choice that the run does not use."""
    part, choice, _ = condition_of(setting.name) or ("", "", "")
    return ConfigError(setting.name, f"it is a setting of {part}={choice}, but {why}.")


def search_in(folder: str) -> str:
    """Return the override that adds a folder of presets to the configuration tree."""
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


def refuse_several(settings: Sequence[Setting], fix: str) -> None:
    """Raise ConfigError, with ``fix``, for a setting with several values."""
    for setting in settings:
        if setting.swept:
            raise ConfigError(setting.name, f"several values make a sweep{fix}")


def quoted(text: str) -> str:
    """Return ``text`` quoted for Hydra's grammar; it may contain any characters."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def parse(overrides: Sequence[str]) -> list[Setting]:
    """Return the settings of a command line, in order.

    Overrides that are already in Hydra's notation are not changed. Raises ConfigError for an
    invalid override or an unknown choice.
    """
    parsed = [parse_with_hydra(override) for override in overrides]
    search = [str(entry.input_line) for entry in parsed if entry.key_or_group == "hydra.searchpath"]
    return [setting_of(override, search) for override in parsed]


@functools.lru_cache(maxsize=2000)
def parse_with_hydra(text: str) -> Override:
    """Parse one override. Raises ConfigError unless it is written ``key=value``."""

    text = renamed(text)
    key = text.partition("=")[0].lstrip("+~") or text
    if key in groups():  # Hydra's users write +experiment=name; the + is superfluous
        text = text.lstrip("+")
    if "=" not in text and not text.startswith("~"):
        raise ConfigError(key, "this is not a setting; write key=value, for example nodes=4.")
    try:
        override = OverridesParser.create(config_loader=loader()).parse_override(text)
    except HydraException:
        raise ConfigError(
            key,
            f"cannot read '{text}'; write key=value, and quote special characters: \"key='a b'\".",
        ) from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise too_long(key) from None
    if not override.key_or_group:
        raise ConfigError(text, "the key is missing; write key=value, for example nodes=4.")
    override.input_line = text
    return override


def refuse_ranges(settings: Sequence[Setting]) -> None:
    """Raise ConfigError for continuous ranges, which a sweep cannot enumerate."""
    for setting in settings:
        if setting.swept and not setting.override.is_discrete_sweep():
            raise ConfigError(
                setting.name,
                "a sweep needs a finite list of values: write 0.1,0.2 or range(1,5); "
                "a study with tune: {rule: tpe} searches a range.",
            )


def setting_of(override: Override, search: Sequence[str]) -> Setting:
    """Return the setting of an override, with its line in Hydra's notation.

    search: overrides that add folders of presets
    """
    line, key = str(override.input_line), override.key_or_group
    group = group_of(key)
    if override.package is not None:  # in Hydra's own notation
        group, key = key, override.package
    if key.startswith("hydra.") and key.endswith(f".{TARGET}"):
        raise foreign_class(key)
    if "/" in key or key.startswith("hydra.") or override.is_delete():
        return Setting(line, override, False)
    if key in NESTED and override.package is None:
        owner = NESTED[key].rpartition(".")[0]
        raise ConfigError(key, f"a setting of {owner}: write {NESTED[key]}=...")
    names = None if group is None else choices_named(override)
    if group is None or (names is None and "." in key):
        return Setting(f"++{line.lstrip('+')}", override, False)
    if override.is_force_add():
        raise ConfigError(key, f"a choice cannot be forced with ++: write {typed(line)}.")
    names = names or [line.partition("=")[2]]
    choices: Sequence[str] = groups().get(group, ())
    if not set(names) <= set(choices):
        choices = choices_in(group, search)
    if override.package is not None and not choices:
        plain = line.partition("@")[2]
        raise ConfigError(f"{group}@{key}", f"there is no group '{group}'; write {plain}.")
    for name in names:
        if without_path(group, name) not in choices:
            raise no_choice(key, name, choices)
    if override.package is None and key == PRESET:
        line = line.replace(PRESET, GLOBAL, 1)
    elif override.package is None and "." in key:
        line = f"{'+' if override.is_add() else ''}{group}@{line.lstrip('+')}"
    return Setting(line, override, True)


def foreign_class(key: str) -> ConfigError:
    """Return the error for a class that Hydra is not allowed to call."""
    return ConfigError(
        key,
        "Hydra may call only a launcher and a sweeper, which are chosen by name: "
        "write hydra/launcher=basic or hydra/launcher=slurm.",
    )


def choices_named(override: Override) -> list[str] | None:
    """Return the names in an override that selects or sweeps a choice.

    Return None if one of its values cannot be a name."""
    if override.is_range_sweep():
        return None
    value: Any = override.value()
    if override.is_discrete_sweep():
        value = [unescaped(text) for text in override.sweep_string_iterator()]
    values = value if isinstance(value, list) else [value]
    plain = all(isinstance(item, str | int | float) for item in values)
    names = list(map(str, values))
    return names if plain and not re.search(r"[${}]", "".join(names)) else None


def choices_in(group: str, search: Sequence[str]) -> Sequence[str]:
    """Return the choices of ``group``, including the user's folders that ``search`` adds."""
    if not search:
        return groups().get(group, ())
    return loader().get_group_options(group, config_name="config", overrides=list(search))


def no_choice(key: str, name: str, choices: Sequence[str]) -> ConfigError:
    """Return the error for a choice that does not exist."""
    group = group_of(key) or ""
    if (why := REMOVED.get("algo" if group == "base" else group, {}).get(name)) is not None:
        return ConfigError(key, f"'{name}' was removed after version 0.2: {why}.")
    those = (
        f"is not one of {', '.join(choices)}.{nearest(name, choices)}"
        if choices
        else "does not exist; there is no choice yet."
    )
    more = {
        "hydra/launcher": " Runs of a sweep start side by side with jobs=.",
        "hydra/sweeper": " A study with tune: {rule: tpe} searches settings.",
    }
    return ConfigError(key, f"'{name}' {those}{more.get(key, '')}")

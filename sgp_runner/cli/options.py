"""The command line of ``sgp-run``: options, and overrides written key=value."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sgp_runner.config.plugins.loading import named
from sgp_runner.utils.errors import ConfigError

# Options, with an example value for those that take one.
OPTIONS = {
    **dict.fromkeys(
        ("--help", "--version", "--multirun", "--resolve", "--hydra-help", "--shell-completion")
    ),
    **{"--cfg": "job", "--package": "algo", "--info": "searchpath", "--config-dir": "results"},
    "--plugin": "./my_algorithm.py",
}
SHORT = {
    "-h": "--help",
    "-m": "--multirun",
    "-sc": "--shell-completion",
    "-c": "--cfg",
    "-p": "--package",
    "-i": "--info",
    "-cd": "--config-dir",
}


@dataclass
class Command:
    """Parsed command line.

    options: long name of an option -> its value
    plugins: the values of --plugin, which may be repeated
    """

    overrides: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    plugins: list[str] = field(default_factory=list)

    @property
    def folder(self) -> list[str]:
        """The override that adds the user's folder of presets, if there is one."""
        from sgp_runner.config.command_line import search_in

        return [search_in(self.options["--config-dir"])] if "--config-dir" in self.options else []


def read(argv: Sequence[str]) -> Command:
    """Split arguments into options and overrides. Raises ConfigError for an invalid option."""
    command = Command()
    rest = iter(argv)
    for argument in rest:
        if not argument.startswith("-"):
            command.overrides.append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = SHORT.get(option, option)
        if name not in OPTIONS:
            close = difflib.get_close_matches(option, OPTIONS, n=1, cutoff=0.7)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            example = f"settings are written key=value, for example nodes=4.{hint}"
            raise ConfigError(option, f"there is no such option; {example}")
        if OPTIONS[name] and not (value := value if equals else next(rest, "")):
            raise ConfigError(option, f"its value is missing: write {name} {OPTIONS[name]}.")
        if name == "--plugin":
            command.plugins.append(value)
        else:
            command.options[name] = value
    return command


def refuse_without_effect(options: Mapping[str, str]) -> None:
    """Raise ConfigError for an option that has no effect without, or with, another one."""
    for name in ("--package", "--resolve"):
        if name in options and "--cfg" not in options:
            raise ConfigError(name, "this option changes the output of --cfg: add --cfg job.")
    if "--cfg" in options and "--multirun" in options:
        raise ConfigError("--cfg", "this option prints the settings of one run: omit --multirun.")


def load(argv: Sequence[str]) -> Command:
    """Read the command line, load its plug-ins, and replace plug-in files by names of choices.

    For shell completion, this also loads the plug-ins in the line to complete, and removes their
    options from the line. If a plug-in cannot be loaded, its completions are missing.
    """
    command = read(argv)
    refuse_without_effect(command.options)
    if "--shell-completion" in command.options:
        option = re.compile(r"--plugin[= ](\S+)(?=\s)")
        line = os.environ.get("COMP_LINE", "")
        with suppress(ConfigError):
            named([], option.findall(line))
        os.environ["COMP_LINE"] = option.sub("", line)
    command.overrides = named(command.overrides, command.plugins)
    return command

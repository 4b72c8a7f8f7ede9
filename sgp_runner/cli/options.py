"""The command line of ``sgp-run``: options, and settings written key=value."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    options: values by the long names of the options.
    plugins: values of --plugin, which may be repeated.
    """

    settings: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    plugins: list[str] = field(default_factory=list)


def read(words: Sequence[str]) -> Command:
    """Split words into options and settings. Raises ConfigError for an invalid option."""
    command = Command()
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            command.settings.append(word)
            continue
        option, equals, value = word.partition("=")
        name = SHORT.get(option, option)
        if name not in OPTIONS:
            close = difflib.get_close_matches(option, OPTIONS, n=1, cutoff=0.7)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            example = f"settings are written key=value, for example nodes=4.{hint}"
            raise ConfigError(option, f"there is no such option; {example}")
        if OPTIONS[name] and not (value := value if equals else next(rest, "")):
            raise ConfigError(option, f"its value is missing, for example {name} {OPTIONS[name]}.")
        if name == "--plugin":
            command.plugins.append(value)
        else:
            command.options[name] = value
    return command

"""Options that Hydra answers: shell completion, and what it found where."""

from __future__ import annotations

import re

from sgp_runner.cli.completion import candidates
from sgp_runner.config.command_line import parse
from sgp_runner.utils.errors import ConfigError

HYDRA_OPTIONS = ("--shell-completion", "--info", "--hydra-help")


def ask_hydra(option: str, value: str, overrides: list[str]) -> int:
    """Let Hydra answer ``option``, one of `HYDRA_OPTIONS`. Nothing is run."""
    from hydra._internal.utils import get_args_parser
    from hydra.core.global_hydra import GlobalHydra

    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    if option == "--shell-completion":
        from hydra.plugins.completion_plugin import CompletionPlugin

        allowed = "(install|uninstall|query)=(bash|zsh|fish)"
        if len(overrides) != 1 or not re.fullmatch(allowed, overrides[0]):
            raise ConfigError(option, "write -sc install=bash, zsh or fish.")
        # Hydra's plug-ins know the shells, but not which keys are settings.
        setattr(CompletionPlugin, "_query", lambda self, config_name, line: candidates(line))  # noqa: B010
        hydra.shell_completion("config", overrides)
        return 0
    words = [setting.word for setting in parse(overrides)]
    if option == "--info":
        hydra.show_info(value, "config", words)
    else:
        parser = get_args_parser()
        hydra.hydra_help("config", parser, parser.parse_args(words))
    return 0

"""The modes of ``sgp-run``: one run, a sweep, ``--help``, ``--cfg`` and the options of Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf import Container, DictConfig, OmegaConf

from sgp_runner.assembly.execution import run_experiment
from sgp_runner.cli import STARTED
from sgp_runner.cli.argparser import put
from sgp_runner.cli.completion import candidates
from sgp_runner.cli.help import commented, explained, usage
from sgp_runner.cli.options import Command
from sgp_runner.cli.sweep import is_sweep, refuse_sweep, sweep
from sgp_runner.config.check import check_tree
from sgp_runner.config.choices import CONFIGS
from sgp_runner.config.command_line import Setting, choices_named, parse, refuse_ranges
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, compose_all, configs
from sgp_runner.config.schema import is_part
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.signals import signal_state

FOR_HYDRA = ("--shell-completion", "--info", "--hydra-help")


def run_mode(command: Command) -> int:
    """Run the mode that the options select and return the exit code."""
    options = command.options
    with configs():
        overrides = [*command.overrides, *command.folder]
        for option in FOR_HYDRA:
            if option in options:
                return ask_hydra(option, options[option], overrides)
        settings = parse(overrides)
        if "--help" in options:
            return explain(settings, options.get("--config-dir"))
        if "--multirun" in options:
            return sweep(settings)
        refuse_ranges(settings)
        if "--cfg" in options:
            refuse_sweep(settings)
            return print_settings(settings, options)
        if is_sweep(settings):
            return sweep(settings)
        refuse_sweep(settings, "hydra/launcher", "hydra/sweeper")
        return run_alone(settings)


def run_alone(settings: Sequence[Setting]) -> int:
    """Run one experiment, print its summary table and return the exit code."""
    experiment = replace(make_experiment(compose(settings)), started=STARTED)
    try:
        summary = run_experiment(experiment, fork=bool(signal_state.command))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"before the end; its records are in {experiment.directory}"
        ) from error
    if summary is not None:
        from sgp_runner.console.summary import show, summary_table

        show(summary_table(summary))
    return 0


def explain(settings: Sequence[Setting], folder: str | None) -> int:
    """Explain the choices among ``settings``; without choices, print the general help."""
    choices = [setting for setting in settings if setting.choice]
    for choice in choices:
        if choice.swept:
            raise ConfigError(choice.name, "--help explains one choice at a time.")
    named = [
        (setting.name, name)
        for setting in choices
        for name in choices_named(setting.override) or ()
    ]
    config = compose(settings) if choices else {}
    folders = [Path(folder), CONFIGS] if folder else [CONFIGS]
    texts = [
        "\n".join(explained(config, key, name, folders))
        for key, name in named
        if not any(key.startswith(f"{other}.") for other, _ in named)
    ]
    put("\n\n".join(texts) if choices else usage(folder))
    return 0


def print_settings(settings: Sequence[Setting], options: Mapping[str, str]) -> int:
    """Print the settings of a run, of Hydra or of both, as selected by ``--cfg``."""
    what = options["--cfg"]
    if what not in ("job", "hydra", "all"):
        raise ConfigError("--cfg", f"'{what}' is not one of job, hydra, all.")
    check_tree(compose(settings))
    config = compose_all(settings, hydra_too=what != "job")
    if what == "hydra":
        config = OmegaConf.masked_copy(config, "hydra")
    put(settings_yaml(config, options.get("--package", ""), "--resolve" in options))
    return 0


def settings_yaml(config: DictConfig, package: str, resolve: bool) -> str:
    """Return the settings, or only the settings below ``package``, as YAML with descriptions.

    resolve: resolve interpolations, and omit the descriptions
    """
    node = OmegaConf.select(config, package) if package not in ("", "_global_") else config
    if node is None:
        raise ConfigError("--package", f"the configuration has no '{package}'.")
    if not isinstance(node, Container):
        return str(node)
    key = package.removeprefix("_global_")
    head = [f"# @package {key}"] if key else []
    if resolve or "hydra" in config or (key and not is_part(key)):
        return "\n".join([*head, OmegaConf.to_yaml(node, resolve=resolve).rstrip()])
    tree: Any = OmegaConf.to_container(node)
    return "\n".join([*head, *commented(tree, key, "")])


def ask_hydra(option: str, value: str, overrides: list[str]) -> int:
    """Let Hydra handle ``option``, one of `FOR_HYDRA`, without starting a run."""
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    if option == "--shell-completion":
        allowed = "(install|uninstall|query)=(bash|zsh|fish)"
        if len(overrides) != 1 or not re.fullmatch(allowed, overrides[0]):
            raise ConfigError(option, "write -sc install=bash, zsh or fish.")
        # Hydra's plug-ins support the shells, but not our keys and values.
        setattr(CompletionPlugin, "_query", lambda self, config_name, line: candidates(line))  # noqa: B010
        hydra.shell_completion("config", overrides)
        return 0
    lines = [setting.line for setting in parse(overrides)]
    if option == "--info":
        hydra.show_info(value, "config", lines)
    else:
        parser = get_args_parser()
        hydra.hydra_help("config", parser, parser.parse_args(lines))
    return 0

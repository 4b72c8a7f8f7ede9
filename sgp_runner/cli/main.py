"""The command ``sgp-run``.

Its arguments (``argv``) are options and overrides, ``key=value``. `parse` makes each override a
`Setting`, once, and `compose` makes the settings the configuration of a run. Settings that cannot
work are refused in one sentence on stderr, with exit code 2, before anything is written.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from sgp_runner._version import __version__
from sgp_runner.cli.argparser import put
from sgp_runner.cli.exits import run_command
from sgp_runner.cli.help import explain, print_settings, usage
from sgp_runner.cli.hydra_options import HYDRA_OPTIONS, ask_hydra
from sgp_runner.cli.jobs import run_alone
from sgp_runner.cli.options import load
from sgp_runner.cli.search import search, searches
from sgp_runner.cli.sweep import is_sweep, refuse_sweep, sweep
from sgp_runner.config.command_line import parse, refuse_ranges
from sgp_runner.config.overrides import configs
from sgp_runner.utils.launchers import QUIET_LIBRARIES, LaunchError, launched
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.signals import answer, defer

#: Sub-commands, each a module of this package whose ``main`` takes the arguments after its name.
SUBCOMMANDS = ("calibrate", "download", "new")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, one of those of `run_command`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command("sgp-run", lambda: dispatch(arguments))


def defer_signals_among_ranks() -> None:
    """Let the watchdog of a rank that a launcher started answer signals, outside training."""
    with suppress(LaunchError):  # a run says what is wrong
        process = launched()
        if process is not None and process.size > 1:
            defer(speaks=process.rank == 0)
            os.environ.update({**QUIET_LIBRARIES, **os.environ})  # before torch reads it
            return
    answer()


def dispatch(argv: Sequence[str]) -> int:
    """Do what the arguments ask for and return the exit code."""
    defer_signals_among_ranks()
    for argument in argv:
        refuse_secrets(argument.partition("="), argument.partition("=")[0])
    if argv and argv[0] in SUBCOMMANDS:
        code: int = importlib.import_module(f"sgp_runner.cli.{argv[0]}").main(argv[1:])
        return code
    if "--version" in argv:
        put(f"sgp-run {__version__}")
        return 0
    command = load(argv)
    options = command.options
    if "--help" in options and not command.overrides:
        put(usage(options.get("--config-dir")))
        return 0
    with configs():
        overrides = [*command.overrides, *command.folder]
        for option in HYDRA_OPTIONS:
            if option in options:
                return ask_hydra(option, options[option], overrides)
        settings = parse(overrides)
        if "--help" in options:
            return explain(settings, options.get("--config-dir"))
        if "--multirun" in options:
            return search(settings) if searches(settings) else sweep(settings)
        refuse_ranges(settings)
        if "--cfg" in options:
            refuse_sweep(settings)
            return print_settings(settings, options)
        if is_sweep(settings):
            return sweep(settings)
        refuse_sweep(settings, "hydra/launcher", "hydra/sweeper")
        return run_alone(settings)

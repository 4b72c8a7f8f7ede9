"""The command ``sgp-run``.

Its arguments (``argv``) are options and overrides (``key=value``). `parse` converts each override
to a `Setting`, and `compose` makes the configuration of a run from all settings. If the settings
cannot work, the command writes one sentence to stderr and no files, and exits with code 2.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from sgp_runner._version import __version__
from sgp_runner.cli.argparser import put
from sgp_runner.cli.exits import run_command
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import QUIET_LIBRARIES, LaunchError, launched
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.signals import defer, enable
from sgp_runner.utils.variables import check_switches

#: Sub-commands and their modules, whose ``main`` takes the arguments after the name; ``HELP`` is
#: the text of --help, which the others do not have or print themselves.
SUBCOMMANDS = {
    "calibrate": "calibrate",
    "check": "check_machine",
    "diff": "diff",
    "download": "download",
    "doctor": "doctor",
    "export": "export",
    "new": "new",
    "plan": "plan",
    "study": "study",
}

#: The commands that somebody new types, and the same on well-known data.
FIRST = {
    (): "sgp-run model=conv data=fashion_mnist nodes=4 epochs=1",
    ("experiment=compare",): "sgp-run experiment=fashion_compare",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `run_command`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command("sgp-run", lambda: dispatch(arguments))


def defer_signals_among_ranks() -> None:
    """On ranks of a launcher, let the watchdog handle signals before and after training too."""
    with suppress(LaunchError):  # the run reports the error
        process = launched()
        if process is not None and process.size > 1:
            defer(reports=process.rank == 0)
            os.environ.update({**QUIET_LIBRARIES, **os.environ})  # before torch reads it
            return
    enable()


def dispatch(argv: Sequence[str]) -> int:
    """Run the command that the arguments select and return the exit code."""
    defer_signals_among_ranks()
    check_switches()
    for argument in argv:
        refuse_secrets(argument.partition("="), argument.partition("=")[0])
    if argv and (name := SUBCOMMANDS.get(argv[0])) is not None:
        module = importlib.import_module(f"sgp_runner.cli.{name}")
        if hasattr(module, "HELP") and not {"-h", "--help"}.isdisjoint(argv):
            put(module.HELP)
            return 0
        code: int = module.main(argv[1:])
        return code
    if argv and (meant := get_close_matches(argv[0], SUBCOMMANDS, n=1, cutoff=0.8)):
        raise ConfigError(argv[0], f"this is not a command. Did you mean '{meant[0]}'?")
    if "--version" in argv:
        put(f"sgp-run {__version__}")
        return 0
    from sgp_runner.cli.options import load

    command = load(argv)
    if "--help" in command.options and not command.overrides:
        from sgp_runner.cli.help import usage

        put(usage(command.options.get("--config-dir")))
        return 0
    from sgp_runner.cli.modes import run_mode

    code = run_mode(command)
    if code == 0 and (again := FIRST.get(tuple(argv))) is not None:
        put(f"\nOn Fashion-MNIST:\n  sgp-run download fashion_mnist && {again}")
    return code

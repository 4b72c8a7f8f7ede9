"""Argument parsing of the smaller commands; an error is one sentence on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from sgp_runner.cli.exits import print_error
from sgp_runner.utils.errors import nearest


class Parser(argparse.ArgumentParser):
    """Argument parser that exits with code 2 on a usage error.

    For a word that is not a choice, the error suggests the closest choice.
    """

    def print_help(self, file: object = None) -> None:
        put(self.format_help().rstrip())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = nearest(str(value), action.choices)
            raise argparse.ArgumentError(
                action, f"'{value}' is not one of {', '.join(action.choices)}.{near}"
            )

    def error(self, message: str) -> NoReturn:
        print_error(self.prog, message)
        sys.exit(2)


def put(text: str) -> None:
    """Print ``text`` on stdout, even if a reader such as head closes the pipe early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add the option --plugin; loading a stored run does not import its plug-ins."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="a plug-in that a run used: its file, folder or installed package; may be repeated",
    )

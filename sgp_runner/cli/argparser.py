"""Argument parsing of the smaller commands, with errors of one sentence on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.signals import INTERRUPTED


class Parser(argparse.ArgumentParser):
    """Argument parser that ends the command with exit code 2 on a usage error."""

    def print_help(self, file: object = None) -> None:
        put(self.format_help().rstrip())

    def error(self, message: str) -> NoReturn:
        say(self.prog, message)
        sys.exit(2)


def put(text: str) -> None:
    """Print ``text`` on stdout, to a reader that may have enough before its end, such as head."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the plug-ins of stored runs, which import nothing themselves."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="a plug-in that a run used: its file, folder or installed package; may be repeated",
    )


def load_plugins(sources: Sequence[str], words: Sequence[str] = ()) -> list[str]:
    """Load plug-ins; return ``words`` with the choices that are files by name."""
    from sgp_runner.config.plugins.loading import named

    return named(words, sources) if sources or words else []


def say(command: str, sentence: str) -> None:
    print(redacted(f"{command}: {sentence}"), file=sys.stderr, flush=True)


def exit_code(command: str, work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code; 1 for an error, 2 for ConfigError, 130 for Ctrl-C."""
    show_messages()
    try:
        return work()
    except ConfigError as error:
        say(command, str(error))
        return 2
    except KeyboardInterrupt:
        say(command, "interrupted")
        return INTERRUPTED
    except Exception as error:
        from sgp_runner.session.execution import print_traceback_if_wanted, sentence_of

        print_traceback_if_wanted(error)
        say(command, sentence_of(error))
        return 1

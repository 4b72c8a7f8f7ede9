"""The command ``sgp-run``.

Settings that cannot work are refused in one sentence on stderr, with exit code 2, before anything
is written.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sgp_runner._version import __version__
from sgp_runner.cli import STARTED
from sgp_runner.cli.argparser import put
from sgp_runner.cli.options import Command, read
from sgp_runner.utils.errors import (
    DIVERGED,
    Aborted,
    ConfigError,
    Diverged,
    DivergedBefore,
    Stopped,
)
from sgp_runner.utils.launchers import QUIET_LIBRARIES, LaunchError, launched, launched_rank
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.secrets import redacted, refuse_secrets
from sgp_runner.utils.signals import INTERRUPTED, defer, enable, exit_code, signal_state

if TYPE_CHECKING:
    from sgp_runner.config.overrides import Setting

# Time for the rank that reports: it closes its files and, if it hosts the store, waits until the
# others have read why.
SECONDS_TO_SPEAK = 5.0
FOR_HYDRA = ("--shell-completion", "--info", "--hydra-help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: success
    1: a run failed
    2: settings that cannot work
    3: a run diverged
    75: stopped by a signal; the same command resumes the run
    130: Ctrl-C; during training, the same command resumes the run
    """
    words = list(sys.argv[1:] if argv is None else argv)
    show_messages()
    try:
        defer_among_others()
        code = act(words)
        mirror = sys.modules.get("sgp_runner.recording.loggers.mirror")
        if mirror is not None and mirror.abandoned.is_set():
            leave(code)
    except BaseException as error:
        if isinstance(error, SystemExit) and not is_of_plugin(error):
            raise
        sentence, code = ending(error)
        code = complain(error, sentence, code)
        if isinstance(error, Stopped):
            leave(code)  # a stopped rank does not take its connections down in order
    waits = sys.modules.get("sgp_runner.utils.waits")
    if waits is not None and waits.left_behind:
        leave(code)
    return code


def defer_among_others() -> None:
    """Let the watchdog of a rank that a launcher started answer signals, outside training."""
    with suppress(LaunchError):  # a run says what is wrong
        process = launched()
        if process is not None and process.size > 1:
            defer(reports=process.rank == 0)
            os.environ.update({**QUIET_LIBRARIES, **os.environ})  # before torch reads it
            return
    enable()


def is_of_plugin(error: SystemExit) -> bool:
    """Return whether code of the user wants to end the command, which is no success."""
    from sgp_runner.utils.user_code import user_code_line

    return bool(user_code_line(error))


def ending(error: BaseException) -> tuple[str, int]:
    """Return the sentence and the exit code of a command that ``error`` ends."""
    if isinstance(error, KeyboardInterrupt):
        return " ".join(["interrupted", *error.args]), INTERRUPTED
    if signal_state.interrupted:  # a library has made another error of it
        return "interrupted", INTERRUPTED
    match error:
        case ConfigError():
            return str(error), 2
        case Stopped():
            return str(error), exit_code(error.number)
        case Diverged():
            return str(error), DIVERGED
    from sgp_runner.session.execution import sentence_of

    return sentence_of(error), 1


def leave(code: int) -> NoReturn:
    """End this process without waiting for its threads and connections."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def complain(error: BaseException, sentence: str, code: int) -> int:
    from sgp_runner.session.execution import print_traceback_if_wanted

    print_traceback_if_wanted(error)
    if isinstance(error, Aborted) or (
        (code == 2 or isinstance(error, Stopped | DivergedBefore)) and said_by_another(error)
    ):
        # Another rank reports for all; the launcher kills the others when the first one ends.
        time.sleep(SECONDS_TO_SPEAK)
    else:
        signal_state.command = ""  # a signal from now on adds no second sentence
        print(f"sgp-run: {redacted(sentence)}", file=sys.stderr, flush=True)
    return code


def said_by_another(error: BaseException) -> bool:
    """Return whether rank 0 reports the same error, unlike one of this rank's own environment."""
    try:
        return not isinstance(error, LaunchError) and launched_rank() not in (None, 0)
    except LaunchError:
        return False


def act(words: Sequence[str]) -> int:
    for word in words:
        refuse_secrets(word.partition("="), word.partition("=")[0])
    if words[:1] == ["calibrate"]:
        from sgp_runner.cli.calibrate import calibrate

        return calibrate(words[1:])
    if words[:1] == ["download"]:
        from sgp_runner.cli.download import download

        return download(words[1:])
    if words[:1] == ["new"]:
        from sgp_runner.cli.new import new

        return new(words[1:])
    if "--version" in words:
        put(f"sgp-run {__version__}")
        return 0
    if "--shell-completion" in words or "-sc" in words:
        load_typed_plugins()
    command = load_plugins(words)
    if "--help" in command.options and not command.settings:
        from sgp_runner.cli.help import usage

        put(usage(command.options.get("--config-dir")))
        return 0

    from sgp_runner.config.overrides import configs, parse, refuse_ranges, search_in

    with configs():
        if folder := command.options.get("--config-dir"):
            command.settings.append(search_in(folder))
        if asked := [option for option in FOR_HYDRA if option in command.options]:
            return ask_hydra(asked[0], command)
        settings = parse(command.settings)
        if "--help" in command.options:
            return explain(command, settings)
        from sgp_runner.cli.search import search, searches
        from sgp_runner.cli.sweep import is_sweep, sweep

        if "--multirun" in command.options:
            return search(settings) if searches(settings) else sweep(settings)
        refuse_ranges(settings)
        if "--cfg" not in command.options and is_sweep(settings):
            return sweep(settings)
        for setting in settings:
            if setting.name == "jobs":
                raise ConfigError("jobs", "it is the number of runs of a sweep at a time; add -m.")
            if setting.swept:
                raise ConfigError(
                    setting.name, "several values make a sweep; add -m to run all of them."
                )
            if (
                setting.name in ("hydra/launcher", "hydra/sweeper")
                and "--cfg" not in command.options
            ):
                raise ConfigError(setting.name, "it starts the runs of a sweep; add -m.")
        return print_settings(command) if "--cfg" in command.options else run(command.settings)


def load_typed_plugins() -> None:
    """Load the packages that the line to complete names, and take the option out of it for Hydra.

    A package that does not work completes nothing.
    """
    from sgp_runner.config.plugins.loading import named

    option = re.compile(r"--plugin[= ](\S+)(?=\s)")
    line = os.environ.get("COMP_LINE", "")
    with suppress(ConfigError):
        named([], option.findall(line))
    os.environ["COMP_LINE"] = option.sub("", line)


def load_plugins(words: Sequence[str]) -> Command:
    """Parse the command line and load the plug-ins that it names."""
    from sgp_runner.config.plugins.loading import named

    command = read(words)
    command.settings = named(command.settings, command.plugins)
    return command


def run(words: Sequence[str]) -> int:
    """Run one experiment from its ``words``, as Hydra wants them, to its table."""
    from sgp_runner.config.overrides import compose
    from sgp_runner.config.schema import make_experiment
    from sgp_runner.session.execution import perform

    experiment = replace(make_experiment(compose(words)), started=STARTED)
    try:
        summary = perform(experiment, fork=bool(signal_state.command))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"before the end; what was recorded is in {experiment.directory}"
        ) from error
    if summary is not None:
        from sgp_runner.recording.console import show, summary_table

        show(summary_table(summary))
    return 0


def explain(command: Command, settings: Sequence[Setting]) -> int:
    """Print what the choices among ``settings`` are; without choices, what there is."""
    from sgp_runner.cli.help import usage, usage_of
    from sgp_runner.config.choices import CONFIGS
    from sgp_runner.config.overrides import choices_named, compose

    choices = [setting for setting in settings if setting.choice]
    for choice in choices:
        if choice.swept:
            raise ConfigError(choice.name, "--help explains one choice at a time.")
    if not choices:
        put(usage(command.options.get("--config-dir")))
        return 0
    folders = [Path(folder) for folder in (command.options.get("--config-dir"), CONFIGS) if folder]
    named = [(each.name, name) for each in choices for name in choices_named(each.override) or ()]
    put(usage_of(compose(command.settings), named, folders))
    return 0


def print_settings(command: Command) -> int:
    from omegaconf import OmegaConf

    from sgp_runner.cli.help import described
    from sgp_runner.config.overrides import compose, compose_all
    from sgp_runner.config.schema import check_tree

    what = command.options["--cfg"]
    if what not in ("job", "hydra", "all"):
        raise ConfigError("--cfg", f"'{what}' is none of job, hydra, all.")
    check_tree(compose(command.settings))
    config = compose_all(command.settings, hydra_too=what != "job")
    if what == "hydra":
        config = OmegaConf.masked_copy(config, "hydra")
    put(described(config, command.options.get("--package", ""), "--resolve" in command.options))
    return 0


def ask_hydra(option: str, command: Command) -> int:
    """Let Hydra answer ``option``, one of `FOR_HYDRA`. Nothing is run."""
    from hydra._internal.utils import get_args_parser
    from hydra.core.global_hydra import GlobalHydra

    from sgp_runner.config.overrides import parse

    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    if option == "--shell-completion":
        from hydra.plugins.completion_plugin import CompletionPlugin

        from sgp_runner.cli.completion import candidates

        allowed = "(install|uninstall|query)=(bash|zsh|fish)"
        if len(command.settings) != 1 or not re.fullmatch(allowed, command.settings[0]):
            raise ConfigError(option, "write -sc install=bash, zsh or fish.")
        # Hydra's plug-ins know the shells, but not which keys are settings.
        setattr(CompletionPlugin, "_query", lambda self, config_name, line: candidates(line))  # noqa: B010
        hydra.shell_completion("config", command.settings)
        return 0
    words = [setting.word for setting in parse(command.settings)]
    if option == "--info":
        hydra.show_info(command.options[option], "config", words)
    else:
        parser = get_args_parser()
        hydra.hydra_help("config", parser, parser.parse_args(words))
    return 0

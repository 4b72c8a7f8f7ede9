"""The command ``sgp-run``. Settings that cannot work are one sentence on stderr and exit code 2, before anything is written."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from sgp_runner import STARTED
from sgp_runner.credentials import redacted, refuse_secrets
from sgp_runner.errors import DIVERGED, SAVED, Aborted, ConfigError, Diverged, DivergedBefore, Stopped

# Flags that Hydra answers: how many words follow.
HYDRA_FLAGS = {"--cfg": 1, "-c": 1, "--package": 1, "-p": 1, "--info": 1, "-i": 1, "--resolve": 0, "--hydra-help": 0}
COMPLETION = ("--shell-completion", "-sc")
SECONDS_TO_SPEAK = 5.0  # for a rank that first closes its files and, if it keeps the store, waits until the others have read why
OWN_FLAGS = ("--help", "-h", "--version", "--multirun", "-m", "--config-dir", "-cd")


@dataclass
class Command:
    """What the words of a command line ask for."""

    settings: list[str] = field(default_factory=list)
    hydra_flags: list[str] = field(default_factory=list)
    config_dir: str | None = None
    sweep: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, 1 when a run failed, 2 for settings that cannot work, 3 when it diverged,
    75 when a signal stopped it and the same command goes on from there, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = act(words)
        mirror = sys.modules.get("sgp_runner.loggers.wandb")
        if mirror is not None and mirror.abandoned.is_set():
            leave(code)
    except ConfigError as error:
        code = complain(error, str(error), 2)
    except Stopped as error:
        leave(complain(error, str(error), SAVED))  # what a rank has connected is not taken down in order
    except Diverged as error:
        code = complain(error, str(error), DIVERGED)
    except KeyboardInterrupt as error:
        code = complain(error, " ".join(["interrupted", *error.args]), 130)
    except Exception as error:
        from sgp_runner.execution import sentence_of

        code = complain(error, sentence_of(error), 1)
    waits = sys.modules.get("sgp_runner.waits")
    if waits is not None and waits.left_behind:
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End this process without waiting for its threads and connections."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def complain(error: BaseException, sentence: str, code: int) -> int:
    from sgp_runner.execution import print_traceback_if_wanted

    print_traceback_if_wanted(error)
    if isinstance(error, Aborted) or ((code in (2, SAVED) or isinstance(error, DivergedBefore)) and said_by_another(error)):
        time.sleep(SECONDS_TO_SPEAK)  # another rank speaks for all; the launcher kills the others when the first one ends
    else:
        print(f"sgp-run: {redacted(sentence)}", file=sys.stderr, flush=True)
    return code


def said_by_another(error: BaseException) -> bool:
    """Whether the first rank reports the same; what is wrong with a rank's own environment it has to say itself."""
    from sgp_runner.launchers import LaunchError, launched_rank

    try:
        return not isinstance(error, LaunchError) and launched_rank() not in (None, 0)
    except LaunchError:
        return False


def act(words: Sequence[str]) -> int:
    if words[:1] == ["calibrate"]:
        from sgp_runner.calibration.cli import calibrate

        return calibrate(words[1:])
    if "--help" in words or "-h" in words:
        from sgp_runner.usage import usage

        print(usage())
        return 0
    if "--version" in words:
        from sgp_runner import __version__

        print(f"sgp-run {__version__}")
        return 0
    if any(flag in words for flag in COMPLETION):
        return ask_hydra(words)
    command = read(words)
    for word in words:
        refuse_secrets(word, word.partition("=")[0])

    from sgp_runner.overrides import compose, configs, parse, rehearsed, search_in, with_whole_mappings
    from sgp_runner.schema import check_node

    with configs():
        if command.config_dir is not None:
            command.settings.append(search_in(command.config_dir))
        settings = parse(command.settings)
        if command.sweep:
            from sgp_runner.sweep import sweep

            return sweep(settings)
        for setting in settings:
            if setting.swept:
                raise ConfigError(setting.name, "several values make a sweep; add -m to run one after the other.")
            if setting.name == "hydra/launcher" and not command.hydra_flags:
                raise ConfigError(setting.name, "it starts the runs of a sweep; add -m.")
        hydra_words = [setting.word for setting in settings]
        if not command.hydra_flags:
            return run(hydra_words)
        tree = compose(hydra_words)  # also for the sake of what it refuses
        check_node(tree, "", tree)
        hydra_words = with_whole_mappings(rehearsed(hydra_words))
    return ask_hydra([*command.hydra_flags, *hydra_words])


def read(words: Sequence[str]) -> Command:
    """Tell flags from settings. Raises ConfigError for a flag that does not exist or lacks its value."""
    command = Command()
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            command.settings.append(word)
        elif flag in ("-m", "--multirun"):
            command.sweep = True
        elif flag in ("-cd", "--config-dir"):
            command.config_dir = value if equals else next(rest, None)
            if command.config_dir is None:
                raise ConfigError(flag, "the folder is missing.")
        elif flag in HYDRA_FLAGS:
            command.hydra_flags.append(word)
            if HYDRA_FLAGS[flag] and not equals:
                if (value := next(rest, "")) == "":
                    raise ConfigError(flag, "its value is missing, for example --cfg job.")
                command.hydra_flags.append(value)
        else:
            close = difflib.get_close_matches(flag, [*OWN_FLAGS, *HYDRA_FLAGS], n=1, cutoff=0.7)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise ConfigError(flag, f"there is no such option; settings are written key=value, for example nodes=4.{hint}")
    return command


def run(words: Sequence[str]) -> int:
    """One run, from its settings, as Hydra wants them, to its table."""
    from sgp_runner.execution import perform
    from sgp_runner.overrides import compose
    from sgp_runner.schema import make_experiment

    experiment = replace(make_experiment(compose(words)), started=STARTED)
    try:
        summary = perform(experiment)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"before the end; what was recorded is in {experiment.directory}") from error
    if summary is not None:
        from sgp_runner.console import show, summary_table

        show(summary_table(summary))
    return 0


def ask_hydra(words: Sequence[str]) -> int:
    """Let Hydra answer: ``--cfg``, ``--info``, shell completion. Nothing is run."""
    import hydra

    from sgp_runner.groups import CONFIGS

    before = sys.argv
    sys.argv = ["sgp-run", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="config")(lambda config: None)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0

"""Exit codes of the commands, and errors as one sentence on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from sgp_runner.utils.errors import (
    DIVERGED,
    Aborted,
    ConfigError,
    Diverged,
    DivergedBefore,
    Stopped,
)
from sgp_runner.utils.launchers import LaunchError, launched_rank
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.signals import INTERRUPTED, end_at_once, exit_code, signal_state
from sgp_runner.utils.user_code import user_code_line

# Time for the reporting rank to close its files and, if it hosts the store, to wait until the other
# ranks have read the reason.
SECONDS_TO_REPORT = 5.0


def run_command(command: str, work: Callable[[], int]) -> int:
    """Run ``work`` and return the exit code; describe an error in one sentence on stderr.

    0: success
    1: any other error
    2: ConfigError: a request that cannot work
    3: a run diverged
    75: stopped by a signal; the same command resumes the run
    130: Ctrl-C; if it came during training, the same command resumes the run
    """
    show_messages()
    try:
        code = work()
        mirror = sys.modules.get("sgp_runner.recording.loggers.mirror")
        if mirror is not None and mirror.abandoned.is_set():
            end_at_once(code)
    except BaseException as error:
        if isinstance(error, SystemExit) and not user_code_line(error):
            raise
        code = report_error(command, error)
        if isinstance(error, Stopped):
            end_at_once(code)  # a stopped rank does not close its connections in order
    waits = sys.modules.get("sgp_runner.utils.waits")
    if waits is not None and waits.left_behind:
        end_at_once(code)
    return code


def report_error(command: str, error: BaseException) -> int:
    """Print an error as one sentence, unless another rank does, and return the exit code."""
    from sgp_runner.assembly.execution import print_traceback_if_wanted

    sentence, code = describe_error(error)
    print_traceback_if_wanted(error)
    if isinstance(error, Aborted) or (
        (code == 2 or isinstance(error, Stopped | DivergedBefore)) and reported_by_rank0(error)
    ):
        # The launcher kills the others when the first rank ends.
        time.sleep(SECONDS_TO_REPORT)
    else:
        signal_state.command = ""  # a signal from now on adds no second sentence
        print_error(command, sentence)
    return code


def describe_error(error: BaseException) -> tuple[str, int]:
    """Return a sentence that describes ``error``, and the exit code for it."""
    from sgp_runner.assembly.execution import sentence_of

    if isinstance(error, KeyboardInterrupt):
        return " ".join(["interrupted", *error.args]), INTERRUPTED
    if signal_state.interrupted:  # a library has replaced KeyboardInterrupt
        return "interrupted", INTERRUPTED
    match error:
        case ConfigError():
            return str(error), 2
        case Stopped():
            return str(error), exit_code(error.number)
        case Diverged():
            return str(error), DIVERGED
    return sentence_of(error), 1


def print_error(command: str, sentence: str) -> None:
    print(redacted(f"{command}: {sentence}"), file=sys.stderr, flush=True)


def reported_by_rank0(error: BaseException) -> bool:
    """Return whether rank 0 reports the same error; a LaunchError may affect this rank only."""
    try:
        return not isinstance(error, LaunchError) and launched_rank() not in (None, 0)
    except LaunchError:
        return False

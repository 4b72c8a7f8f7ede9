"""Handling of the signals that end a command, from the start of the command to its end.

Ctrl-C (SIGINT) ends a command with exit code 130; SIGTERM, SIGUSR1 and SIGUSR2 end it with 75.
After `install` a signal ends the process at once, with three exceptions:

- `stop_signals` routes the signal to a run that saves first, or to a process that forwards it. A
  second Ctrl-C then raises KeyboardInterrupt.
- `interruptible` turns Ctrl-C into a KeyboardInterrupt, so that the caller can clean up.
- `defer` stores the signal for the watchdog of a rank, which notifies the other ranks.

Python calls handlers only between two instructions of the main thread, which may be blocked in a
library, and a library may swallow a KeyboardInterrupt. Therefore a second thread receives the
signals too. It handles a signal that the main thread does not handle in time. If a signal should
have ended the process, this thread ends the process after `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # ask a run to save and stop
ENDING = (signal.SIGINT, *SIGNALS)
INTERRUPTED = 130  # exit code after Ctrl-C
SAVED = 75  # exit code of a run that was stopped; EX_TEMPFAIL of sysexits.h: try again
BLOCKED_SECONDS = 1.0  # after which the main thread is taken to be inside a library
PATIENCE_SECONDS = 10.0
STOPPING = "Stopping; a run that trains is saved first. Ctrl-C again ends the command at once."


@dataclass
class SignalState:
    """State of the signal handlers of this process.

    command: name of the command in its report; empty after the report, or if another process writes
        it
    deferred: whether signals are stored in ``pending`` for a watchdog
    reports: whether this rank writes the report when the watchdogs end all ranks
    handled: signals that the main thread has handled
    interrupted: whether a KeyboardInterrupt was raised
    code: the exit code, once it is known
    asked: the signal to stop the current run; it may have come too late to save the run
    """

    command: str = ""
    deferred: bool = False
    reports: bool = True
    pending: int | None = None
    handled: set[int] = field(default_factory=set)
    interrupted: bool = False
    code: int | None = None
    asked: int | None = None


signal_state = SignalState()
exiting = Lock()


@contextmanager
def blocked() -> Iterator[set[int]]:
    """Block the signals that end a command; yield the previous signal mask.

    Processes that are started in this context inherit the blocked signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def install(command: str, deferred: bool = False) -> None:
    """Handle signals until the process ends. Call this before importing anything slow.

    deferred: store signals until `defer` or `enable` is called, because a rank that exits before it
        is connected could not notify the other ranks

    An ignored signal, such as SIGINT of a command in the background, stays ignored. A process that
    was forked from a command with handlers may call this again while its signals are blocked.
    """
    vars(signal_state).update(vars(SignalState(command, deferred)))
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, default_handler)
    atexit.register(exit_with_code)
    os.register_at_fork(after_in_child=restore_defaults)
    received, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    Thread(target=signal_thread, args=(received,), daemon=True).start()


def install_in_rank() -> None:
    """Store signals for the watchdog of this rank; the launching process writes the report."""
    install("")
    defer(reports=True)


def defer(reports: bool) -> None:
    """Store signals for this rank's watchdog from now on.

    reports: whether this rank writes the report when the watchdogs end all ranks
    """
    signal_state.deferred, signal_state.reports = True, reports


def enable() -> None:
    """Exit on signals from now on, and at once if one is stored: no other rank must be notified."""
    signal_state.deferred = False
    if signal_state.pending is not None:
        exit_now(signal_state.pending)


def default_handler(number: int, frame: FrameType | None) -> None:
    """Exit on a signal, or store it if signals are deferred; the default after `install`."""
    signal_state.handled.add(number)
    signal_state.pending = signal_state.pending or number
    if not signal_state.deferred:
        exit_now(number)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on the first Ctrl-C; exit on the second Ctrl-C."""
    signal_state.handled.add(number)
    if signal_state.interrupted:
        exit_now(number)
    signal_state.interrupted = True
    raise KeyboardInterrupt


def signal_thread(received: int) -> None:
    """Handle signals that the main thread misses; end a process that should have exited."""
    interrupts = 0
    while byte := os.read(received, 1):  # none if user code has closed the other end
        number = byte[0]
        interrupts += number == signal.SIGINT
        again = interrupts > 1 and not signal_state.deferred
        if again or number not in signal_state.handled:
            time.sleep(BLOCKED_SECONDS)
        if again and not signal_state.interrupted:
            exit_now(signal.SIGINT)
        handler = None if number in signal_state.handled else signal.getsignal(number)
        if handler is interrupt:
            signal_state.pending = number
        elif handler is default_handler:
            default_handler(number, None)
        if signal_state.pending is not None or signal_state.interrupted:
            time.sleep(PATIENCE_SECONDS)
            exit_now(signal_state.pending or signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt instead of exiting, if `default_handler` is installed."""
    if signal_state.deferred or signal.getsignal(signal.SIGINT) is not default_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default_handler)


@contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Route signals that should save and stop a run, including the first Ctrl-C, to ``handler``.

    A second Ctrl-C raises KeyboardInterrupt, except in a rank, which receives one SIGINT from the
    terminal and another from its launcher.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        signal_state.handled.add(number)
        if number == signal.SIGINT:
            if asked and not signal_state.deferred:
                signal_state.interrupted = True
                raise KeyboardInterrupt
            talks = signal_state.command or not signal_state.deferred  # else another process does
            if not asked and signal_state.reports and talks:
                write(f"\n{STOPPING}\n")
            asked = True
        handler(number, frame)

    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, handle) for number in numbers}
    except ValueError:  # not on the main thread, where signals do not arrive
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def exit_now(number: int) -> NoReturn:
    """End this process at once after the signal ``number``, with one sentence on stderr."""
    if not exiting.acquire(blocking=False):
        time.sleep(1)  # the other thread is exiting
    elif number == signal.SIGINT:
        report("interrupted")
    else:
        report(f"{cause(number)} with nothing to save. Run the same command again.")
    os._exit(exit_code(number))


def report(sentence: str) -> None:
    """Write the reason why this command ends, unless a reason has been written."""
    if signal_state.command:
        write(f"{signal_state.command}: {sentence}\n")
    signal_state.command = ""


def write(text: str) -> None:
    """Write to stderr without a buffer, because the interrupted code may be using the buffer."""
    with suppress(OSError):
        os.write(2, text.encode())


def cause(number: int) -> str:
    """Describe how the signal ``number`` ended a run."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def exit_code(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else SAVED


def end(code: int) -> NoReturn:
    """End the command with ``code``, after all other exit handlers.

    This does not wait for threads that a plug-in started.
    """
    signal_state.code = code
    user_code = sys.modules.get("sgp_runner.utils.user_code")
    if user_code is not None and user_code.FILES:
        atexit._run_exitfuncs()  # the last of which is `exit_with_code`
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """End this process with ``code``, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_with_code() -> None:
    """Exit before the interpreter removes the signal handlers in its shutdown.

    This handler is registered before all other exit handlers, so it runs last.
    """
    if signal_state.code is None:
        return
    with suppress(OSError, ValueError):  # which the interpreter reports
        end_at_once(signal_state.code)


def restore_defaults() -> None:
    """Restore the default actions of signals in a process that was forked from this process."""
    signal.set_wakeup_fd(-1)
    for number in ENDING:
        if signal.getsignal(number) in (default_handler, interrupt):
            signal.signal(number, signal.SIG_DFL)

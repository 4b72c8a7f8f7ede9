"""Signals that end a command, heard from its first line to its last.

Ctrl-C (SIGINT) ends a command with exit code 130; SIGTERM, SIGUSR1 and SIGUSR2 with 75. After
`hear` a signal ends the process at once, except where

- `stop_signals` hands it to a run that saves first, or to a process that passes it on; a second
  Ctrl-C is then a KeyboardInterrupt;
- `interruptible` makes Ctrl-C a KeyboardInterrupt, as there is something to take down;
- `defer` keeps it for the watchdog of a rank, which tells the other ranks.

Python calls handlers only between two instructions of the main thread, which may be waiting inside
a library, and a library may swallow a KeyboardInterrupt. So a thread hears the signals as well. It
answers one that the main thread does not come to, and ends the process `PATIENCE_SECONDS` after a
signal that should have ended it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # ask a run to save and stop
ENDING = (signal.SIGINT, *SIGNALS)
INTERRUPTED = 130  # exit code after Ctrl-C
SAVED = 75  # exit code of a run that was stopped; EX_TEMPFAIL of sysexits.h: try again
BLOCKED_SECONDS = 1.0  # after which the main thread is taken to be inside a library
PATIENCE_SECONDS = 10.0
PROMISE = "Stopping; a run that trains is saved first. Ctrl-C again ends the command at once."


@dataclass
class Hearing:
    """How this process hears signals.

    command: the name under which it reports; empty if another process reports
    deferred: whether signals are kept in ``pending`` for a watchdog
    speaks: whether this rank reports when the watchdogs end all ranks
    handled: signals that the main thread has handled
    interrupted: whether a KeyboardInterrupt was raised
    code: the exit code, once it is known
    late: a signal that came when only the last evaluation was left, which was finished first
    """

    command: str = ""
    deferred: bool = False
    speaks: bool = True
    pending: int | None = None
    handled: set[int] = field(default_factory=set)
    interrupted: bool = False
    code: int | None = None
    late: int | None = None


hearing = Hearing()
leaving = Lock()


def hear(command: str, deferred: bool = False) -> None:
    """Hear signals until the process has ended; call this before importing anything slow.

    deferred: keep them until `defer` or `answer` is called: a rank that left before it has met the
    others could not tell them.
    A signal that is ignored, such as SIGINT of a command in the background, stays so.
    A process forked from a command that hears may call this again, with its signals blocked.
    """
    vars(hearing).update(vars(Hearing(command, deferred)))
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, unanswered)
    atexit.register(leave_at_exit)
    os.register_at_fork(after_in_child=forget)
    heard, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    Thread(target=attend, args=(heard,), daemon=True).start()


def hear_as_rank() -> None:
    """Hear signals for the watchdog of this rank, whose launching process reports."""
    hear("")
    defer(speaks=True)


def defer(speaks: bool) -> None:
    """Keep signals for this rank's watchdog from now on; ``speaks``: whether this rank reports."""
    hearing.deferred, hearing.speaks = True, speaks


def answer() -> None:
    """Answer signals from now on, and one that was kept: no other rank has to be told."""
    hearing.deferred = False
    if hearing.pending is not None:
        leave(hearing.pending)


def unanswered(number: int, frame: FrameType | None) -> None:
    """Handle a signal for which nothing else is installed."""
    hearing.handled.add(number)
    hearing.pending = hearing.pending or number
    if not hearing.deferred:
        leave(number)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C; the second one ends the process at once."""
    hearing.handled.add(number)
    if hearing.interrupted:
        leave(number)
    hearing.interrupted = True
    raise KeyboardInterrupt


def attend(heard: int) -> None:
    """Answer signals that the main thread does not, and end the process if it does not end."""
    interrupts = 0
    while True:
        number = os.read(heard, 1)[0]
        interrupts += number == signal.SIGINT
        again = interrupts > 1 and not hearing.deferred
        if again or number not in hearing.handled:
            time.sleep(BLOCKED_SECONDS)
        if again and not hearing.interrupted:
            leave(signal.SIGINT)
        handler = None if number in hearing.handled else signal.getsignal(number)
        if handler is interrupt:
            hearing.pending = number
        elif handler is unanswered:
            unanswered(number, None)
        if hearing.pending is not None or hearing.interrupted:
            time.sleep(PATIENCE_SECONDS)
            leave(hearing.pending or signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, in a command that hears it."""
    if hearing.deferred or signal.getsignal(signal.SIGINT) is not unanswered:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, unanswered)


@contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Route the signals that ask a run to save and stop to ``handler``; so does the first Ctrl-C.

    The second one raises KeyboardInterrupt, except in a rank, which hears one Ctrl-C from the
    terminal and another from its launcher.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        hearing.handled.add(number)
        if number == signal.SIGINT:
            if asked and not hearing.deferred:
                hearing.interrupted = True
                raise KeyboardInterrupt
            if not asked:
                promise()
            asked = True
        handler(number, frame)

    numbers = [each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN]
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


def finishing() -> AbstractContextManager[None]:
    """Keep a signal until what is left of a run has been done; a second Ctrl-C ends it at once."""

    def keep(number: int, frame: FrameType | None) -> None:
        hearing.late = hearing.late or number

    return stop_signals(keep)


def leave(number: int, sentence: str | None = None) -> NoReturn:
    """End this process at once as the signal ``number`` asks, with one sentence on stderr."""
    if not leaving.acquire(blocking=False):
        time.sleep(1)  # the other thread is leaving
    elif hearing.command:
        speak(sentence or default_sentence(number))
    os._exit(exit_code(number))


def speak(sentence: str) -> None:
    write(f"{hearing.command}: {sentence}\n")


def promise() -> None:
    """Say what the first Ctrl-C does, unless another process says it."""
    if hearing.speaks and (hearing.command or not hearing.deferred):
        write(f"\n{PROMISE}\n")


def write(text: str) -> None:
    """Write to stderr without its buffer, which the interrupted code may be using."""
    with suppress(OSError):
        os.write(2, text.encode())


def default_sentence(number: int) -> str:
    if number == signal.SIGINT:
        return "interrupted"
    name = signal.Signals(number).name
    return f"stopped by {name} with nothing to save. Run the same command again."


def cause(number: int) -> str:
    """Describe the end of a run by the signal ``number``."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def exit_code(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else SAVED


def end(code: int) -> NoReturn:
    """End the command with ``code``, after the exit handlers of others.

    Threads that a plug-in has left behind do not keep it.
    """
    hearing.code = code
    user_code = sys.modules.get("sgp_runner.utils.user_code")
    if user_code is not None and user_code.FILES:
        atexit._run_exitfuncs()  # the last of which is `leave_at_exit`
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """End this process with ``code``, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_at_exit() -> None:
    """Leave before the interpreter, shutting down, takes the handlers of signals down.

    Registered before all other exit handlers, so called after them.
    """
    if hearing.code is None:
        return
    with suppress(OSError, ValueError):  # which the interpreter reports
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(hearing.code)


def forget() -> None:
    """Restore the default actions, in a process forked from this one."""
    signal.set_wakeup_fd(-1)
    for number in ENDING:
        if signal.getsignal(number) in (unanswered, interrupt):
            signal.signal(number, signal.SIG_DFL)

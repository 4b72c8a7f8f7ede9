"""Errors that a user can cause; each message is one sentence with the key and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """An invalid setting.

    key: the dotted name that a user types
    sentence: the problem and its fix
    """

    def __init__(self, key: str, sentence: str) -> None:
        self.key, self.sentence = printable(key), printable(sentence)
        super().__init__(f"{self.key}: {self.sentence}")


class TooManyAbsences(ConfigError):
    """Churn would interrupt a run too often to simulate it; detected during the run."""


def printable(text: str) -> str:
    """Return ``text`` on one line, with unprintable characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()


def check_least(least: float, group: str, part: object, *names: str) -> None:
    """Raise ConfigError if one of the settings ``names`` of ``part`` is smaller than ``least``.

    None is accepted. group: the group of ``part``, the first word of the key; empty if there is
    none
    """
    for name in names:
        if (value := getattr(part, name)) is not None and value < least:
            hint = ", or null" if getattr(type(part), name, least) is None else ""
            key = f"{group}.{name}".removeprefix(".")
            raise ConfigError(key, f"{value} must be at least {least}{hint}.")


@contextmanager
def inside(key: str) -> Iterator[None]:
    """Replace ``algo`` by ``key`` in the keys of errors; an algorithm inside another needs this."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(re.sub(r"^algo\b", key, error.key), error.sentence) from error


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest of ``choices``; empty if none is close.

    The comparison ignores case.
    """
    folded = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.5)
    return f" Did you mean '{folded[close[0]]}'?" if close else ""


class RankFailed(RuntimeError):
    """A failure of one rank; the message is a sentence with the rank and its step."""


class CallMismatch(Exception):
    """The calls of an algorithm's ranks do not match; the message has no full stop."""


class LostConnection(RuntimeError):
    """The connection to another rank is broken; that rank may be lost."""


class MembershipChanged(RuntimeError):
    """A rank has started a vote on the membership."""


class Evicted(RuntimeError):
    """The other ranks have declared this rank lost and continue without it."""


class StallTimeout(RankFailed):
    """A rank has waited for other ranks longer than ``network.timeout_seconds``."""


class CannotWrite(RankFailed):
    """The disk is full or read-only; ``what`` is the file or folder."""

    def __init__(self, what: object, error: BaseException) -> None:
        reasons = (
            cause.strerror
            for cause in (error, error.__cause__, error.__context__)
            if isinstance(cause, OSError) and cause.strerror
        )
        reason = next(reasons, str(error).partition("\n")[0])
        super().__init__(
            f"cannot write {what}: {reason}; earlier records and checkpoints are intact."
        )


class RecordsLost(RankFailed):
    """A results file was removed, replaced or changed by another process during the run."""

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"{path} {what} by another process during the run, so its records are incomplete: "
            "start over with resume=never."
        )


class Aborted(RuntimeError):
    """This rank stops because another rank failed; the failed rank reports the reason."""


class Lost(RuntimeError):
    """The ``ranks``, in the current numbering, are lost; the other ranks could continue."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = sorted(ranks)
        super().__init__(f"lost ranks: {self.ranks}")


LOSSES = (Lost, LostConnection, MembershipChanged)  # which a run may survive


class Diverged(RuntimeError):
    """Training has diverged: rank ``rank`` found ``what`` at ``step``.

    what: a clause such as "its loss is nan".
    """

    def __init__(self, rank: int, step: int, what: str, advice: str = "") -> None:
        super().__init__(f"rank {rank} diverged at step {step}: {what}{advice}")
        self.rank, self.step, self.what = rank, step, what


class NotFinite(ValueError):
    """A codec cannot encode a number; the text reads like "its message has nan in the tensor b"."""


class DivergedBefore(Diverged):
    """This run diverged when it was started before, so it is not started again."""


DIVERGED = 3  # exit code of a run that Diverged


class Stopped(RuntimeError):
    """A run was stopped by the signal ``number`` and saved the checkpoint ``saved``, if any."""

    def __init__(self, sentence: str, number: int, saved: str | None = None) -> None:
        super().__init__(sentence)
        self.number, self.saved = number, saved


class CannotSave(RuntimeError):
    """A run was stopped by the signal ``number`` but cannot save, because ranks are lost."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class RankLost(RankFailed):
    """A rank is lost; another rank reports this."""


class DataError(RuntimeError):
    """Data cannot be read during a run; the message is a sentence with the file and the fix."""


# Errors with complete messages, which are raised unchanged.
SPEAKING = (
    RankFailed,
    Aborted,
    Diverged,
    LostConnection,
    CallMismatch,
    MembershipChanged,
    Stopped,
    TooManyAbsences,
)

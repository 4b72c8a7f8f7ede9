"""The errors a user can cause. Each carries one sentence that names the key and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """A setting that cannot work. ``key`` is the dotted name a user types, ``sentence`` says what
    is wrong and how to mend it.
    """

    def __init__(self, key: str, sentence: str) -> None:
        self.key, self.sentence = printable(key), printable(sentence)
        super().__init__(f"{self.key}: {self.sentence}")


def printable(text: str) -> str:
    """On one line, whatever was typed."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def check_least(least: float, group: str, part: object, *names: str) -> None:
    """Raise ConfigError for the first of the settings ``names`` of ``part``, which is of ``group``,
    that is smaller than ``least``.
    """
    for name in names:
        if (value := getattr(part, name)) < least:
            sentence = (
                f"must be at least {least}, not {value}."
                if least
                else f"must not be negative, but is {value}."
            )
            raise ConfigError(f"{group}.{name}", sentence)


@contextmanager
def inside(key: str) -> Iterator[None]:
    """A part that is an algorithm calls its settings ``algo.``...; the user types ``key``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(re.sub(r"^algo\b", key, error.key), error.sentence) from error


def nearest(word: str, choices: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the closest of ``choices``, or an empty string when nothing is
    close.
    """
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


class RankFailed(RuntimeError):
    """What went wrong on one rank, in one sentence that names the rank and its step."""


class CallMismatch(Exception):
    """What the ranks of an algorithm do does not fit together, in a clause without a full stop."""


class LostConnection(RuntimeError):
    """Between this rank and another one, which may be gone."""


class MembershipChanged(RuntimeError):
    """Somebody asks who is still there."""


class Evicted(RuntimeError):
    """The others have taken this rank for gone, and go on without it."""


class StallTimeout(RankFailed):
    """A rank has waited for others longer than ``network.timeout_seconds``."""


class CannotWrite(RankFailed):
    """The disk is full, or has become read-only; ``what``: the file or folder."""

    def __init__(self, what: object, error: BaseException) -> None:
        reasons = (
            each
            for each in (error, error.__cause__, error.__context__)
            if isinstance(each, OSError) and each.strerror
        )
        reason = next((str(each.strerror) for each in reasons), str(error).partition("\n")[0])
        super().__init__(
            f"cannot write {what}: {reason}; what was recorded and saved before is whole."
        )


class Aborted(RuntimeError):
    """This rank stops because another one failed, which reports the reason."""


class Lost(RuntimeError):
    """The ``ranks``, as they count at present, are gone for good; the others could go on."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = sorted(ranks)
        super().__init__(f"gone for good: {self.ranks}")


class Diverged(RuntimeError):
    """Rank ``rank`` found at ``step`` that training has failed for good: ``what``, a clause such as
    "its loss is nan".
    """

    def __init__(self, rank: int, step: int, what: str, advice: str = "") -> None:
        super().__init__(f"rank {rank} diverged at step {step}: {what}{advice}")
        self.rank, self.step, self.what = rank, step, what


class DivergedBefore(Diverged):
    """The same command has diverged already, and nothing was run."""


DIVERGED = 3  # exit code of a run that Diverged
SAVED = 75  # exit code of a run that was Stopped; EX_TEMPFAIL of sysexits.h: try again


class Stopped(RuntimeError):
    """A signal asked the run to stop, and it has saved where it is."""


class DataError(RuntimeError):
    """Data that turn out to be unreadable in the middle of a run, in one sentence that says which
    and what to do.
    """

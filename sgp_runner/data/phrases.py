"""Sentence pairs, English and German: numbers, ordinals, dates, clock times and amounts."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable

from sgp_runner.data.number_words import (
    english,
    english_ordinal,
    english_year,
    german,
    german_ordinal,
    german_year,
)

Pair = tuple[str, str]

MONTHS = (
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
)
WEEKDAYS = (
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
)
#: A part of the day in English and German, and its hours on the twelve-hour clock.
PARTS_OF_DAY = (
    ("", "", range(1, 13)),
    (" in the morning", " morgens", range(5, 12)),
    (" in the afternoon", " nachmittags", range(1, 6)),
    (" in the evening", " abends", range(6, 11)),
    (" at night", " nachts", (11, 12, 1, 2, 3)),
)
#: English singular and plural, German singular and plural, the German form of "one".
EURO = ("euro", "euros", "Euro", "Euro", "ein")
CENT = ("cent", "cents", "Cent", "Cent", "ein")
KILOMETER = ("kilometer", "kilometers", "Kilometer", "Kilometer", "ein")
METER = ("meter", "meters", "Meter", "Meter", "ein")
WEEK = ("week", "weeks", "Woche", "Wochen", "eine")
DAY = ("day", "days", "Tag", "Tage", "ein")
HOUR = ("hour", "hours", "Stunde", "Stunden", "eine")
MINUTE = ("minute", "minutes", "Minute", "Minuten", "eine")
UNITS = (EURO, CENT, KILOMETER, METER, WEEK, DAY, HOUR, MINUTE)
#: A coarse unit, a fine unit, and the number of fine units in a coarse one.
PAIRS = ((EURO, CENT, 100), (KILOMETER, METER, 1000), (WEEK, DAY, 7), (HOUR, MINUTE, 60))


def cardinal(rng: random.Random) -> Pair:
    """Return a number with one to six digits; all lengths are equally likely."""
    n = _number(rng, digits=6)
    return english(n), german(n)


def ordinal(rng: random.Random) -> Pair:
    n = max(1, _number(rng, digits=6))
    return f"the {english_ordinal(n)}", f"der {german_ordinal(n)}"


def date(rng: random.Random) -> Pair:
    """Return a date between 1800 and 2099, with or without weekday and year."""
    first = datetime.date(1800, 1, 1).toordinal()
    last = datetime.date(2099, 12, 31).toordinal()
    day = datetime.date.fromordinal(rng.randint(first, last))
    en_month, de_month = MONTHS[day.month - 1]
    number = english_ordinal(day.day)
    en = rng.choice((f"the {number} of {en_month}", f"{en_month} the {number}"))
    de = f"der {german_ordinal(day.day)} {de_month}"
    if rng.random() < 0.5:
        en, de = f"{en} {english_year(day.year)}", f"{de} {german_year(day.year)}"
    if rng.random() < 0.5:
        en_weekday, de_weekday = WEEKDAYS[day.weekday()]
        en, de = f"{en_weekday}, {en}", f"{de_weekday}, {de}"
    return en, de


def time(rng: random.Random) -> Pair:
    """Return a time on the twelve-hour clock, or hours and minutes on the 24-hour clock."""
    if rng.random() < 0.4:
        hour, minute = rng.randrange(24), rng.randrange(1, 60)
        oh = "oh " if minute < 10 else ""
        return (
            f"{english(hour)} {oh}{english(minute)}",
            f"{german(hour, 'ein')} Uhr {german(minute)}",
        )
    en_part, de_part, hours = rng.choice(PARTS_OF_DAY)
    en, de = clock(rng.choice(hours), rng.randrange(60))
    return en + en_part, de + de_part


def clock(hour: int, minute: int) -> Pair:
    """Return a time on the twelve-hour clock; ``hour`` is 1 to 12."""
    following = hour % 12 + 1
    if minute == 0:
        return f"{english(hour)} o'clock", f"{german(hour, 'ein')} Uhr"
    if minute == 30:
        return f"half past {english(hour)}", f"halb {german(following)}"
    if minute < 30:
        en, de = _minutes(minute)
        return f"{en} past {english(hour)}", f"{de} nach {german(hour)}"
    en, de = _minutes(60 - minute)
    return f"{en} to {english(following)}", f"{de} vor {german(following)}"


def amount(rng: random.Random) -> Pair:
    """Return an amount in one unit, or in two units such as euros and cents."""
    if rng.random() < 0.5:
        return quantity(_countable(rng, digits=6), rng.choice(UNITS))
    coarse, fine, ratio = rng.choice(PAIRS)
    en_coarse, de_coarse = quantity(_countable(rng, digits=3), coarse)
    few = rng.choice([n for n in range(1, ratio) if n == 1 or n % 100 != 1])
    en_fine, de_fine = quantity(few, fine)
    return f"{en_coarse} and {en_fine}", f"{de_coarse} und {de_fine}"


def quantity(n: int, unit: tuple[str, str, str, str, str]) -> Pair:
    en_one, en_many, de_one, de_many, one = unit
    if n == 1:
        return f"one {en_one}", f"{one} {de_one}"
    return f"{english(n)} {en_many}", f"{german(n)} {de_many}"


#: The index in this tuple is the label of a pair.
KINDS: tuple[Callable[[random.Random], Pair], ...] = (cardinal, ordinal, date, time, amount)


def _minutes(minute: int) -> Pair:
    if minute == 15:
        return "quarter", "Viertel"
    if minute % 5 == 0:
        return english(minute), german(minute)
    return quantity(minute, MINUTE)


def _number(rng: random.Random, digits: int) -> int:
    length = rng.randint(1, digits)
    return rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)


def _countable(rng: random.Random, digits: int) -> int:
    """Return a random count, at least 1.

    Numbers such as 101 and 1001 are avoided: German usage is divided on whether a singular or a
    plural noun follows.
    """
    n = max(1, _number(rng, digits))
    return n + 1 if n > 1 and n % 100 == 1 else n

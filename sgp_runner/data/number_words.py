"""Numbers in words, 0 to 999,999, in English and German."""

from __future__ import annotations

_EN_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_EN_TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_EN_ORDINAL = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}

_DE_SMALL = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
_DE_TENS = [
    "_",
    "_",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]
_DE_ORDINAL = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}


def english(n: int) -> str:
    """Return ``n`` in English: "one hundred twenty-three thousand four hundred fifty-six"."""
    if n >= 1000:
        return _join(english(n // 1000) + " thousand", n % 1000)
    if n >= 100:
        return _join(_EN_SMALL[n // 100] + " hundred", n % 100)
    if n >= 20:
        return _EN_TENS[n // 10] + (f"-{_EN_SMALL[n % 10]}" if n % 10 else "")
    return _EN_SMALL[n]


def english_ordinal(n: int) -> str:
    """Return the English ordinal of ``n`` >= 1: "twenty-third"."""
    words = english(n)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    if last.endswith("y"):
        return words[:cut] + last[:-1] + "ieth"
    return words[:cut] + _EN_ORDINAL.get(last, last + "th")


def german(n: int, one: str = "eins") -> str:
    """Return ``n`` in German: "einhundertdreiundzwanzigtausendvierhundertsechsundfünfzig".

    ``one`` is the form of a final 1: "eins" when counting, "ein" or "eine" before a noun. 100 is
    "einhundert" and 1000 "eintausend", because English has "one hundred" and "one thousand".
    """
    if n >= 1000:
        return german(n // 1000, "ein") + "tausend" + (german(n % 1000, one) if n % 1000 else "")
    if n >= 100:
        return german(n // 100, "ein") + "hundert" + (german(n % 100, one) if n % 100 else "")
    if n >= 20:
        return (german(n % 10, "ein") + "und" if n % 10 else "") + _DE_TENS[n // 10]
    return one if n == 1 else _DE_SMALL[n]


def german_ordinal(n: int) -> str:
    """Return the German ordinal of ``n`` >= 1 as used after "der": "dreiundzwanzigste"."""
    last = n % 100
    if last in _DE_ORDINAL:
        return (german(n - last) if n > last else "") + _DE_ORDINAL[last]
    return german(n) + ("te" if 1 <= last <= 19 else "ste")


def english_year(year: int) -> str:
    """Return a year from 1800 to 2099 in English: "nineteen oh five", "twenty seventeen"."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english(year)
    if rest == 0:
        return english(century) + " hundred"
    return english(century) + (" " if rest >= 10 else " oh ") + english(rest)


def german_year(year: int) -> str:
    """Return a year from 1800 to 2099 in German: "neunzehnhundertfünf", "zweitausendsiebzehn"."""
    if year >= 2000:
        return german(year)
    return german(year // 100) + "hundert" + (german(year % 100) if year % 100 else "")


def _join(head: str, rest: int) -> str:
    return f"{head} {english(rest)}" if rest else head

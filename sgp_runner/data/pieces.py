"""A vocabulary of both languages: English words and components of German numbers.

"dreiundzwanzigste" is drei|und|zwanzig|ste, so a model can write an unseen number if it has seen
its components. "▁" is a space. Joining the German pieces restores the text exactly.
"""

from __future__ import annotations

import re

from sgp_runner.data.number_words import english, english_ordinal, german
from sgp_runner.data.phrases import MONTHS, PARTS_OF_DAY, UNITS, WEEKDAYS

PAD, BOS, EOS = 0, 1, 2
_TENS = [*range(20), *range(20, 100, 10)]


def english_words(text: str) -> list[str]:
    """Return the words and commas of ``text``; a hyphen separates two words."""
    return re.findall(r"[a-zA-Z']+|,", text)


def german_pieces(text: str) -> list[str]:
    """Split ``text`` into pieces, each the longest that matches."""
    return _PIECE.findall(text.replace(" ", "▁"))


def ids(pieces: list[str]) -> list[int]:
    return [_ID[piece] for piece in pieces]


def _english_lexicon() -> list[str]:
    texts = [english(n) for n in _TENS] + [english_ordinal(n) for n in _TENS if n]
    texts += ["hundred thousand hundredth thousandth the of oh o'clock half quarter past to and ,"]
    texts += [en for en, _ in MONTHS + WEEKDAYS] + [part[0] for part in PARTS_OF_DAY]
    texts += [f"{unit[0]} {unit[1]}" for unit in UNITS]
    return [word for text in texts for word in english_words(text)]


def _german_lexicon() -> list[str]:
    words = [german(n) for n in _TENS] + ["ein", "eine", "und", "hundert", "tausend"]
    words += ["te", "ste", "erste", "dritte", "siebte", "achte"]
    words += ["▁", ",", "der", "Uhr", "halb", "Viertel", "nach", "vor"]
    words += [part[1].strip() for part in PARTS_OF_DAY if part[1]]
    words += [de for _, de in MONTHS + WEEKDAYS]
    return words + [word for unit in UNITS for word in unit[2:4]]


_GERMAN = list(dict.fromkeys(_german_lexicon()))
_PIECE = re.compile("|".join(re.escape(piece) for piece in sorted(_GERMAN, key=len, reverse=True)))

#: Pieces by id. Words of the same spelling in both languages, such as "April", share an id.
VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(["<pad>", "<bos>", "<eos>", *_GERMAN, *_english_lexicon()])
)
_ID = {piece: i for i, piece in enumerate(VOCABULARY)}

"""Subword pieces, learned from a text by byte-pair encoding (Sennrich et al. 2016).

The 256 bytes are pieces too, so every text can be encoded. Texts are strings in which each
character stands for one byte (``latin-1``).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import TypeAlias

Pair: TypeAlias = tuple[str, str]

BYTES = [chr(i) for i in range(256)]
#: Pieces do not span words; a space belongs to the word after it. Every character is in one match.
WORD = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|_|\s")


def words_of(text: str, encoding: str) -> list[str]:
    """Split ``text`` into words in which each character stands for one byte."""
    words: list[str] = WORD.findall(text)
    return words if encoding == "latin-1" else [w.encode(encoding).decode("latin-1") for w in words]


@dataclass(frozen=True)
class BytePairs:
    """A vocabulary of pieces: the bytes, then the merges in the order learned."""

    vocabulary: tuple[str, ...]
    known: dict[str, list[int]] = field(default_factory=dict)  #: the pieces of words, as numbers

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of the pieces of ``words``."""
        return list(chain.from_iterable(self.known.get(w) or self.divide(w) for w in words))

    def divide(self, word: str) -> list[int]:
        """Split ``word`` into pieces by applying the merges, earliest learned first."""
        parts = list(word)
        while joined := [a + b for a, b in pairwise(parts) if a + b in self.ranks]:
            parts = merged(parts, min(joined, key=self.ranks.__getitem__))
        self.known[word] = [self.ranks[part] for part in parts]
        return self.known[word]

    @cached_property
    def ranks(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.vocabulary)}


def merged(parts: list[str], piece: str) -> list[str]:
    """Join neighbouring ``parts`` that form ``piece``, from left to right."""
    out: list[str] = []
    for part in parts:
        if out and out[-1] + part == piece and out[-1] != piece:
            out[-1] = piece
        else:
            out.append(part)
    return out


def learn(words: Iterable[str], size: int) -> BytePairs:
    """Learn a vocabulary of ``size`` pieces, or fewer if no pair of pieces occurs twice.

    Each merge joins the most frequent pair (ties: the first in alphabetical order).
    """
    texts = Counter(words)
    spelled = {word: list(word) for word in texts}
    counts: Counter[Pair] = Counter()
    users: dict[Pair, list[str]] = defaultdict(list)  # the words with a pair
    for word, number in texts.items():
        for pair in pairwise(spelled[word]):
            counts[pair] += number
            users[pair].append(word)
    heap = [(-number, pair) for pair, number in counts.items()]
    heapq.heapify(heap)
    vocabulary = dict.fromkeys(BYTES)
    while heap and len(vocabulary) < size:
        number, pair = heapq.heappop(heap)
        if -number != counts[pair] or number > -2:
            continue  # an older count
        piece = "".join(pair)
        vocabulary[piece] = None
        change: dict[Pair, int] = defaultdict(int)
        for word in dict.fromkeys(users.pop(pair)):
            for old in pairwise(spelled[word]):
                change[old] -= texts[word]
            spelled[word] = merged(spelled[word], piece)
            for new in pairwise(spelled[word]):
                change[new] += texts[word]
                if piece in new:
                    users[new].append(word)
        for other, difference in change.items():
            if difference:
                counts[other] += difference
                heapq.heappush(heap, (-counts[other], other))
    return BytePairs(tuple(vocabulary))

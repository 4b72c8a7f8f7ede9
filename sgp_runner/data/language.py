"""Probabilistic grammars that can be parsed from left to right.

A symbol is a terminal (bytes) or the name of a rule (str). A rule chooses one of its alternatives,
each a sequence of symbols. Either all alternatives of a rule are single words and no word is a
prefix of another, or the first byte determines the alternative. A text therefore has one
derivation, and its probability is a product over choices.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

from sgp_runner.utils.sums import sum_in_order

Symbol: TypeAlias = "bytes | str"
Rules: TypeAlias = "Mapping[str, Sequence[Sequence[Symbol]]]"

START = "text"  # the rule of a whole text, which has no end


@dataclass(frozen=True)
class Language:
    """A grammar with the probability of each alternative of each rule.

    Raises ValueError if parsing from left to right is ambiguous.
    """

    rules: Rules
    probabilities: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, alternatives in self.rules.items():
            if name in self.vocabulary:
                ordered = sorted(self.vocabulary[name])
                clash = any(b.startswith(a) for a, b in pairwise(ordered))
            else:
                clash = sum(len(self.first(a[0])) for a in alternatives) > len(self.first(name))
            if clash:
                raise ValueError(f"the alternatives of {name} cannot be told apart")

    @cached_property
    def vocabulary(self) -> dict[str, dict[bytes, float]]:
        """Rule -> word -> probability, for rules whose alternatives are single words."""
        return {
            name: {
                word: p
                for (word, *_), p in zip(alternatives, self.probabilities[name], strict=True)
                if isinstance(word, bytes)
            }
            for name, alternatives in self.rules.items()
            if all(
                len(alternative) == 1 and isinstance(alternative[0], bytes)
                for alternative in alternatives
            )
        }

    def first(self, symbol: Symbol) -> set[int]:
        """Return the bytes that ``symbol`` may begin with."""
        if isinstance(symbol, bytes):
            return {symbol[0]}
        return {byte for alternative in self.rules[symbol] for byte in self.first(alternative[0])}

    @cached_property
    def decisions(self) -> dict[str, dict[int, tuple[Sequence[Symbol], float]]]:
        """Rule -> first byte -> the alternative that begins with this byte, and its probability."""
        return {
            name: {
                byte: (alternative, p)
                for alternative, p in zip(alternatives, self.probabilities[name], strict=True)
                for byte in self.first(alternative[0])
            }
            for name, alternatives in self.rules.items()
            if name not in self.vocabulary
        }

    @cached_property
    def draws(self) -> dict[str, tuple[list[float], list[tuple[Symbol, ...]]]]:
        """Rule -> its cumulative probabilities, except the final 1, and its alternatives.

        The symbols of an alternative are reversed."""
        return {
            name: (
                list(accumulate(self.probabilities[name]))[:-1],
                [tuple(reversed(alternative)) for alternative in alternatives],
            )
            for name, alternatives in self.rules.items()
        }

    def sample(self, random: Callable[[], float], length: int) -> bytes:
        """Return the first ``length`` bytes of a text; ``random`` returns numbers in [0, 1)."""
        out = bytearray()
        stack: list[Symbol] = [START]
        while len(out) < length:
            symbol = stack.pop()
            if isinstance(symbol, bytes):
                out += symbol
            else:
                bounds, alternatives = self.draws[symbol]
                stack += alternatives[bisect(bounds, random())]
        return bytes(out[:length])

    def log_probability(self, text: bytes) -> float:
        """Return the natural logarithm of the probability that a text begins with ``text``."""
        total, place = 0.0, 0
        stack: list[Symbol] = [START]
        while place < len(text):
            symbol = stack.pop()
            if isinstance(symbol, bytes):
                part = text[place : place + len(symbol)]
                if not symbol.startswith(part):
                    return -math.inf
                place += len(symbol)
            elif symbol in self.vocabulary:
                word, p = self.word_at(symbol, text[place:])
                total += math.log(p) if p else -math.inf
                place += len(word)
            else:
                alternative, p = self.decisions[symbol].get(text[place], ((), 0.0))
                total += math.log(p) if p else -math.inf
                stack += reversed(alternative)
            if total == -math.inf:
                return total
        return total

    def word_at(self, rule: str, text: bytes) -> tuple[bytes, float]:
        """Return the word at the start of ``text`` and its probability.

        If the text ends within the word, return the total probability of all possible words.
        """
        vocabulary = self.vocabulary[rule]
        for length in self.word_lengths[rule]:
            if text[:length] in vocabulary:
                return text[:length], vocabulary[text[:length]]
        return text, sum_in_order(p for word, p in vocabulary.items() if word.startswith(text))

    @cached_property
    def word_lengths(self) -> dict[str, list[int]]:
        return {
            rule: sorted({len(word) for word in words}) for rule, words in self.vocabulary.items()
        }


@dataclass(frozen=True)
class Mixture:
    """Texts in several equally frequent languages with the same grammar."""

    languages: Sequence[Language]

    def log_probability(self, text: bytes) -> float:
        """Return the natural logarithm of the probability that a text begins with ``text``.

        Its negative is the loss of the best possible predictor, summed over the bytes. This
        predictor knows the languages but not the language of ``text``.
        """
        logs = [language.log_probability(text) for language in self.languages]
        most = max(logs)
        if most == -math.inf:
            return most
        return most + math.log(sum_in_order(math.exp(log - most) for log in logs) / len(logs))

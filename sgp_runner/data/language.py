"""Probabilistic grammars that a reader follows from left to right, and their exact entropy.

A symbol is a terminal (bytes) or the name of a rule (str). A rule chooses one of its alternatives,
each a sequence of symbols. Either all alternatives are single words, none of which is the beginning
of another, or the first byte decides between them. So a text has one derivation, the choices that
its first bytes reveal are known, and the entropy of the first n bytes is a sum over choices.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

Symbol: TypeAlias = "bytes | str"
Rules: TypeAlias = "Mapping[str, Sequence[Sequence[Symbol]]]"

START = "text"  # the rule of a whole text, which has no end


@dataclass(frozen=True)
class Language:
    """A grammar with the probability of each alternative of each rule.

    Raises ValueError for rules that are ambiguous from the left.
    """

    rules: Rules
    probabilities: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, alternatives in self.rules.items():
            if name in self.words:
                ordered = sorted(self.words[name])
                clash = any(b.startswith(a) for a, b in pairwise(ordered))
            else:
                clash = sum(len(self.first(a[0])) for a in alternatives) > len(self.first(name))
            if clash:
                raise ValueError(f"the alternatives of {name} cannot be told apart")

    @cached_property
    def words(self) -> dict[str, dict[bytes, float]]:
        """Rule -> word -> probability, of the rules that choose a word."""
        return {
            name: {
                word: p
                for (word, *_), p in zip(alternatives, self.probabilities[name], strict=True)
                if isinstance(word, bytes)
            }
            for name, alternatives in self.rules.items()
            if all(len(each) == 1 and isinstance(each[0], bytes) for each in alternatives)
        }

    def first(self, symbol: Symbol) -> set[int]:
        """The bytes with which ``symbol`` may begin."""
        if isinstance(symbol, bytes):
            return {symbol[0]}
        return {byte for each in self.rules[symbol] for byte in self.first(each[0])}

    @cached_property
    def decisions(self) -> dict[str, dict[int, tuple[Sequence[Symbol], float]]]:
        """Rule -> first byte -> the alternative that it begins and its probability."""
        return {
            name: {
                byte: (each, p)
                for each, p in zip(alternatives, self.probabilities[name], strict=True)
                for byte in self.first(each[0])
            }
            for name, alternatives in self.rules.items()
            if name not in self.words
        }

    @cached_property
    def draws(self) -> dict[str, tuple[list[float], list[tuple[Symbol, ...]]]]:
        """Rule -> cumulative probabilities and reversed alternatives, without the last bound."""
        return {
            name: (
                list(accumulate(self.probabilities[name]))[:-1],
                [tuple(reversed(each)) for each in alternatives],
            )
            for name, alternatives in self.rules.items()
        }

    def sample(self, random: Callable[[], float], length: int) -> bytes:
        """The first ``length`` bytes of a text; ``random`` returns numbers in [0, 1)."""
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
        """Natural logarithm of the probability that a text begins with ``text``."""
        total, place = 0.0, 0
        stack: list[Symbol] = [START]
        while place < len(text):
            symbol = stack.pop()
            if isinstance(symbol, bytes):
                part = text[place : place + len(symbol)]
                if not symbol.startswith(part):
                    return -math.inf
                place += len(symbol)
            elif symbol in self.words:
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
        """The word at the start of ``text``; where it is cut off, all that it may become."""
        words = self.words[rule]
        for length in self.word_lengths[rule]:
            if text[:length] in words:
                return text[:length], words[text[:length]]
        return text, sum(p for word, p in words.items() if word.startswith(text))

    @cached_property
    def word_lengths(self) -> dict[str, list[int]]:
        return {rule: sorted({len(word) for word in words}) for rule, words in self.words.items()}

    def entropy(self, length: int) -> float:
        """Entropy in nats of the first ``length`` bytes of a text.

        ``H(A, n)``, of the first n bytes of what a rule derives, is the entropy of its choice,
        which the first byte reveals, and the mean over the alternatives. ``H(A B, n)`` is
        ``H(A, n)`` and the mean of ``H(B, n - l)`` over the lengths l of A. As a recursion comes
        after at least one byte, these equations have one solution, found by repetition.
        """
        import numpy as np

        entropies = {name: np.zeros(length + 1) for name in self.rules}
        lengths = {name: np.zeros(length + 1) for name in self.rules}  # probability of each
        for name, words in self.words.items():
            entropies[name] = np.array([entropy_of_start(words, n) for n in range(length + 1)])
            for word, p in words.items():
                if len(word) <= length:
                    lengths[name][len(word)] += p

        def of_sequence(sequence: Sequence[Symbol]) -> tuple[Array, Array]:
            total, reached = np.zeros(length + 1), np.eye(1, length + 1)[0]
            for symbol in sequence:
                if isinstance(symbol, bytes):
                    reached = np.concatenate([np.zeros(len(symbol)), reached])[: length + 1]
                else:
                    total += np.convolve(reached, entropies[symbol])[: length + 1]
                    reached = np.convolve(reached, lengths[symbol])[: length + 1]
            return total, reached

        changed = True
        while changed:
            changed = False
            for name in self.decisions:
                weights = np.array(self.probabilities[name])
                parts = [of_sequence(each) for each in self.rules[name]]
                new = weights @ [entropy for entropy, _ in parts]
                new[1:] += entropy_of(weights)
                changed |= not np.array_equal(new, entropies[name])
                entropies[name] = new
                lengths[name] = weights @ [reached for _, reached in parts]
        return float(entropies[START][length])


def entropy_of(probabilities: Iterable[float]) -> float:
    """Entropy in nats of a choice."""
    return -sum(p * math.log(p) for p in probabilities if p)


def entropy_of_start(words: Mapping[bytes, float], length: int) -> float:
    """Entropy in nats of the first ``length`` bytes of a word."""
    starts: defaultdict[bytes, float] = defaultdict(float)
    for word, p in words.items():
        starts[word[:length]] += p
    return entropy_of(starts.values())


@dataclass(frozen=True)
class Mixture:
    """Texts of several languages of the same grammar; all are equally frequent."""

    languages: Sequence[Language]

    def log_probability(self, text: bytes) -> float:
        """Natural logarithm of the probability that a text begins with ``text``.

        Its negative is the loss, summed over the bytes, of the best possible predictor: one that
        knows the languages, but not which of them it reads.
        """
        logs = [language.log_probability(text) for language in self.languages]
        most = max(logs)
        if most == -math.inf:
            return most
        return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))

"""Generated text in a small language whose entropy is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Batch, Dataset, Split, TensorSplit, check_shares
from sgp_runner.data.language import Language, Mixture, Rules
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import LanguageModelling
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.seeding import seed_of, seeds_of
from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    import torch
    from torch import Tensor


BYTES = 256  # the vocabulary
BEGIN = 10  # a line feed, which no text contains, precedes the first byte
_WORDS, _DIALECT, _VALID = 1, 2, 3  # streams of random numbers
CONSONANTS, VOWELS = "bdfgklmnprtvz", "aeiou"


@dataclass(frozen=True)
class Grammar:
    """Sentences of invented words; clauses are nested, and verbs agree in number with their nouns.

    A sample is the first ``block`` bytes of a text; the model predicts each byte from the bytes
    before it. Training text is generated during reading and never repeats. The entropy of the text
    is known, so the metrics include the excess loss: the loss minus the loss of the best possible
    predictor, which knows the languages, on the same validation set.

    block: length of a sample in bytes
    train_size: samples per epoch over all nodes
    valid_size: samples of the validation set
    nouns: number of nouns N; there are 2N/3 verbs and N/3 adjectives
    dialects: number of languages, which differ in the probabilities of words and constructions; all
        are equally frequent in training and validation
    concentration: concentration of the Dirichlet distribution from which a dialect's probabilities
        are drawn; smaller = dialects differ more
    partition: iid = every node reads all dialects; dirichlet = unequal shares of the dialects;
        dirichlet_equal = the same with shares of equal size
    alpha: concentration of the Dirichlet partition; smaller = fewer dialects per node
    language_seed: seed of words and dialects, independent of the run's seed
    holdout: above 0: validate on other texts while settings are chosen; 0 = the validation set
    """

    block: int = 64
    train_size: int = 65536
    valid_size: int = 2048
    nouns: int = 96
    dialects: int = 1
    concentration: float = 10.0
    partition: Literal["iid", "dirichlet", "dirichlet_equal"] = "iid"
    alpha: float = 0.1
    language_seed: int = 0
    holdout: float = 0.0

    name: ClassVar[str] = "grammar"
    task: ClassVar[str] = "language"
    stand_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        partition_of(self.partition, self.alpha)
        check_least(2, "data", self, "block")
        check_least(1, "data", self, "train_size", "valid_size", "dialects")
        check_shares("data", self, holdout=0.2)
        if not 3 <= self.nouns <= 1000:
            raise ConfigError("data.nouns", f"must be between 3 and 1000, not {self.nouns}.")
        if not self.concentration > 0:
            raise ConfigError("data.concentration", f"{self.concentration} must be above 0.")

    @property
    def languages(self) -> list[Language]:
        """The language with its dialects."""
        rules = rules_of(self.nouns, self.language_seed)
        plain = usual(rules)
        if self.dialects == 1:
            return [Language(rules, plain)]
        return [
            Language(rules, spoken(plain, self.concentration, self.language_seed, number))
            for number in range(self.dialects)
        ]

    def load(self, dtype: torch.dtype) -> Dataset:
        """Generate the validation set as integer tokens, so ``dtype`` has no effect."""
        import torch

        languages = self.languages
        train = GrammarSplit(languages, self.train_size, self.block)
        valid = GrammarSplit(languages, self.valid_size, self.block)
        rows = torch.arange(self.valid_size)
        other = [1] if self.holdout else []
        texts = valid.texts(rows, seed_of(self.language_seed, _VALID, *other))
        best = Mixture(languages)
        floor = -sum_in_order(map(best.log_probability, texts)) / (self.valid_size * self.block)
        return Dataset(
            name=self.name,
            task=LanguageModelling(BYTES, self.block, floor),
            train=train,
            valid=TensorSplit(*tensors_of(texts), valid.labels),
            input_shape=(self.block,),
            num_classes=BYTES,
            partition=partition_of(self.partition, self.alpha),
        )


class GrammarSplit(Split):
    """Split whose samples are regenerated from the seed at every read.

    Sample i is in dialect i modulo the number of dialects.
    """

    def __init__(self, languages: Sequence[Language], size: int, block: int) -> None:
        import torch

        self.languages, self.block = languages, block
        self.labels = torch.arange(size) % len(languages)

    def __len__(self) -> int:
        return len(self.labels)

    def texts(self, indices: Tensor, seed: int) -> list[bytes]:
        seeds = seeds_of(seed, indices).tolist()
        languages = self.labels[indices].tolist()
        return [
            self.languages[language].sample(random.Random(text_seed).random, self.block)
            for language, text_seed in zip(languages, seeds, strict=True)
        ]

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        return tensors_of(self.texts(indices, seed))


def tensors_of(texts: Sequence[bytes]) -> Batch:
    """Return inputs and targets, int64 [N, T]; a target is the byte that follows the input."""
    import torch

    rows = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
    targets = rows.view(len(texts), -1).long()
    begin = targets.new_full((len(texts), 1), BEGIN)
    return (torch.cat([begin, targets[:, :-1]], 1),), targets


def rules_of(nouns: int, seed: int) -> Rules:
    """Return the rules of the grammar, with invented words.

    A clause in brackets can separate a noun from its verb, so a model must remember the noun's
    number across that clause. Adjectives begin with a vowel and nouns with a consonant.
    """
    invent = Inventor(seed)
    names = [invent.word(CONSONANTS) for _ in range(nouns)]
    verbs = [invent.word(CONSONANTS) for _ in range(max(1, 2 * nouns // 3))]
    adjectives = [invent.word(VOWELS) for _ in range(max(1, nouns // 3))]

    def lists(stems: Sequence[str], ending: str) -> list[list[bytes | str]]:
        return [[f"{stem}{ending} ".encode()] for stem in stems]

    return {
        "text": [["clause", b". ", "text"]],
        "clause": [[b"a ", "one", "does"], [b"some ", "many", "do"]],
        "one": [["adjective", "one"], ["noun"]],
        "many": [["adjective", "many"], ["nouns"]],
        "does": [[b"(", "clause", b") ", "does"], ["verbs", "object"]],
        "do": [[b"(", "clause", b") ", "do"], ["verb", "object"]],
        "object": [[b"a ", "one"], [b"some ", "many"], [b"- "]],
        "noun": lists(names, ""),
        "nouns": lists(names, "s"),
        "verb": lists(verbs, ""),
        "verbs": lists(verbs, "s"),
        "adjective": lists(adjectives, ""),
    }


class Inventor:
    """Generator of distinct words of two or three syllables, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed_of(seed, _WORDS)).random  # stable across Python versions
        self.invented: set[str] = set()

    def one_of(self, letters: str) -> str:
        return letters[int(self.random() * len(letters))]

    def word(self, initials: str) -> str:
        while True:
            word = self.one_of(initials)
            for _ in range(2 + int(self.random() * 2)):
                word += self.one_of(CONSONANTS if word[-1] in VOWELS else VOWELS)
                word += self.one_of(VOWELS if word[-1] in CONSONANTS else CONSONANTS)
            if word not in self.invented:
                self.invented.add(word)
                return word


def usual(rules: Rules) -> dict[str, list[float]]:
    """Return the mean probabilities: Zipf's law for words, few adjectives and brackets."""
    rare = {"one": (1.0, 3.0), "many": (1.0, 3.0), "does": (1.0, 5.0), "do": (1.0, 5.0)}
    weights = {
        name: rare.get(name, [1 / (rank + 3) for rank in range(len(alternatives))])
        for name, alternatives in rules.items()
    }
    return {name: [weight / sum_in_order(w) for weight in w] for name, w in weights.items()}


def spoken(
    plain: dict[str, list[float]], concentration: float, seed: int, number: int
) -> dict[str, list[float]]:
    """Draw the probabilities of dialect ``number``; their means are the ``plain`` probabilities."""
    import numpy

    rng = numpy.random.Generator(numpy.random.PCG64(seed_of(seed, _DIALECT, number)))
    smallest = 1e-9  # every alternative stays possible
    drawn = {
        name: smallest + rng.dirichlet([concentration * len(p) * probability for probability in p])
        for name, p in plain.items()
    }
    return {name: list(p / p.sum()) for name, p in drawn.items()}

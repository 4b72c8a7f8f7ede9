"""Grammars: probabilities equal those of an enumeration of all texts."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from helpers.refusals import refusal

from sgp_runner.data.grammar import Grammar, rules_of, usual
from sgp_runner.data.language import Language, Mixture, Rules

# Nested brackets, a rule decided by its first byte, and words that share their first letters.
TINY: Rules = {
    "text": [["part", "text"]],
    "part": [[b"(", "part", b")"], ["word", "mark"]],
    "word": [[b"ab"], [b"aab"], [b"b"]],
    "mark": [[b"."], [b"!"]],
}
EVEN = {"text": [1.0], "part": [0.25, 0.75], "word": [0.5, 0.3, 0.2], "mark": [0.9, 0.1]}
ODD = {"text": [1.0], "part": [0.5, 0.5], "word": [0.1, 0.1, 0.8], "mark": [0.4, 0.6]}
ENTROPY = 0.5310180613346848  # exact, nats per byte of the first 32 of a text of `Grammar`


def all_texts(length: int) -> list[bytes]:
    return [bytes(text) for text in itertools.product(b"ab().!", repeat=length)]


def logs(language: Language | Mixture, length: int) -> list[float]:
    """Return the logarithms of the probabilities of all possible texts."""
    return [log for log in map(language.log_probability, all_texts(length)) if log > -math.inf]


def entropy(language: Language | Mixture, length: int) -> float:
    """Return the entropy in nats of the first ``length`` bytes of a text."""
    return -math.fsum(math.exp(log) * log for log in logs(language, length))


@pytest.mark.parametrize("length", range(1, 7))
def test_the_probabilities_of_all_texts_add_up_to_one(length: int) -> None:
    assert math.fsum(math.exp(log) for log in logs(Language(TINY, EVEN), length)) == pytest.approx(
        1, abs=1e-12
    )


def test_the_first_bytes_have_literal_probabilities() -> None:
    language = Language(TINY, EVEN)
    assert {
        text: round(math.exp(language.log_probability(text)), 12)
        for text in (b"(", b"a", b"aa", b"aab", b"b!", b"((b.)")
    } == {b"(": 0.25, b"a": 0.6, b"aa": 0.225, b"aab": 0.225, b"b!": 0.015, b"((b.)": 0.0084375}
    assert language.log_probability(b")") == language.log_probability(b"a!") == -math.inf


def test_a_mixture_averages_probabilities_not_logarithms() -> None:
    both = Mixture([Language(TINY, EVEN), Language(TINY, ODD)])
    assert math.fsum(map(math.exp, logs(both, 5))) == pytest.approx(1, abs=1e-12)
    assert math.exp(both.log_probability(b"(b")) == pytest.approx(
        (0.25 * 0.75 * 0.2 + 0.5 * 0.5 * 0.8) / 2
    )
    # The reader does not know which language it reads, so the mixture's entropy is the larger.
    apart = sum(entropy(language, 5) for language in both.languages) / 2
    assert apart < entropy(both, 5) < apart + math.log(2)


def test_samples_are_as_frequent_as_their_probability_says() -> None:
    language, draw = Language(TINY, EVEN), random.Random(5).random
    for text, count in Counter(language.sample(draw, 3) for _ in range(20_000)).items():
        p = math.exp(language.log_probability(text))
        assert abs(count / 20_000 - p) < 5 * math.sqrt(p / 20_000)


@pytest.mark.parametrize(
    "rules",
    [
        {"text": [["word", "text"]], "word": [[b"a"], [b"ab"]]},
        {"text": [["word", "text"], [b"ax", "text"]], "word": [[b"a"], [b"b"]]},
    ],
)
def test_rules_that_are_ambiguous_from_the_left_are_refused(rules: Rules) -> None:
    even = {
        name: [1 / len(alternatives)] * len(alternatives) for name, alternatives in rules.items()
    }
    with pytest.raises(ValueError, match="cannot be told apart"):
        Language(rules, even)


def test_the_floor_of_a_validation_set_is_near_the_entropy() -> None:
    data = Grammar(block=32, valid_size=2000)
    (language,) = data.languages
    task = data.load(torch.float32).task
    texts = [
        language.log_probability(bytes(row))
        for row in data.load(torch.float32).valid.batch(torch.arange(2000))[1].tolist()
    ]
    assert task.floor == pytest.approx(-sum(texts) / len(texts) / 32, abs=1e-12)
    deviation = torch.tensor(texts).std() / 32 / math.sqrt(len(texts))
    assert abs(task.floor - ENTROPY) < 4 * deviation


def test_training_never_repeats_and_depends_on_the_seed_alone() -> None:
    data = Grammar(block=16, train_size=8, valid_size=4).load(torch.float32)
    rows = torch.arange(8)
    (inputs,), targets = data.train.batch(rows, 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert set(inputs[:, 0].tolist()) == {10}
    assert torch.equal(targets, data.train.batch(rows, 1)[1])
    assert torch.equal(targets[3:4], data.train.batch(rows[3:4], 1)[1])
    assert not torch.equal(targets, data.train.batch(rows, 2)[1])


def test_the_language_does_not_change() -> None:
    rules = rules_of(96, 0)
    assert Language(rules, usual(rules)).sample(random.Random(3).random, 60) == (
        b"a gumobut kuzofs a gemakig . some nuregs nepemav a nabatad ."
    )


def test_verbs_agree_with_their_nouns_across_brackets() -> None:
    rules = rules_of(96, 0)
    language = Language(rules, usual(rules))
    right = b"a gumobut (some nuregs nepemav - ) kuzofs - . "
    assert language.log_probability(right) > -math.inf
    for wrong in (right.replace(b"kuzofs", b"kuzof"), right.replace(b"nepemav", b"nepemavs")):
        assert language.log_probability(wrong) == -math.inf


def test_dialects_share_words_and_differ_in_their_frequencies() -> None:
    data = Grammar(dialects=3, concentration=0.5, valid_size=64).load(torch.float32)
    assert data.train.labels[:6].tolist() == [0, 1, 2, 0, 1, 2]
    languages = Grammar(dialects=3, concentration=0.5).languages
    assert all(language.rules == languages[0].rules for language in languages)
    text = b"a gumobut kuzofs a gemakig . "
    assert len({round(language.log_probability(text), 6) for language in languages}) == 3


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"block": 1}, "data.block"),
        ({"nouns": 2}, "data.nouns"),
        ({"dialects": 0}, "data.dialects"),
        ({"concentration": 0.0}, "data.concentration"),
    ],
)
def test_impossible_grammars_are_refused(settings: dict[str, int], key: str) -> None:
    assert refusal(Grammar, **settings).key == key


def test_searches_can_validate_on_other_texts() -> None:
    standard, other = (
        Grammar(block=16, valid_size=8, holdout=holdout).load(torch.float32).valid
        for holdout in (0.0, 0.2)
    )
    targets = [valid.batch(torch.arange(8))[1] for valid in (standard, other)]
    assert targets[0].shape == targets[1].shape and not torch.equal(*targets)

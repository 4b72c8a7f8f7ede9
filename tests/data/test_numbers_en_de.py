"""Numbers in words, and their sentences in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sgp_runner.core.problem import make_problem
from sgp_runner.data import pieces
from sgp_runner.data.digits import Digits
from sgp_runner.data.number_words import (
    english,
    english_ordinal,
    english_year,
    german,
    german_ordinal,
    german_year,
)
from sgp_runner.data.numbers_en_de import NumbersEnDe, sentences
from sgp_runner.data.phrases import DAY, EURO, HOUR, KINDS, clock, quantity
from sgp_runner.data.tasks import Translation
from sgp_runner.models.mlp import MLP
from sgp_runner.models.transformer import Transformer


@pytest.mark.parametrize(
    ("n", "en", "de"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (101, "one hundred one", "einhunderteins"),
        (1001, "one thousand one", "eintausendeins"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (101_016, "one hundred one thousand sixteen", "einhunderteintausendsechzehn"),
        (
            123_456,
            "one hundred twenty-three thousand four hundred fifty-six",
            "einhundertdreiundzwanzigtausendvierhundertsechsundfünfzig",
        ),
    ],
)
def test_cardinals(n: int, en: str, de: str) -> None:
    assert (english(n), german(n)) == (en, de)


@pytest.mark.parametrize(
    ("n", "en", "de"),
    [
        (1, "first", "erste"),
        (2, "second", "zweite"),
        (3, "third", "dritte"),
        (5, "fifth", "fünfte"),
        (7, "seventh", "siebte"),
        (8, "eighth", "achte"),
        (12, "twelfth", "zwölfte"),
        (19, "nineteenth", "neunzehnte"),
        (20, "twentieth", "zwanzigste"),
        (28, "twenty-eighth", "achtundzwanzigste"),
        (100, "one hundredth", "einhundertste"),
        (101, "one hundred first", "einhunderterste"),
        (1007, "one thousand seventh", "eintausendsiebte"),
    ],
)
def test_ordinals(n: int, en: str, de: str) -> None:
    assert (english_ordinal(n), german_ordinal(n)) == (en, de)


@pytest.mark.parametrize(
    ("year", "en", "de"),
    [
        (1800, "eighteen hundred", "achtzehnhundert"),
        (1905, "nineteen oh five", "neunzehnhundertfünf"),
        (1984, "nineteen eighty-four", "neunzehnhundertvierundachtzig"),
        (2001, "two thousand one", "zweitausendeins"),
        (2017, "twenty seventeen", "zweitausendsiebzehn"),
    ],
)
def test_years(year: int, en: str, de: str) -> None:
    assert (english_year(year), german_year(year)) == (en, de)


@pytest.mark.parametrize(
    ("hour", "minute", "en", "de"),
    [
        (1, 0, "one o'clock", "ein Uhr"),
        (12, 30, "half past twelve", "halb eins"),
        (3, 15, "quarter past three", "Viertel nach drei"),
        (12, 45, "quarter to one", "Viertel vor eins"),
        (7, 20, "twenty past seven", "zwanzig nach sieben"),
        (4, 59, "one minute to five", "eine Minute vor fünf"),
        (1, 7, "seven minutes past one", "sieben Minuten nach eins"),
    ],
)
def test_clock(hour: int, minute: int, en: str, de: str) -> None:
    assert clock(hour, minute) == (en, de)


def test_quantities_agree_with_their_noun() -> None:
    assert [quantity(1, EURO), quantity(1, HOUR), quantity(21, DAY)] == [
        ("one euro", "ein Euro"),
        ("one hour", "eine Stunde"),
        ("twenty-one days", "einundzwanzig Tage"),
    ]


def test_every_sentence_splits_into_known_pieces_and_joins_again() -> None:
    task = NumbersEnDe(train_size=10, valid_size=1).load(torch.float32).task
    assert isinstance(task, Translation)
    for en, de, _ in sentences(3000):
        assert pieces.ids(pieces.english_words(en))
        assert task.text([*pieces.ids(pieces.german_pieces(de)), pieces.EOS, pieces.PAD]) == de
    assert pieces.german_pieces("der dreiundzwanzigste Mai") == [
        *("der", "▁", "drei", "und", "zwanzig", "ste", "▁", "Mai")
    ]


def test_validation_sentences_are_unseen() -> None:
    rows = sentences(4000)
    assert len({en for en, _, _ in rows}) == len({de for _, de, _ in rows}) == 4000
    assert {kind for _, _, kind in rows} == set(range(len(KINDS)))
    assert rows == sentences(4000)


def test_a_model_translates_examples_of_unseen_sentences() -> None:
    data = NumbersEnDe(train_size=10, valid_size=2)
    model = Transformer(width=4, heads=2, feed_forward=4, encoder_layers=1, decoder_layers=1)
    problem = make_problem(model, data, workers=1, batch_size=2, seed=1, dtype=torch.float32)
    examples: Any = problem.translations(problem.start())["translations"]
    assert [(one["source"], one["reference"]) for one in examples] == [
        ("four kilometers", "vier Kilometer"),
        (
            "one hundred thirty six weeks and three days",
            "einhundertsechsunddreißig Wochen und drei Tage",
        ),
    ]
    images = make_problem(MLP(), Digits(), workers=1, batch_size=2, seed=1, dtype=torch.float32)
    assert images.translations(images.start()) == {}


def test_numbers_en_de_has_the_layout_of_a_translation() -> None:
    data = NumbersEnDe(train_size=200, valid_size=20).load(torch.float32)
    (source, target_in), targets = data.train.batch(torch.arange(200))
    assert (len(data.train), len(data.valid)) == (200, 20)
    assert source.shape == (200, *data.input_shape) and target_in.shape == targets.shape
    assert int(max(source.max(), targets.max())) < data.num_classes == len(pieces.VOCABULARY)
    assert set(target_in[:, 0].tolist()) == {pieces.BOS}
    assert ((targets == pieces.EOS).sum(1) == 1).all()
    kept = target_in[:, 1:] != pieces.PAD
    assert torch.equal(target_in[:, 1:][kept], targets[:, :-1][kept])

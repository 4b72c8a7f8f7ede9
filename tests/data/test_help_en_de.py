"""Sentences of a manual in two languages, from excerpts in the format of their packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.packed import deb
from helpers.paths import ROOT
from helpers.refusals import refusal

from sgp_runner.data.help_en_de import PAIRS, SOURCE, HelpEnDe, complete
from sgp_runner.data.packaged import checksum_of
from sgp_runner.data.tasks import PieceTranslation, Translation
from sgp_runner.models.transformer import Transformer
from sgp_runner.utils.errors import ConfigError

NUMBERS = {"one": "Eins", "two": "Zwei", "three": "Drei", "four": "Vier"}


def page(*paragraphs: tuple[str, str]) -> bytes:
    return "".join(f'<p class="x" id="{key}">{text}</p>\n' for key, text in paragraphs).encode()


def pages() -> dict[str, bytes]:
    """Four pages of three sentences each, the last of which all pages have."""
    files = {}
    for name, other in NUMBERS.items():
        for language, texts in (
            ("en-US", (f"Open page {name} now. Close it again soon.", "The same everywhere here.")),
            ("de", (f"Seite {other} jetzt öffnen. Später wieder ganz schließen.", "Überall so.")),
        ):
            files[f"{language}/text/a/{name}.html"] = page(*zip("ab", texts, strict=True))
    return files


@pytest.fixture
def manual(tmp_path: Path) -> HelpEnDe:
    for language in ("en-US", "de"):
        files = {name: text for name, text in pages().items() if name.startswith(language)}
        deb(tmp_path / f"{language}.deb", {f"./help/{name}": files[name] for name in files})
    sha256 = checksum_of(complete(pages()))
    return HelpEnDe(path=str(tmp_path), sha256=sha256, pieces=300, valid_pages=1)


def rows(english: bytes, german: bytes) -> list[str]:
    files = {"en-US/text/p.html": english, "de/text/p.html": german}
    return complete(files)[PAIRS].decode().splitlines()


def test_paragraphs_with_one_id_are_pairs_of_sentences() -> None:
    english = page(
        ("1", "Click <b>the</b> icon&#46; Wait a while."), ("2", "Only in English here.")
    )
    german = page(("1", "Auf das Symbol klicken. Etwas Zeit abwarten."), ("3", "Nur auf Deutsch."))
    assert rows(english, german) == [
        "p.html\tClick the icon.\tAuf das Symbol klicken.",
        "p.html\tWait a while.\tEtwas Zeit abwarten.",
    ]


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("LibreOffice Calc Help", "LibreOffice Calc Help"),  # equal
        ("Two words", "Zwei Wörter hier"),
        ("These are only three", "Das hier ist auf Deutsch mehr als doppelt so lang"),
        ("word " * 61, "Wort " * 61),
    ],
)
def test_odd_pairs_are_left_out(english: str, german: str) -> None:
    assert rows(page(("1", english)), page(("1", german))) == []


def test_a_paragraph_is_one_pair_if_its_sentences_do_not_agree() -> None:
    assert rows(
        page(("1", "Here are two. They become one.")), page(("1", "Zwei Sätze werden so einer."))
    ) == ["p.html\tHere are two. They become one.\tZwei Sätze werden so einer."]


def test_a_pair_belongs_to_its_first_page() -> None:
    files = {
        f"{language}/text/{name}.html": page(("1", text))
        for language, text in (("en-US", "A line of text."), ("de", "Eine Zeile mit Text."))
        for name in ("b", "a")
    }
    assert complete(files)[PAIRS].decode() == "a.html\tA line of text.\tEine Zeile mit Text.\n"


def test_a_page_is_held_out_without_sentences_that_train(manual: HelpEnDe) -> None:
    dataset = manual.load(torch.float32)
    task = dataset.task
    assert isinstance(task, PieceTranslation)
    (source, target_in), targets = dataset.train.batch(torch.arange(4))
    (held, _), answers = dataset.valid.batch(torch.tensor([0]))
    assert (len(dataset.train), len(dataset.valid)) == (4, 1)
    assert dataset.train.labels is not None and len(dataset.train.labels.unique()) == 3

    def texts(rows: torch.Tensor) -> list[str]:
        return [task.text([i for i in row if i > 2]) for row in rows.tolist()]

    (english,), (german,) = texts(held), texts(answers)
    number = english.split()[2]
    assert english == f"Open page {number} now."
    assert german == f"Seite {NUMBERS[number]} jetzt öffnen."
    assert sorted(texts(source)) == sorted(
        ["Close it again soon.", *(f"Open page {name} now." for name in NUMBERS if name != number)]
    )
    assert target_in[:, 0].tolist() == [1] * 4
    assert torch.equal(target_in[:, 1:], torch.where(targets == 2, 0, targets)[:, :-1])


class AllAtOnce(PieceTranslation):
    """The same in the order of the sentences, which are padded to one length."""

    batches = Translation.batches
    limit = Translation.limit


def test_sentences_in_the_order_of_their_lengths_have_the_same_results(manual: HelpEnDe) -> None:
    dataset = manual.load(torch.float64)
    task = dataset.task
    assert isinstance(task, PieceTranslation)
    torch.manual_seed(2)
    module = Transformer(width=16, dropout=0).build(dataset).double()
    with torch.no_grad(), mock.patch("sgp_runner.data.tasks.SENTENCES", 2):
        metrics = task.evaluate(module, dataset.train)
        expected = AllAtOnce(**vars(task)).evaluate(module, dataset.train)
    assert metrics == pytest.approx(expected, rel=1e-12)
    (source, _), _ = dataset.train.batch(torch.arange(4))
    longest = source.shape[1]
    shapes = [inputs[0].shape[1] for inputs, _ in task.batches(module, dataset.train, 99)]
    assert shapes == [longest]  # one pass: fewer than 64 sentences
    assert [
        task.limit(*limits) for limits in ((source, 99), (source[:, :3], 99), (source, 12))
    ] == [*(2 * longest + 10, 16, 12)]


def test_whole_pages_go_to_nodes(manual: HelpEnDe) -> None:
    dataset = replace(manual, partition="by_document").load(torch.float32)
    assert dataset.train.labels is not None
    sampler = dataset.partition.sampler(dataset.train, 3, 1, seed=1)
    shares = [set(dataset.train.labels[sampler.indices(w, 1)].tolist()) for w in range(3)]
    assert len(set.union(*shares)) == 3 and [len(share) for share in shares] == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"de": None}, "is not help_en_de: it has no pages in de (expected in de/text/); get"),
        ({"tsv": "a\tEnglish only\n"}, "line 1 of pairs.tsv has 2 of 3 columns (page, English, "),
        ({"tsv": "a\tb\tc\na\tb\n"}, "line 2 of pairs.tsv has 2 of 3 columns (page, English, "),
        ({"tsv": "a\tA b c d\tE f g h\n"}, "there are only 1 pages: use fewer."),
    ],
)
def test_other_files_are_refused(
    change: dict[str, str | None], sentence: str, tmp_path: Path
) -> None:
    sha256 = None
    if text := change.get("tsv"):
        (tmp_path / PAIRS).write_text(text)
        sha256 = checksum_of({PAIRS: text.encode()})
    else:
        (tmp_path / "en-US/text").mkdir(parents=True)
        (tmp_path / "en-US/text/a.html").write_bytes(page(("1", "Some words here.")))
    assert (
        sentence
        in refusal(HelpEnDe(path=str(tmp_path), sha256=sha256).load, torch.float32).sentence
    )


def test_pairs_with_more_pieces_are_left_out(manual: HelpEnDe) -> None:
    (source, _), targets = manual.load(torch.float32).train.batch(torch.arange(4))
    lengths = torch.maximum((source > 2).sum(1), (targets > 2).sum(1))
    most = int(lengths.max()) - 1
    kept = replace(manual, max_pieces=most).load(torch.float32)
    assert len(kept.train) == int((lengths <= most).sum()) < 4
    assert kept.input_shape[0] <= most
    with pytest.raises(ConfigError, match="^data.max_pieces: no sentence has 2 pieces or fewer: "):
        replace(manual, max_pieces=2).load(torch.float32)


def test_sentences_that_are_too_long_for_all_are_refused(manual: HelpEnDe) -> None:
    with pytest.raises(ConfigError, match=r"^data.max_words: no page has sentences of up to 3 "):
        replace(manual, max_words=3).load(torch.float32)


def test_the_complete_pairs() -> None:
    if not (ROOT / "data/help_en_de").exists():
        pytest.skip("help_en_de is not in data: sgp-run download help_en_de")
    pairs = SOURCE.read(str(ROOT / "data"), None, SOURCE.sha256)[PAIRS].decode().splitlines()
    assert len(pairs) == 36_767 and len({line.partition("\t")[0] for line in pairs}) == 2_557

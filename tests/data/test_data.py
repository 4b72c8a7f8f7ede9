"""Data sets, samplers and tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sgp_runner.data import pieces
from sgp_runner.data.dataset import DataConfig, TensorSplit
from sgp_runner.data.digits import Digits, table
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
from sgp_runner.data.quadratic_problem import QuadraticData
from sgp_runner.data.sampler import (
    IID,
    Dirichlet,
    Sampler,
    deal,
    deal_equally,
    partition_of,
)
from sgp_runner.data.shapes import Shapes, inside
from sgp_runner.data.synthetic import Synthetic
from sgp_runner.data.tasks import Classification, Regression, Translation
from sgp_runner.data.teacher import TeacherData
from sgp_runner.models.quadratic import Quadratic
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import generator, seed_of


def _split(samples: int, classes: int = 10) -> TensorSplit:
    values = torch.arange(samples)
    return TensorSplit((values,), values % classes, values % classes)


# Seeds


def test_seed_is_the_same_on_every_machine() -> None:
    assert seed_of() == 6510301506637419378
    assert seed_of(1, 23) == 2409335327811177931
    assert seed_of(1, 23) != seed_of(12, 3)
    assert all(0 <= seed_of(i, -i) < 2**63 for i in range(100))


def test_generator_repeats() -> None:
    assert torch.equal(
        torch.rand(4, generator=generator(3, 4)), torch.rand(4, generator=generator(3, 4))
    )


# Samplers


def test_iid_reads_every_sample_once_per_epoch() -> None:
    sampler = IID().sampler(_split(26), workers=3, batch_size=2, seed=1)
    assert sampler.steps_per_epoch == 4
    for epoch in (0, 1):
        steps = range(4 * epoch, 4 * epoch + 4)
        read = torch.cat([sampler.indices(w, s) for s in steps for w in range(3)])
        assert len(read) == 24 and len(set(read.tolist())) == 24


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.3)])
def test_indices_do_not_depend_on_the_order_of_calls(partition: IID | Dirichlet) -> None:
    def make() -> Sampler:
        return partition.sampler(_split(100), workers=4, batch_size=5, seed=7)

    calls = [(w, s) for w in range(4) for s in range(40)]
    forward = {call: make().indices(*call).tolist() for call in calls}
    sampler = make()
    random.Random(0).shuffle(calls)
    assert all(sampler.indices(*call).tolist() == forward[call] for call in calls)
    assert forward[(0, 0)] != forward[(0, sampler.steps_per_epoch)]
    assert partition.sampler(_split(100), 4, 5, seed=8).indices(0, 0).tolist() != forward[(0, 0)]


def test_shards_are_disjoint_cover_everything_and_hold_a_batch() -> None:
    labels = torch.arange(1000) % 10
    shards = deal(labels, workers=16, at_least=32, alpha=0.05, seed=3)
    assert torch.equal(torch.cat(shards).sort().values, torch.arange(1000))
    assert min(map(len, shards)) >= 32


def test_small_alpha_gives_few_labels_and_large_alpha_all_in_equal_parts() -> None:
    labels = torch.arange(10_000) % 10

    def largest_share(alpha: float) -> float:
        counts = [
            labels[shard].bincount(minlength=10) for shard in deal(labels, 8, 1, alpha, seed=0)
        ]
        return sum(float(c.max() / c.sum()) for c in counts) / 8

    assert largest_share(1000.0) < 0.12
    assert largest_share(0.05) > 0.4


def test_a_shard_is_read_pass_by_pass() -> None:
    split = _split(20, classes=1)
    sampler = Dirichlet(1.0).sampler(split, workers=2, batch_size=3, seed=0)
    shards = deal(split.targets, 2, 3, 1.0, seed=0)
    for worker, shard in enumerate(shards):
        stream = torch.cat([sampler.indices(worker, step) for step in range(2 * len(shard))])
        for number in range(6):
            one_pass = stream[number * len(shard) : (number + 1) * len(shard)]
            assert torch.equal(one_pass.sort().values, shard)


def test_too_large_a_batch_is_refused_with_the_largest_that_works() -> None:
    with pytest.raises(ConfigError) as error:
        IID().sampler(_split(1437), workers=32, batch_size=64, seed=0)
    assert str(error.value) == (
        "batch_size: 1437 training samples do not fill one batch of 64 on each of 32 nodes. The "
        "largest batch size that works is 44."
    )
    with pytest.raises(ConfigError, match="Use at most 10 nodes"):
        Dirichlet().sampler(_split(10), workers=11, batch_size=1, seed=0)


def test_equal_dirichlet_deals_shards_of_one_size_and_each_sample_once() -> None:
    labels = torch.arange(1003) % 10
    shards = deal_equally(labels, workers=8, alpha=0.1, seed=0)
    assert [len(shard) for shard in shards] == [125] * 8
    assert len(set(torch.cat(shards).tolist())) == 1000
    most = [int(labels[shard].bincount().max()) for shard in shards]
    assert min(most) == 46 and sum(most) == 480  # 13 and 104 if all had the same
    even = deal_equally(labels, workers=8, alpha=10_000.0, seed=0)
    assert max(int(labels[shard].bincount().max()) for shard in even) < 25


def test_equal_dirichlet_uses_up_what_is_left() -> None:
    shards = deal_equally(torch.tensor([0, 0, 0, 1, 1, 1]), workers=3, alpha=1e-3, seed=0)
    assert sorted(torch.cat(shards).tolist()) == [0, 1, 2, 3, 4, 5]


def test_dirichlet_needs_labels() -> None:
    with pytest.raises(ConfigError, match=r"Use data\.partition=iid"):
        Dirichlet().sampler(
            TensorSplit((), torch.zeros(100), None), workers=2, batch_size=2, seed=0
        )


def test_the_fields_of_a_data_config_choose_the_partition() -> None:
    assert partition_of(Digits()) == IID()
    assert partition_of(Digits(partition="dirichlet", alpha=0.3)) == Dirichlet(0.3)
    assert partition_of(Digits(partition="dirichlet_equal")) == Dirichlet(0.1, equal=True)
    with pytest.raises(
        ConfigError, match=r"data\.partition: 'dirichlett' .* Did you mean 'dirichlet'"
    ):
        Digits(partition="dirichlett")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data\.alpha"):
        Digits(partition="dirichlet", alpha=0.0)


# Data sets


def test_digits_are_those_that_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    rows = torch.tensor(table())
    assert rows[:, :-1].tolist() == load_digits().data.tolist()
    assert rows[:, -1].tolist() == load_digits().target.tolist()


def test_digits_has_a_fixed_split() -> None:
    data = Digits().load(torch.float64)
    assert (len(data.train), len(data.valid), data.input_shape, data.num_classes) == (
        1437,
        360,
        (1, 8, 8),
        10,
    )
    (images,), targets = data.train.batch(torch.arange(1437))
    assert images.shape == (1437, 1, 8, 8) and images.dtype == torch.float64
    assert abs(float(images.mean())) < 1e-12 and abs(float(images.std()) - 1) < 1e-12
    assert targets[:8].tolist() == [9, 4, 5, 5, 5, 0, 5, 6]


@pytest.mark.parametrize(
    "make",
    [
        Digits,
        lambda **kw: Shapes(train_size=50, valid_size=10, **kw),
        lambda **kw: NumbersEnDe(50, 10, **kw),
    ],
)
def test_a_share_of_the_training_set_validates_in_place_of_the_validation_set(
    make: Callable[..., DataConfig],
) -> None:
    whole, divided = (make(**options).load(torch.float32) for options in ({}, {"holdout": 0.2}))
    total, rest = len(whole.train), {1437: 1150, 50: 40}[len(whole.train)]
    (train, *_), train_labels = divided.train.batch(torch.arange(rest))
    (valid, *_), valid_labels = divided.valid.batch(torch.arange(total - rest))
    (images, *_), labels = whole.train.batch(torch.arange(total))
    assert (len(divided.train), len(divided.valid)) == (rest, total - rest)
    assert torch.equal(torch.cat([train, valid]), images) and torch.equal(
        torch.cat([train_labels, valid_labels]), labels
    )
    assert (
        divided.train.labels is not None and len(divided.train.labels) == rest
    )  # what Dirichlet deals


@pytest.mark.parametrize("share", [1.0, -0.1, 1e-9])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"^data\.holdout: .*holdout=0\.2"):
        Digits(holdout=share).load(torch.float32)


def test_synthetic_samples_depend_on_their_index_only() -> None:
    data = Synthetic(image_size=4, num_classes=7, size=50, valid_size=5).load(torch.float32)
    (together,), labels = data.train.batch(torch.tensor([3, 9]))
    (alone,), label = data.train.batch(torch.tensor([9]))
    (validation,), _ = data.valid.batch(torch.tensor([3]))
    assert together.shape == (2, 3, 4, 4)
    assert torch.equal(together[1], alone[0]) and labels[1] == label[0]
    assert not torch.equal(together[0], validation[0])
    assert len(data.train) == 50 and len(data.valid) == 5 and int(labels.max()) < 7


def test_quadratic_has_the_declared_curvature_and_optimum() -> None:
    data = QuadraticData(dimension=3, samples=32, groups=4, condition=100.0).load(torch.float64)
    module = Quadratic().build(data).double()
    x = module.get_parameter("x")
    (scale,), targets = data.train.batch(torch.arange(32))
    assert torch.allclose(scale[0] ** 2, torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64))
    with torch.no_grad():
        x.copy_((targets / scale).mean(0))
        assert data.task.evaluate(module, data.valid)["loss"] < 1e-28
    (gradient,) = torch.autograd.grad(data.task.loss(module(scale), targets), x)
    assert float(gradient.abs().max()) < 1e-15


def test_quadratic_labels_shift_the_optimum() -> None:
    data = QuadraticData(dimension=2, samples=40, groups=4, noise=0.0, heterogeneity=1.0).load(
        torch.float64
    )
    _, targets = data.train.batch(torch.arange(40))
    assert len(torch.unique(targets, dim=0)) == 4
    flat = QuadraticData(dimension=2, samples=40, groups=4, noise=0.0, heterogeneity=0.0).load(
        torch.float64
    )
    assert len(torch.unique(flat.train.batch(torch.arange(40))[1], dim=0)) == 1


def test_a_teachers_targets_are_noisy_anew_at_every_reading_and_right_on_average() -> None:
    data = TeacherData(points=4, samples=80_000, noise=2.0).load(torch.float64)
    (clean_inputs,), clean = data.valid.batch(torch.arange(4))
    everything = torch.arange(80_000)
    (inputs,), noisy = data.train.batch(everything, seed=1)
    assert torch.equal(inputs[4:8], clean_inputs) and torch.equal(inputs[:4], clean_inputs)
    noise = noisy - clean.repeat(20_000, 1)
    assert (
        abs(float(noise.mean())) < 0.03 and abs(float(noise.std()) - 2) < 0.02
    )  # about four standard errors
    assert torch.equal(
        data.train.batch(everything[7:9], seed=1)[1], noisy[7:9]
    )  # whichever others are read
    assert not torch.equal(data.train.batch(everything[7:9], seed=2)[1], noisy[7:9])


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Synthetic(size=0), "data.size"),
        (lambda: QuadraticData(condition=0.5), "data.condition"),
        (lambda: QuadraticData(noise=-1.0), "data.noise"),
        (lambda: TeacherData(noise=-1.0), "data.noise"),
        (lambda: TeacherData(points=64, samples=100), "data.samples"),
        (lambda: NumbersEnDe(train_size=0), "data.train_size"),
    ],
)
def test_impossible_data_is_refused(make: type[DataConfig], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert error.value.key == key


# Number words


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
    assert quantity(1, EURO) == ("one euro", "ein Euro")
    assert quantity(1, HOUR) == ("one hour", "eine Stunde")
    assert quantity(21, DAY) == ("twenty-one days", "einundzwanzig Tage")


def test_every_sentence_splits_into_known_pieces_and_joins_again() -> None:
    task = NumbersEnDe(train_size=10, valid_size=1).load(torch.float32).task
    assert isinstance(task, Translation)
    for en, de, _ in sentences(3000):
        assert pieces.ids(pieces.english_words(en))
        assert task.text([*pieces.ids(pieces.german_pieces(de)), pieces.EOS, pieces.PAD]) == de
    split = pieces.german_pieces("der dreiundzwanzigste Mai")
    assert split == ["der", "▁", "drei", "und", "zwanzig", "ste", "▁", "Mai"]


def test_validation_sentences_are_unseen() -> None:
    rows = sentences(4000)
    assert len({en for en, _, _ in rows}) == len({de for _, de, _ in rows}) == 4000
    assert {kind for _, _, kind in rows} == set(range(len(KINDS)))
    assert rows == sentences(4000)


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


# Tasks


def test_classification_counts_every_sample_once() -> None:
    targets = torch.zeros(1000, dtype=torch.int64)
    targets[:250] = 1
    logits = torch.tensor([math.log(3.0), 0.0]).expand(1000, 2).clone()
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
        module.bias.zero_()
        result = Classification().evaluate(module, TensorSplit((logits,), targets, None))
    assert result["accuracy"] == 0.75
    assert result["loss"] == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_regression_is_half_the_squared_distance() -> None:
    assert (
        float(Regression().loss(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2))) == 6.25
    )


def test_regression_reports_the_gradient_of_the_whole_split() -> None:
    module = nn.Linear(1, 1, bias=False)
    split = TensorSplit((torch.tensor([[1.0], [2.0]]),), torch.tensor([[0.0], [0.0]]), None)
    with torch.no_grad():
        module.weight.fill_(3.0)
        assert Regression().evaluate(module, split) == {
            "loss": 11.25,
            "gradient_norm": 7.5,
        }  # w^2 E[x^2] / 2 and w E[x^2]
    assert module.weight.grad is None


def test_translation_loss_equals_torch_and_ignores_padding() -> None:
    task = Translation(0, 1, 2, ("<pad>", "<bos>", "<eos>", "a", "b"), label_smoothing=0.1)
    outputs = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator(0))
    targets = torch.tensor([[3, 4, 2, 0], [2, 0, 0, 0], [4, 4, 4, 2]])
    by_torch = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    expected = by_torch(outputs.flatten(0, 1), targets.flatten())
    assert float(task.loss(outputs, targets)) == pytest.approx(float(expected), abs=1e-14)
    stacked = torch.func.vmap(task.loss)(outputs.expand(2, -1, -1, -1), targets.expand(2, -1, -1))
    assert stacked.tolist() == pytest.approx([float(expected)] * 2)


class Copier(nn.Module):
    """Says the source again, word by word; then ends."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        return self.decode(source, self.encode(source), target_in)

    def encode(self, source: Tensor) -> Tensor:
        return source

    def decode(self, source: Tensor, memory: Tensor, target_in: Tensor) -> Tensor:
        return 50.0 * nn.functional.one_hot(memory[:, : target_in.shape[1]], 6).double()


def test_greedy_decoding_scores_exact_matches_and_bleu() -> None:
    task = Translation(
        0, 1, 2, ("<pad>", "<bos>", "<eos>", "eins", "▁", "zwei"), label_smoothing=0.0
    )
    source = torch.tensor([[3, 4, 5, 2], [3, 2, 0, 0], [5, 2, 0, 0], [5, 4, 5, 2]])
    targets = source.clone()
    targets[3, 0] = 3
    target_in = torch.cat([torch.ones(4, 1, dtype=torch.int64), targets[:, :-1]], 1)
    with torch.no_grad():
        result = task.evaluate(Copier(), TensorSplit((source, target_in), targets, None))
    assert result["accuracy"] == 0.75
    assert set(result) == {"loss", "accuracy", "bleu"}
    assert task.text([3, 4, 5, 2, 0, 0]) == "eins zwei"


# Shapes


def test_shapes_are_the_same_every_time_in_equal_numbers() -> None:
    data = Shapes(image_size=32, train_size=250, valid_size=50)
    first, second = data.load(torch.float32), data.load(torch.float32)
    everything = torch.arange(250)
    (images,), labels = first.train.batch(everything)
    assert images.shape == (250, 3, 32, 32) and (
        len(first.valid),
        first.input_shape,
        first.num_classes,
    ) == (50, (3, 32, 32), 10)
    assert torch.equal(images, second.train.batch(everything)[0][0])
    assert labels.bincount().tolist() == [25] * 10
    assert (
        images.mean((0, 2, 3)).abs().max() < 1e-5 and (images.std((0, 2, 3)) - 1).abs().max() < 1e-5
    )


@pytest.mark.parametrize(
    ("kind", "inner", "outer"),  # points just inside and just outside of each shape
    [
        (0, (0.99, 0.0), (-0.51, 0.0)),
        (1, (0.0, 0.99), (0.51, 0.51)),
        (2, (0.99, 0.0), (-0.82, 0.0)),
        (3, (-0.99, 0.0), (0.0, 0.88)),
        (4, (0.7, 0.7), (0.72, 0.72)),
        (5, (0.0, 0.56), (0.0, 0.54)),
        (6, (0.0, -0.39), (0.0, -0.41)),
        (7, (0.34, 0.99), (0.36, 0.36)),
        (8, (0.99, 0.0), (0.33, 0.33)),
        (9, (-0.44, 0.0), (-0.46, 0.0)),
    ],
)
def test_a_shape_has_its_outline(
    kind: int, inner: tuple[float, float], outer: tuple[float, float]
) -> None:
    x, y = (torch.tensor([[[inner[i], outer[i]]]]) for i in (0, 1))
    depth = inside(torch.tensor([kind]), x, y)[0, 0]
    assert depth[0] > 0 > depth[1]


@pytest.mark.parametrize(
    ("field", "value"), [("image_size", 7), ("train_size", 0), ("noise", -0.1)]
)
def test_impossible_shapes_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{field}: must "):
        Shapes(**{field: value})

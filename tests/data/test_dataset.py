"""Data sets that are small or generated, and shares of them that are held out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.refusals import refusal

from sgp_runner.data.dataset import DataConfig
from sgp_runner.data.digits import Digits, table
from sgp_runner.data.numbers_en_de import NumbersEnDe
from sgp_runner.data.quadratic_problem import QuadraticData
from sgp_runner.data.shapes import Shapes
from sgp_runner.data.synthetic import Synthetic
from sgp_runner.data.teacher import TeacherData
from sgp_runner.models.quadratic import Quadratic
from sgp_runner.utils.errors import ConfigError


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
    assert refusal(make).key == key

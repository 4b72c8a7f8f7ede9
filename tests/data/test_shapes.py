"""Generated images of shapes."""

from __future__ import annotations

import pytest
import torch

from sgp_runner.data.shapes import Shapes, inside
from sgp_runner.utils.errors import ConfigError


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
    ("field", "value", "least"), [("image_size", 7, 8), ("train_size", 0, 1), ("noise", -0.1, 0)]
)
def test_impossible_shapes_are_refused(field: str, value: float, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{field}: {value} must be at least {least}\.$"):
        Shapes(**{field: value})

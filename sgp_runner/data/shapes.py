"""Generated images of shapes in clutter, hard enough to show differences between algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import (
    Dataset,
    TensorSplit,
    held_out,
)
from sgp_runner.data.label_settings import HeldOut
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.errors import check_least
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

    Field = Callable[[Tensor, Tensor], Tensor]  # how far points lie inside a shape

_SEED = 3210  # the images are the same whatever the run's seed
_CHUNK = 100  # images rendered at once
# Triangle, square, pentagon, hexagon, disc, ring, half disc, plus, stars of four and five points.
CLASSES = 10
NOTCH = 0.45  # distance of a star's notches from its centre; its points are at 1


@dataclass(frozen=True)
class Shapes(HeldOut):
    """Colour images [3, size, size]; each shows a shape of one of ten equally frequent classes.

    Channels are normalised. The position, angle, size and colour of a shape are random. Two smaller
    shapes of any class lie behind it, lines lie behind and over it, and all pixels are noisy.
    Validation images are drawn independently from the distribution of the training images.

    With 16,000 training images ResNet-20 reached an accuracy of 93.2 % at 16 x 16 pixels, 99.0 % at
    32 x 32 pixels, and 92.0 % at 32 x 32 pixels with a noise of 0.4, when only the first 16
    channels of each stage learned (before version 0.3; one seed each:
    ``algo=ar_sgd nodes=1 model=resnet20 data=shapes data.train_size=16000 optim.lr=0.1
    optim.weight_decay=5e-4`` and a cosine schedule with a warm-up of one epoch; ``batch_size=128
    epochs=10``, or 64 and 8 for 32 x 32).

    image_size: height and width in pixels, 3 channels
    train_size: training images
    valid_size: validation images
    noise: standard deviation of the noise of a pixel, with brightness between 0 and 1; 0.4 at 32
        pixels is as hard as 0.15 at 16 pixels
    """

    image_size: int = 16
    train_size: int = 8000
    valid_size: int = 2000
    noise: float = 0.15

    name: ClassVar[str] = "shapes"
    stand_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(8, "data", self, "image_size")
        check_least(1, "data", self, "train_size", "valid_size")
        check_least(0, "data", self, "noise")

    def load(self, dtype: torch.dtype) -> Dataset:
        import torch

        total = self.train_size + self.valid_size
        labels = torch.arange(total) % CLASSES
        rendered = [
            self.render(part, generator(_SEED, i))
            for i, part in enumerate(torch.split(labels, _CHUNK))
        ]
        images = torch.cat(rendered)
        train = slice(0, self.train_size)
        mean, std = (f(images[train], (0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        images = ((images - mean) / std).to(dtype)
        valid = slice(self.train_size, total)
        dataset = Dataset(
            name=self.name,
            task=Classification(self.label_smoothing),
            train=TensorSplit((images[train],), labels[train], labels[train]),
            valid=TensorSplit((images[valid],), labels[valid], labels[valid]),
            input_shape=(3, self.image_size, self.image_size),
            num_classes=CLASSES,
            partition=partition_of(self.partition, self.alpha),
        )
        return held_out(dataset, self.holdout)

    def render(self, labels: Tensor, rng: Generator) -> Tensor:
        """Render images [N, 3, size, size] of the classes ``labels`` (int64 [N]).

        Brightness is about 0 to 1. The unit of length is half the width of an image.
        """
        import torch

        count, size = len(labels), self.image_size

        def between(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(count, *shape, generator=rng)

        axis = (torch.arange(size) + 0.5) / size * 2 - 1
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        soft = size / 2  # an edge is one pixel wide

        def paint(image: Tensor, coverage: Tensor, dark: float = 0.0) -> Tensor:
            colour = between(dark, 1, 3, 1, 1)
            return image.lerp(colour.expand_as(image), coverage.unsqueeze(1).expand_as(image))

        def line(image: Tensor) -> Tensor:
            angle, offset = between(0, 2 * pi, 1, 1), between(-1, 1, 1, 1)
            width = between(0.01, 0.05, 1, 1)
            distance = (x * angle.cos() + y * angle.sin() - offset).abs()
            return paint(image, ((width - distance) * soft + 0.5).clamp(0, 1))

        def shape(image: Tensor, kinds: Tensor, radius: Tensor, margin: float) -> Tensor:
            center_x, center_y = between(-margin, margin, 1, 1), between(-margin, margin, 1, 1)
            angle = between(0, 2 * pi, 1, 1)
            dx, dy = (x - center_x) / radius, (y - center_y) / radius
            turned_x = dx * angle.cos() + dy * angle.sin()
            turned_y = dy * angle.cos() - dx * angle.sin()
            depth = inside(kinds, turned_x, turned_y) * radius
            return paint(image, (depth * soft + 0.5).clamp(0, 1), dark=0.5)

        tilt = between(-0.2, 0.2, 3, 2, 1, 1)
        image = between(0, 0.5, 3, 1, 1) + tilt[:, :, 0] * x + tilt[:, :, 1] * y
        for _ in range(3):
            image = line(image)
        for _ in range(2):
            kinds = torch.randint(CLASSES, (count,), generator=rng)
            image = shape(image, kinds, between(0.1, 0.22, 1, 1), margin=0.9)
        image = shape(image, labels, between(0.6, 0.85, 1, 1), margin=0.15)
        for _ in range(2):
            image = line(image)
        return image + self.noise * torch.randn(image.shape, generator=rng)


def inside(kinds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the depth of points (x, y) [N, H, W] in shapes of unit size and ``kinds`` (int64 [N]).

    Depth is negative outside a shape. In polygons and stars it is measured along a ray from the
    centre.
    """
    depth = x.new_empty(x.shape)
    for kind, field in enumerate(FIELDS):
        mine = kinds == kind
        depth[mine] = field(x[mine], y[mine])
    return depth


def polygon(corners: int) -> Field:
    """Return the depth function of a regular polygon with corners at distance 1 from the centre."""

    def field(x: Tensor, y: Tensor) -> Tensor:
        half = pi / corners
        return cos(half) / (atan2(y, x) % (2 * half) - half).cos() - x.hypot(y)

    return field


def star(points: int) -> Field:
    """Return the depth function of a star with points at distance 1 from the centre."""

    def field(x: Tensor, y: Tensor) -> Tensor:
        half = pi / points
        from_point = ((atan2(y, x) + half) % (2 * half) - half).abs()
        notch_x, notch_y = NOTCH * cos(half), NOTCH * sin(half)
        edge = notch_y / (notch_y * from_point.cos() + (1 - notch_x) * from_point.sin())
        return edge - x.hypot(y)

    return field


def disc(x: Tensor, y: Tensor) -> Tensor:
    return 1 - x.hypot(y)


def ring(x: Tensor, y: Tensor) -> Tensor:
    return disc(x, y).minimum(x.hypot(y) - 0.55)


def half_disc(x: Tensor, y: Tensor) -> Tensor:
    return disc(x, y + 0.4).minimum(y + 0.4)


def plus(x: Tensor, y: Tensor) -> Tensor:
    return (0.35 - x.abs()).minimum(1 - y.abs()).maximum((0.35 - y.abs()).minimum(1 - x.abs()))


def atan2(y: Tensor, x: Tensor) -> Tensor:
    import torch

    return torch.atan2(y, x)


FIELDS: tuple[Field, ...] = (
    polygon(3),
    polygon(4),
    polygon(5),
    polygon(6),
    disc,
    ring,
    half_disc,
    plus,
    star(4),
    star(5),
)

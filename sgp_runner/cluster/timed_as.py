"""The training whose time is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, prod
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.cluster.hardware import Cluster
from sgp_runner.utils.errors import ConfigError, check_least, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class LanguageModel:
    """A decoder model for timing studies, with a size that is known without building it.

    step_seconds: time of a gradient if the cluster lists no time for this model
    """

    layers: int
    width: int
    step_seconds: float
    vocabulary: ClassVar[int] = 32_000

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of the matrices, by name, without norms (under 0.1 % of the parameters)."""
        width = self.width
        shapes = {"embedding": (self.vocabulary, width)}
        for i in range(self.layers):
            shapes |= {
                f"blocks.{i}.attention": (4 * width, width),
                f"blocks.{i}.widen": (4 * width, width),
                f"blocks.{i}.narrow": (width, 4 * width),
            }
        return shapes

    @property
    def num_parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))


# Layers and seconds are from Streaming DiLoCo (Douillard et al. 2025, Table 4). The widths give the
# number of parameters in a model's name within 2 %.
LANGUAGE_MODELS: Mapping[str, LanguageModel] = {
    "llama_1b": LanguageModel(24, 1792, 0.1),
    "llama_10b": LanguageModel(48, 4096, 0.8),
    "llama_100b": LanguageModel(108, 8704, 4.9),
}

RESNET50 = 25_557_032  # parameters


def resnet50_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of ResNet-50's tensors (He et al. 2016, for 1,000 classes), by name."""
    kernels = {"conv1": (64, 3, 7, 7)}
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        inner = 32 * 2**stage
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            kernels[f"{name}.conv1"] = (inner, width, 1, 1)
            kernels[f"{name}.conv2"] = (inner, inner, 3, 3)
            kernels[f"{name}.conv3"] = (4 * inner, inner, 1, 1)
            if block == 0:
                kernels[f"{name}.downsample"] = (4 * inner, width, 1, 1)
            width = 4 * inner
    shapes: dict[str, tuple[int, ...]] = {}
    for name, kernel in kernels.items():
        norms = {f"{name}.norm.{part}": kernel[:1] for part in ("weight", "bias")}
        shapes |= {f"{name}.weight": kernel, **norms}
    return shapes | {"fc.weight": (1000, width), "fc.bias": (1000,)}


# A model of unknown shapes becomes 60 matrices that consist of blocks of 64 x 64.
MATRICES, SIDE = 60, 64


@dataclass(frozen=True)
class TimedAs:
    """The training whose time is simulated; null: the run's own value.

    model: name in cluster.compute.step_seconds, name of a model, or one of llama_1b, llama_10b
        and llama_100b, whose sizes and times are built in
    num_parameters: number of parameters for the size of messages; required if model is not the
        model of the run and has no built-in size
    batch_size: samples per node and step
    bytes_per_parameter: bytes per parameter in a message without a codec, for example 2 for
        bfloat16; null: 4 if num_parameters is set, else the size of the run's dtype
    """

    model: str | None = None
    num_parameters: int | None = None
    batch_size: int | None = None
    bytes_per_parameter: float | None = None

    def __post_init__(self) -> None:
        check_least(1, "timed_as", self, "num_parameters", "batch_size")
        for key in ("num_parameters", "batch_size"):
            if (value := getattr(self, key) or 1) >= 2**63:
                raise ConfigError(f"timed_as.{key}", f"{value} must be less than 2**63.")
        if not 0 < (self.bytes_per_parameter or 1) < inf or self.bytes_per_parameter == 0:
            raise ConfigError(
                "timed_as.bytes_per_parameter",
                f"{self.bytes_per_parameter} must be positive, for example 2.",
            )
        if self.num_parameters is None and self.language_model is not None:
            object.__setattr__(self, "num_parameters", self.language_model.num_parameters)

    def check(self, cluster: Cluster, models: Iterable[str], trained: str) -> None:
        """Raise ConfigError for a model that is unknown or has no known number of parameters.

        models: names of models of this package and of plug-ins
        trained: name of the model of the run
        """
        if self.model is None:
            return
        names = {*LANGUAGE_MODELS, *cluster.compute.step_seconds, *models, trained} - {"default"}
        if self.model not in names:
            raise ConfigError(
                "timed_as.model",
                f"there is no model '{self.model}'.{nearest(self.model, sorted(names))} Your "
                "own model needs a time, for example "
                f"cluster.compute.step_seconds.{self.model}=1s.",
            )
        if self.num_parameters is None and self.model != trained:
            raise ConfigError(
                "timed_as.num_parameters",
                f"the number of parameters of {self.model} is not known: set it, for example "
                "timed_as.num_parameters=7e9.",
            )

    @property
    def language_model(self) -> LanguageModel | None:
        return LANGUAGE_MODELS.get(self.model or "")

    @property
    def known_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the model's tensors, by name, if they are built in; else None."""
        if (model := self.language_model) is not None:
            return {**model.shapes}
        is_resnet50 = self.num_parameters == RESNET50 and self.model in (None, "resnet50")
        return resnet50_shapes() if is_resnet50 else None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the model's tensors, by name; if unknown, matrices of similar sizes."""
        if (known := self.known_shapes) is not None:
            return known
        if self.num_parameters is None:
            return None
        blocks, rest = divmod(self.num_parameters, SIDE**2)
        shapes: dict[str, tuple[int, ...]] = {
            f"matrix{i}": (SIDE * (blocks // MATRICES + (i < blocks % MATRICES)), SIDE)
            for i in range(min(blocks, MATRICES))
        }
        return shapes | ({"rest": (rest,)} if rest else {})

    def step_seconds(self, cluster: Cluster, model: str, batch_size: int) -> float:
        """Return the mean time of a gradient.

        ``model`` and ``batch_size``, in samples per node, apply if these settings are null.
        """
        language_model = self.language_model
        return cluster.compute.mean_step(
            self.model or model,
            self.batch_size or batch_size,
            None if language_model is None else language_model.step_seconds,
        )

    def wire(
        self, params: Tensor, study: bool = False, lengths: Mapping[int, int] | None = None
    ) -> Wire:
        """Return the sizes of the messages of a model with the parameters ``params`` [D].

        study: whether ``params`` represent a larger model in a timing study
        lengths: as in `Wire`
        """
        item = params.element_size()
        number: float = item if self.num_parameters is None else 4
        if self.bytes_per_parameter is not None:
            number = self.bytes_per_parameter
        scale = 1.0 if self.num_parameters is None else self.num_parameters / params.numel()
        grain = params.numel() if study else None
        return Wire(params.dtype, number, scale, grain, lengths or {})


@dataclass(frozen=True)
class Wire:
    """The sizes of messages in simulated time.

    dtype: dtype of parameters that are sent without a codec
    number: size in bytes of a parameter without a codec; encoded messages have their real size
    scale: number of simulated parameters that each real parameter represents
    grain: number of real parameters in a timing study; if a message has one more element, such as
        a push-sum weight, this element is not scaled
    lengths: maps the length of a message that depends on the shapes of the tensors to its length
        with the shapes of the timed model; all other messages are scaled
    """

    dtype: torch.dtype
    number: float
    scale: float
    grain: int | None = None
    lengths: Mapping[int, int] = field(default_factory=dict)

    def num_bytes(self, tensor: Tensor) -> float:
        item = self.number if tensor.dtype == self.dtype else tensor.element_size()
        count = tensor.numel()
        if count in self.lengths:
            return self.lengths[count] * item
        beside = count - 1 == self.grain
        return (count - beside) * item * self.scale + beside * item

"""A model from a module in the memory of a Python program."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sgp_runner.data.dataset import Dataset
from sgp_runner.data.tasks import Regression
from sgp_runner.models.dropout import DrawsFromTorch
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.fingerprint import code_hash, is_own, tensor_hash

PLAIN = (bool, int, float, str, type(None))

#: Configuration -> builder, of the models that runs in progress may use.
BUILDERS: dict[InMemoryModel, Callable[[], nn.Module]] = {}


@dataclass(frozen=True)
class InMemoryModel:
    """A module from a Python program, or a function that creates one.

    type: class of the module
    source: SHA-256 of the module's code and structure
    sha256: SHA-256 of the module's parameters and buffers; a function is called with seed 0
    """

    type: str
    source: str
    sha256: str

    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.type

    def build(self, dataset: Dataset) -> nn.Module:
        """Build the module and test it on two samples."""
        module = BUILDERS[self]()
        try_out(self.type, module, dataset)
        return Seeded(module)


class Seeded(DrawsFromTorch):
    """A user's module, with dropout that draws from torch's global generator."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(*inputs)
        return outputs


@contextmanager
def hold(source: Any) -> Iterator[InMemoryModel]:
    """Register a module, or a function without arguments that creates one, for runs to build.

    Each run gets a copy of a module, so every node starts from the module's parameters. A function
    is called with the run's seed. Raises ConfigError for an object that cannot be trained.
    """
    model, builder = convert(source)
    BUILDERS[model] = builder
    try:
        yield model
    finally:
        BUILDERS.pop(model, None)


def convert(source: Any) -> tuple[InMemoryModel, Callable[[], nn.Module]]:
    """Return the configuration of a module or function, and a function that creates a module."""
    if isinstance(source, nn.Module):
        original = copied(checked(source))
        return described(original), lambda: copied(original)
    if not callable(source):
        raise ConfigError(
            "model",
            f"{type(source).__name__} is not a model: give a model's name, a torch.nn.Module, or a "
            "function without arguments that makes one.",
        )
    try:
        inspect.signature(source).bind()
    except TypeError as error:
        name = getattr(source, "__name__", type(source).__name__)
        raise ConfigError(
            "model",
            f"{name} needs arguments ({error}): give a module, model={name}(...), or a function "
            f"without arguments, model=lambda: {name}(...).",
        ) from None
    except ValueError:  # a class in C without a signature
        pass

    def build() -> nn.Module:
        return checked(source())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return described(build(), source), build


def checked(module: Any) -> nn.Module:
    """Return ``module`` if it can be trained; raise ConfigError otherwise."""
    if not isinstance(module, nn.Module):
        raise ConfigError(
            "model", f"the function made a {type(module).__name__}, not a torch.nn.Module."
        )
    name, parameters = type(module).__name__, dict(module.named_parameters())
    if lazy := [key for key, value in parameters.items() if is_lazy(value)]:
        raise ConfigError(
            "model", f"{lazy[0]} of {name} has no shape yet: call the module on a batch first."
        )
    if not parameters:
        raise ConfigError("model", f"{name} has no parameters to train.")
    if frozen := [key for key, value in parameters.items() if not value.requires_grad]:
        raise ConfigError(
            "model",
            f"{frozen[0]} of {name} is frozen, but all parameters are trained: register frozen "
            "ones as buffers.",
        )
    return module


def copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module).to("cpu")
    except Exception as error:
        raise ConfigError(
            "model",
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}): give a "
            "function that makes it.",
        ) from error


def described(module: nn.Module, function: object = None) -> InMemoryModel:
    """Return the configuration of ``module``, which ``function`` created."""
    plain = [
        [name, type(layer).__qualname__, *attributes(layer)]
        for name, layer in module.named_modules()
    ]
    types = {type(layer) for layer in module.modules() if is_own(type(layer).__module__)}
    classes = sorted(types, key=lambda cls: cls.__qualname__)
    return InMemoryModel(
        type(module).__name__,
        code_hash(function, plain, *classes),
        tensor_hash(chain(module.named_parameters(), module.named_buffers())),
    )


def attributes(module: nn.Module) -> Iterator[object]:
    """Yield the description of a module's settings, then its plain attributes."""
    yield module.extra_repr()
    for name, value in sorted(vars(module).items()):
        if isinstance(value, PLAIN) and name != "training":
            yield [name, value]


def try_out(name: str, module: nn.Module, dataset: Dataset) -> None:
    """Raise ConfigError unless the outputs of ``module`` fit the targets of ``dataset``."""
    inputs, targets = dataset.valid.batch(torch.arange(min(2, len(dataset.valid))))
    for dtype in {tensor.dtype for tensor in inputs if tensor.is_floating_point()}:
        module.to(dtype)
    training = module.training
    shapes = " and ".join(str(list(tensor.shape)) for tensor in inputs)
    try:
        with torch.no_grad():
            outputs = module.eval()(*inputs)
            loss = dataset.task.loss(outputs, targets)
    except Exception as error:
        raise ConfigError(
            "model",
            f"{name} cannot be trained on data={dataset.name}: inputs {shapes} of two samples "
            f"give {type(error).__name__}: {str(error).partition(chr(10))[0]}.",
        ) from error
    finally:
        module.train(training)
    check_outputs(name, outputs, targets, loss, dataset)


def check_outputs(
    name: str, outputs: object, targets: Tensor, loss: Tensor, dataset: Dataset
) -> None:
    if not isinstance(outputs, Tensor):
        raise ConfigError("model", f"{name} returns a {type(outputs).__name__}, not a tensor.")
    shape, count = list(outputs.shape), len(targets)
    expected = None
    if dataset.task.metric == "accuracy" and (len(shape) != 2 or shape[1] < dataset.num_classes):
        expected = f"[{count}, {dataset.num_classes}]"
    if isinstance(dataset.task, Regression) and outputs.shape != targets.shape:
        expected = str(list(targets.shape))
    if expected is not None:
        raise ConfigError(
            "model",
            f"{name} returns {shape} for {count} samples, "
            f"but data={dataset.name} needs {expected}.",
        )
    if loss.dim():
        raise ConfigError(
            "loss", f"a batch has a loss of shape {list(loss.shape)}; return the mean, a number."
        )

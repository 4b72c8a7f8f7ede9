"""Check, before a run, that the machine has the minimum memory that the run needs.

The estimate is a lower bound: the generated data set, and the parameters and momentum of each node.
It excludes messages, activations and libraries, so a run that fits is never rejected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from sgp_runner.config.run import Run
from sgp_runner.data.dataset import DataConfig
from sgp_runner.data.digits import Digits
from sgp_runner.data.grammar import Grammar
from sgp_runner.data.quadratic_problem import QuadraticData
from sgp_runner.data.shapes import CLASSES, Shapes
from sgp_runner.data.synthetic import Synthetic
from sgp_runner.data.teacher import TeacherData
from sgp_runner.models.config import ModelConfig
from sgp_runner.models.fairseq_transformer import FairseqTransformer
from sgp_runner.models.gpt import GPT
from sgp_runner.models.mlp import MLP
from sgp_runner.models.quadratic import Quadratic
from sgp_runner.models.resnet import ResNet
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.models.transformer import Transformer
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import num_bytes

ITEM = {"float32": 4, "float64": 8}  # bytes of a number
# Parameters without the last layer, rounded down.
RESNETS = {"resnet8": 70_000, "resnet18": 11_000_000, "resnet20": 260_000, "resnet50": 23_000_000}

PROCESS_BYTES = 400_000_000  # of PyTorch and other libraries


@dataclass(frozen=True)
class Need:
    """An amount of memory that grows with the values of the settings ``keys``."""

    what: str
    bytes: int
    keys: Mapping[str, int]


def check_memory(run: Run, processes: int, most: int) -> None:
    """Raise ConfigError if the run needs more than ``most`` bytes on this machine.

    processes: number of processes of a real run, each with the data and one node; 1 for the
        simulator, which holds all nodes
    """
    (generation, storage), model = data_needs(run), model_need(run)
    if generation.bytes > most:
        raise too_much(run, generation, 1, most)
    if processes * (storage.bytes + model.bytes) > most:
        raise too_much(run, max(storage, model, key=lambda need: need.bytes), processes, most)


def estimated_bytes(run: Run) -> int:
    """Return the memory that a run is expected to need on this machine.

    For each process this is twice the minimum memory, to include messages, gradients and
    activations, plus the memory of libraries.
    """
    processes = 1 if run.network.clock == "simulated" else run.ranks
    generation, storage = data_needs(run)
    least = max(generation.bytes, storage.bytes + model_need(run).bytes)
    return processes * (PROCESS_BYTES + 2 * least)


def too_much(run: Run, need: Need, processes: int, most: int) -> ConfigError:
    settings = ", ".join(f"{key}={short_number(value)}" for key, value in need.keys.items())
    place = f" in each of {processes} processes" if processes > 1 else ""
    return ConfigError(
        max(need.keys, key=lambda key: growth(run, key, need.keys[key])),
        f"{need.what} needs at least {num_bytes(min(need.bytes, 10**300))} of memory{place} "
        f"({settings}), but this machine has {num_bytes(most)}: use a smaller number.",
    )


def short_number(value: int) -> str:
    return str(value) if value < 10**18 else f"about 1e{len(str(value)) - 1}"


def growth(run: Run, key: str, value: int) -> int:
    """Return the ratio of a setting to its default."""
    part, _, name = key.rpartition(".")
    default = next(
        field.default
        for field in dataclasses.fields(getattr(run, part) if part else run)
        if field.name == name
    )
    return value // default if isinstance(default, int) and default else value


def data_needs(run: Run) -> tuple[Need, Need]:
    """Return the memory of a data set during its generation, and during the run.

    Both are 0 for a data set that is not generated.
    """
    names = (
        *("dimension", "width", "points", "samples", "groups"),
        *("image_size", "size", "train_size", "valid_size", "block"),
    )
    keys = {field.name for field in dataclasses.fields(run.data)}  # type: ignore[arg-type]
    sizes = {f"data.{name}": getattr(run.data, name) for name in names if name in keys}
    generation, storage = data_bytes(run.data, ITEM[run.dtype]) if run.model.trains else (0, 0)
    return Need("the data set", generation, sizes), Need("the data set", storage, sizes)


def data_bytes(data: DataConfig, item: int) -> tuple[int, int]:
    """Return the bytes of a data set during its generation, and during the run.

    item: size of a stored number in bytes
    """
    match data:
        case QuadraticData(dimension=dimension, samples=samples, groups=groups):
            # In float64: the sum of centers and shifts, the noise, and the shifts themselves.
            generation = 8 * (2 * samples * dimension + groups * dimension + samples)
            return generation, samples * (item * dimension + 8)
        case TeacherData(dimension=dimension, width=width, points=points, samples=samples):
            return 8 * dimension * (points + width), item * samples * (dimension + 1)
        case Shapes(image_size=size, train_size=train, valid_size=valid):
            numbers = (train + valid) * 3 * size * size
            return 4 * numbers * 2, item * numbers  # rendered in parts, and joined
        case Synthetic(image_size=size, size=train, valid_size=valid):
            return 0, item * 3 * size * size + 8 * (train + valid)
        case Grammar(block=block, train_size=train, valid_size=valid):
            return 0, 8 * (train + valid) + 16 * valid * block
        case _:
            return 0, 0


def model_need(run: Run) -> Need:
    """Return the memory of all models in one process, including the state of the optimizers."""
    count, keys = parameters(run.model, run.data)
    simulated = run.network.clock == "simulated"
    on_cpu = simulated or (run.network.name in ("gloo", "mpi") and run.gpus_per_node == 1)
    nodes = run.nodes if simulated else 1  # in one process
    # The module, and each node's own parameters, which take no memory in a timing study.
    node_copies = nodes * (1 + kept_by_optimizer(run)) if on_cpu and run.model.trains else 0
    copies = 1 + node_copies
    what = f"{run.model.name}, with {count:,} parameters or more,"
    return Need(what, count * copies * ITEM[run.dtype], {**keys, "nodes": run.nodes})


def kept_by_optimizer(run: Run) -> int:
    """Return the number of state vectors of a node's optimizer; 0 if a server has the optimizer."""
    if not run.model.trains or run.algo.servers:
        return 0
    return 2 if run.optim.name in ("adam", "adamw", "muon") else int(run.optim.momentum > 0)


def parameters(model: ModelConfig, data: DataConfig) -> tuple[int, dict[str, int]]:
    """Return a lower bound on the number of parameters, and the settings that increase it."""
    inputs, outputs, keys = widths(data)
    match model:
        case Quadratic():
            return outputs, keys
        case TimingOnly(grain=grain):
            return grain, {"model.grain": grain}
        case MLP(hidden=hidden):
            settings = {"model.hidden": max(hidden)} if hidden else {}
            pairs = pairwise([inputs, *hidden, outputs])
            return sum((a + 1) * b for a, b in pairs), {**settings, **keys}
        case Transformer(width=width, feed_forward=wide):
            layer = width * width + 2 * width * wide
            settings = {
                f"model.{key}": getattr(model, key)
                for key in ("width", "feed_forward", "encoder_layers", "decoder_layers")
            }
            attention = 3 * model.encoder_layers + 7 * model.decoder_layers
            layers_of_both = model.encoder_layers + model.decoder_layers
            return layers_of_both * layer + attention * width * width, settings
        case GPT(layers=layers, width=width):
            settings = {"model.layers": layers, "model.width": width}
            return 12 * layers * width * width, settings
        case ResNet(name=name):
            return RESNETS[name] + 64 * outputs, keys
        case FairseqTransformer(overrides=overrides):
            sizes = {
                key: value
                for key, value in overrides.items()
                if key.endswith(("embed_dim", "layers")) and type(value) is int
            }
            width = sizes.get("encoder_embed_dim", 0)
            settings = {"model.overrides": max(sizes.values(), default=0)}
            layers = max(sizes.get("encoder_layers", 1), 1)
            return 4 * width * width * layers, settings
        case _:
            return 0, {}


def widths(data: DataConfig) -> tuple[int, int, dict[str, int]]:
    """Return the minimum input and output widths of a model, and the settings that set them."""
    match data:
        case QuadraticData(dimension=dimension):
            return dimension, dimension, {"data.dimension": dimension}
        case TeacherData(dimension=dimension):
            return dimension, 1, {"data.dimension": dimension}
        case Synthetic(image_size=size, num_classes=classes):
            return 3 * size**2, classes, {"data.image_size": size, "data.num_classes": classes}
        case Shapes(image_size=size):
            return 3 * size**2, CLASSES, {"data.image_size": size}
        case Digits():
            return 8 * 8, 10, {}
        case _:
            return 0, 0, {}

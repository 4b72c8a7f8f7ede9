"""The groups of ``configs/``, their choices, and the class of each choice."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

# In a wheel the folder is inside the package, in a clone next to it.
CONFIGS = next(
    folder / "configs"
    for folder in Path(__file__).resolve().parents[1:3]
    if (folder / "configs").is_dir()
)
PRESET = "experiment"  # the group whose files set anything
# Parts of an algorithm that are algorithms themselves. The key of any other nested group ends with
# the name of the group.
ALGORITHM_PARTS = ("first", "then")
# Groups chosen inside another group, never at the root -> their key.
NESTED = {
    "base": "algo.base",
    "codec": "algo.codec",
    "topology": "algo.topology",
    "schedule": "optim.schedule",
    "compute_time": "cluster.compute_time",
}

#: Group -> former choice -> why it was removed.
REMOVED: Mapping[str, Mapping[str, str]] = {
    "algo": {
        **dict.fromkeys(
            ("gasloc", "heloco", "rescaled_asgd"), "its only source was a summary of the preprint"
        ),
        "sign_vote": "use algo=ef_sign, which has error feedback",
    },
    "cluster": {
        "dgx_v100_100g": "use infiniband_100g, which has the same links, with cluster.step_seconds"
    },
    "codec": {"random_k": "use top_k, which sends the largest numbers"},
    "faults": {"reorder": "use the equivalent faults=delay faults.delay_law=uniform"},
}

#: Group -> choice -> its frozen dataclass, which receives the choice if it has a field ``name``.
#: A group with a single class has no named choices: its files differ only in values. A file that
#: only changes values of another choice has no entry.
CLASSES: Mapping[str, Mapping[str, str] | str] = {
    "algo": {
        "a2cid2": "sgp_runner.algorithms.a2cid2:A2CiD2",
        "acco": "sgp_runner.algorithms.acco:ACCO",
        "accum_adam": "sgp_runner.algorithms.accum_adam:AccumAdam",
        "acp_sgd": "sgp_runner.algorithms.acp_sgd:ACPSGD",
        "ad_psgd": "sgp_runner.algorithms.ad_psgd:ADPSGD",
        "ar_sgd": "sgp_runner.algorithms.ar_sgd:ARSGD",
        "async_diloco": "sgp_runner.algorithms.async_diloco:AsyncDiLoCo",
        "choco_sgd": "sgp_runner.algorithms.choco_sgd:ChocoSGD",
        "d_psgd": "sgp_runner.algorithms.d_psgd:DPSGD",
        "d_squared": "sgp_runner.algorithms.d_squared:DSquared",
        "demo": "sgp_runner.algorithms.demo:DeMo",
        "des_loc": "sgp_runner.algorithms.des_loc:DESLOC",
        "diloco": "sgp_runner.algorithms.diloco:DiLoCo",
        "ef_sign": "sgp_runner.algorithms.ef_sign:EFSign",
        "gap_aware": "sgp_runner.algorithms.gap_aware:GapAware",
        "gossip_pga": "sgp_runner.algorithms.gossip_pga:GossipPGA",
        "gradient_tracking": "sgp_runner.algorithms.gradient_tracking:GradientTracking",
        "halos": "sgp_runner.algorithms.halos:HALoS",
        "hybrid": "sgp_runner.algorithms.hybrid:Hybrid",
        "local_sgd": "sgp_runner.algorithms.local_sgd:LocalSGD",
        "noloco": "sgp_runner.algorithms.noloco:NoLoCo",
        "onebit_adam": "sgp_runner.algorithms.onebit_adam:OneBitAdam",
        "osgp": "sgp_runner.algorithms.osgp:OSGP",
        "pipe_sgd": "sgp_runner.algorithms.pipe_sgd:PipeSGD",
        "powersgd": "sgp_runner.algorithms.powersgd:PowerSGD",
        "ps_sgd": "sgp_runner.algorithms.ps_sgd:PSSGD",
        "qg_dsgdm": "sgp_runner.algorithms.qg_dsgdm:QGDSGDm",
        "relay_sgd": "sgp_runner.algorithms.relay_sgd:RelaySGD",
        "rennala": "sgp_runner.algorithms.rennala:Rennala",
        "ringleader": "sgp_runner.algorithms.ringleader:Ringleader",
        "ringmaster": "sgp_runner.algorithms.ringmaster:Ringmaster",
        "sgp": "sgp_runner.algorithms.sgp:SGP",
        "slowmo": "sgp_runner.algorithms.slowmo:SlowMo",
        "sparseloco": "sgp_runner.algorithms.sparseloco:SparseLoCo",
        "streaming_diloco": "sgp_runner.algorithms.streaming_diloco:StreamingDiLoCo",
        "swarm_sgd": "sgp_runner.algorithms.swarm_sgd:SwarmSGD",
        "zero_one_adam": "sgp_runner.algorithms.zero_one_adam:ZeroOneAdam",
    },
    "cluster": "sgp_runner.cluster.hardware:Cluster",
    "codec": {
        "bf16": "sgp_runner.core.codecs.casts:BF16",
        "fp4": "sgp_runner.core.codecs.quantised:FP4",
        "int8": "sgp_runner.core.codecs.quantised:Int8",
        "low_rank": "sgp_runner.core.codecs.low_rank:LowRank",
        "none": "sgp_runner.core.codecs.casts:Identity",
        "sign": "sgp_runner.core.codecs.quantised:Sign",
        "top_k": "sgp_runner.core.codecs.top_k:TopK",
        "two_bit": "sgp_runner.core.codecs.quantised:TwoBit",
    },
    "compute_time": {
        "constant": "sgp_runner.cluster.compute_variation:ConstantTime",
        "gamma": "sgp_runner.cluster.compute_variation:GammaTime",
        "log_normal": "sgp_runner.cluster.compute_variation:LogNormalTime",
    },
    "data": {
        "cifar10": "sgp_runner.data.cifar:Cifar",
        "cifar100": "sgp_runner.data.cifar:Cifar",
        "digits": "sgp_runner.data.digits:Digits",
        "fashion_mnist": "sgp_runner.data.idx_images:IdxImages",
        "folder": "sgp_runner.data.folder:Folder",
        "grammar": "sgp_runner.data.grammar:Grammar",
        "gutenberg": "sgp_runner.data.gutenberg:Gutenberg",
        "help_en_de": "sgp_runner.data.help_en_de:HelpEnDe",
        "hf": "sgp_runner.data.hub_text:HubText",
        "imagenet": "sgp_runner.data.imagenet:ImageNet",
        "mnist": "sgp_runner.data.idx_images:IdxImages",
        "numbers_en_de": "sgp_runner.data.numbers_en_de:NumbersEnDe",
        "python_text": "sgp_runner.data.text:PythonText",
        "quadratic": "sgp_runner.data.quadratic_problem:QuadraticData",
        "shapes": "sgp_runner.data.shapes:Shapes",
        "synthetic": "sgp_runner.data.synthetic:Synthetic",
        "teacher": "sgp_runner.data.teacher:TeacherData",
        "text": "sgp_runner.data.text:Text",
        "wmt16_en_de": "sgp_runner.data.wmt16_en_de:WMT16EnDe",
    },
    "faults": "sgp_runner.cluster.faults:Faults",
    "logger": {
        "csv": "sgp_runner.recording.loggers.csv:Csv",
        "jsonl": "sgp_runner.recording.loggers.jsonl:Jsonl",
        "mlflow": "sgp_runner.recording.loggers.mlflow:Mlflow",
        "none": "sgp_runner.recording.loggers.jsonl:Jsonl",
        "tensorboard": "sgp_runner.recording.loggers.tensorboard:TensorBoard",
        "wandb": "sgp_runner.recording.loggers.wandb:Wandb",
    },
    "model": {
        "conv": "sgp_runner.models.conv:Conv",
        "fairseq_transformer": "sgp_runner.models.fairseq_transformer:FairseqTransformer",
        "gpt": "sgp_runner.models.gpt:GPT",
        "hf": "sgp_runner.models.hub_model:HubModel",
        "mlp": "sgp_runner.models.mlp:MLP",
        "quadratic": "sgp_runner.models.quadratic:Quadratic",
        "resnet18": "sgp_runner.models.resnet:ResNet",
        "resnet20": "sgp_runner.models.resnet:ResNet",
        "resnet50": "sgp_runner.models.resnet:ResNet",
        "resnet8": "sgp_runner.models.resnet:ResNet",
        "timing_only": "sgp_runner.models.timing_only:TimingOnly",
        "torchvision": "sgp_runner.models.torchvision:Torchvision",
        "transformer": "sgp_runner.models.transformer:Transformer",
    },
    "network": {
        "gloo": "sgp_runner.assembly.networks.gloo:Gloo",
        "mpi": "sgp_runner.assembly.networks.mpi:Mpi",
        "nccl": "sgp_runner.assembly.networks.nccl:Nccl",
        "sim": "sgp_runner.assembly.networks.sim:Sim",
    },
    "optim": {
        "adam": "sgp_runner.core.optim.adam:Adam",
        "adamw": "sgp_runner.core.optim.adam:AdamW",
        "muon": "sgp_runner.core.optim.muon:Muon",
        "sgd": "sgp_runner.core.optim.sgd:SGD",
    },
    "schedule": {
        "constant": "sgp_runner.core.optim.schedules:Constant",
        "cosine": "sgp_runner.core.optim.schedules:Cosine",
        "inverse_sqrt": "sgp_runner.core.optim.schedules:InverseSqrt",
        "steps": "sgp_runner.core.optim.schedules:Steps",
        "warmup_cosine": "sgp_runner.core.optim.schedules:WarmupCosine",
    },
    "topology": {
        "base": "sgp_runner.topology.finite_time:Base",
        "bipartite": "sgp_runner.topology.graphs:BipartiteExponential",
        "complete": "sgp_runner.topology.graphs:Complete",
        "edges": "sgp_runner.topology.from_file:Edges",
        "equi_dyn": "sgp_runner.topology.equi_topo:EquiDyn",
        "exponential": "sgp_runner.topology.graphs:DirectedExponential",
        "exponential_both": "sgp_runner.topology.graphs:BidirectionalExponential",
        "hyper_hypercube": "sgp_runner.topology.finite_time:HyperHypercube",
        "random_matching": "sgp_runner.topology.graphs:RandomMatching",
        "ring": "sgp_runner.topology.graphs:Ring",
        "static_exponential": "sgp_runner.topology.graphs:StaticExponential",
        "torus": "sgp_runner.topology.graphs:Torus",
        "tree": "sgp_runner.topology.trees:Tree",
    },
}


class Extension(Protocol):
    """Source of additional choices: a plug-in, a file of values or a Python program."""

    @property
    def name(self) -> str: ...

    @property
    def hash(self) -> str | None:
        """Return the hash of the extension's code; None if it has no code."""

    def class_of(self, group: str, choice: str) -> type[Any] | None:
        """Return the class of a choice; None if the choice only sets values."""


#: (group, choice) -> where the choice comes from, if not from this package.
EXTENSIONS: dict[tuple[str, str], Extension] = {}


def extend(extension: Extension, choices: Iterable[tuple[str, str]]) -> None:
    """Add ``choices`` (group, name) to the choices of this package.

    An algorithm also becomes a choice for the base of SlowMo.
    """
    for group, name in choices:
        EXTENSIONS[group, name] = extension
        if group == "algo":
            EXTENSIONS["base", name] = extension
    groups.cache_clear()
    class_of.cache_clear()


def retract() -> None:
    """Remove the choices of all extensions."""
    EXTENSIONS.clear()
    groups.cache_clear()
    class_of.cache_clear()


@functools.cache
def own_groups() -> Mapping[str, tuple[str, ...]]:
    """Return group -> its choices in this package; Hydra's groups and studies are omitted."""
    return {
        folder.name: tuple(sorted(path.stem for path in folder.glob("*.yaml")))
        for folder in sorted(
            path
            for path in CONFIGS.iterdir()
            if path.is_dir() and not path.name.startswith((".", "_", "hydra", "study"))
        )
    }


@functools.cache
def groups() -> Mapping[str, tuple[str, ...]]:
    """Return group -> its choices, including extensions; the choices are sorted."""
    return {
        group: tuple(sorted({*builtin, *(name for of, name in EXTENSIONS if of == group)}))
        for group, builtin in own_groups().items()
    }


def has_names(group: str) -> bool:
    """Return whether a group has several classes, one of which ``name`` selects (``name: sgp``)."""
    return group == "base" or not isinstance(CLASSES[group], str)


@functools.cache
def class_of(group: str, choice: str) -> type[Any] | None:
    """Return the class of ``choice``; None if there is no such choice.

    A base of SlowMo has the class of the algorithm with the same name.
    """
    classes = CLASSES["algo" if group == "base" else group]
    if isinstance(classes, str):
        return imported(classes)
    if (extension := EXTENSIONS.get((group, choice))) is not None:
        return extension.class_of("algo" if group == "base" else group, choice)
    return imported(classes[choice]) if choice in classes and choice in groups()[group] else None


def without_path(group: str, name: str) -> str:
    """Return the choice ``hf`` of ``hf:gpt2``; return any other name unchanged."""
    choice, colon, _ = name.partition(":")
    if not colon or not has_names(group) or choice not in groups()[group]:
        return name
    cls = class_of(group, choice)
    fields = () if cls is None else dataclasses.fields(cls)
    return choice if any(field.name == "path" for field in fields) else name


def imported(name: str) -> type[Any]:
    """Return the class whose path is ``name``, in the form ``module:Class``."""
    return cast(type[Any], pkgutil.resolve_name(name))


def choice_of(group: str, cls: type[Any]) -> str | None:
    """Return the choice in ``group`` that has the class ``cls``; None if there is none."""
    classes = CLASSES["algo" if group == "base" else group]
    if isinstance(classes, str):
        return None
    full = f"{cls.__module__}:{cls.__qualname__}"
    matches = [choice for choice, name in classes.items() if name == full]
    matches += [
        choice for of, choice in EXTENSIONS if of == group and class_of(group, choice) is cls
    ]
    return matches[0] if matches else None


def group_of(key: str) -> str | None:
    """Return the group that ``key`` chooses from; None if ``key`` is not a choice.

    It is ``topology`` for ``algo.topology``, and ``algo`` for ``algo`` and ``algo.first``.
    """
    parent, _, word = key.rpartition(".")
    if not parent:
        return word if word in groups() and word not in NESTED else None
    if word in ALGORITHM_PARTS:
        return "algo"
    return word if word in NESTED else None

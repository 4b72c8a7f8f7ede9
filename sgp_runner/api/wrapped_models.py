"""Checks of a training loop's model and optimizer for `Averager`, and DDP without averaging.

DistributedDataParallel (DDP) averages gradients in buckets through a communication hook. A hook
that returns its bucket unchanged leaves each rank with exactly the gradient of its own batch.

DDP compares a hook's annotations with classes, so this file does not postpone annotations.
"""

import inspect
from collections.abc import Iterator
from hashlib import sha256
from itertools import zip_longest
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.networks import check_divisible, components, needs_tensors
from sgp_runner.core.optim.wrapped import ParameterVector
from sgp_runner.distributed.world import World, check_agreement
from sgp_runner.utils.errors import ConfigError, Diverged
from sgp_runner.utils.messages import logger

NO_WHOLE_MODEL = (
    "shards parameters, so no rank has a whole model to average: "
    "use fully_shard (FSDP2) over the devices of a replica, and mesh=; or DistributedDataParallel."
)
FSDP = "FSDPModule"  # the base of what `fully_shard` makes of a module
PER_DEVICE = "use DistributedDataParallel over the devices of a replica."
#: Class -> why a model with a module of this class cannot be averaged, and what to use.
REFUSED = {
    "FullyShardedDataParallel": NO_WHOLE_MODEL,
    FSDP: NO_WHOLE_MODEL,
    "SyncBatchNorm": (
        "exchanges statistics of the batch among all ranks in each forward pass: "
        "use BatchNorm, whose statistics stay on a rank, or GroupNorm."
    ),
}
#: Class of an optimizer around another one -> what it does to the parameters of several ranks.
OF_OTHERS = {
    "PostLocalSGDOptimizer": "averages the parameters of all ranks itself",
    "ZeroRedundancyOptimizer": "broadcasts the parameters that each rank has updated to all ranks",
}
SILENT: WeakSet[DistributedDataParallel] = WeakSet()  # have our hook, which cannot be removed
TRAINED: WeakSet[nn.Module] = WeakSet()  # parts of models whose averager has not finished


def keep_bucket(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """DDP communication hook that returns the gradients of a bucket unchanged."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def devices_of(mesh: DeviceMesh | None) -> int:
    """Return the number of devices per replica, the mesh's second dimension; 1 without a mesh.

    Raises ConfigError for any other mesh.
    """
    if mesh is None:
        return 1
    ranks = mesh.mesh
    if ranks.dim() != 2 or ranks.flatten().tolist() != list(range(dist.get_world_size())):
        raise ConfigError(
            "mesh",
            f"{ranks.tolist()} must have the replicas as rows, and all ranks in their order: "
            "init_device_mesh(kind, (replicas, devices)).",
        )
    return ranks.size(1)


def inner_model(model: object, mesh: DeviceMesh | None = None) -> nn.Module:
    """Return the module to average, unwrapped from DDP, which then averages nothing itself.

    mesh: replicas x devices; DDP then averages over the devices of one replica

    Raises ConfigError for a module that is already averaged or sharded by another tool or averager.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"{type(model).__name__} is not a torch.nn.Module.")
    for name, module in model.named_modules():
        for cls in type(module).__mro__:
            reason = REFUSED.get(cls.__name__)
            if reason is not None and (cls.__name__ != FSDP or mesh is None):
                where = f"the module {name} is" if name else "the model is"
                raise ConfigError("model", f"{where} of the class {cls.__name__}, which {reason}")
    if mesh is not None and is_sharded(model):
        from sgp_runner.api.sharded_model import check_sharding

        check_sharding(model, mesh)
        return untrained(model)
    wrappers = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
    if mesh is not None:
        ranks = mesh.mesh[dist.get_rank() // mesh.size(1)].tolist()
        groups = [dist.get_process_group_ranks(ddp.process_group) for ddp in wrappers]
        if groups != [ranks]:
            raise ConfigError(
                "model",
                f"gradients must be averaged over the ranks {ranks} of a replica: "
                "wrap the module in DistributedDataParallel(module, "
                "process_group=mesh.get_group(1)).",
            )
    inner = untrained(model.module if isinstance(model, DistributedDataParallel) else model)
    for module in wrappers if mesh is None else ():
        if module not in SILENT:
            silence(module)
    return inner


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 shards the parameters of a model."""
    return any(cls.__name__ == FSDP for cls in type(model).__mro__)


def vector_of(model: nn.Module) -> tuple[ParameterVector, bool]:
    """Return the vector of the trained parameters, and whether they are sharded."""
    if not is_sharded(model):
        return ParameterVector(model), False
    from sgp_runner.api.sharded_model import ShardVector  # DTensor takes seconds to import

    return ShardVector(model), True


def check_per_element(algo: Algorithm) -> None:
    """Raise ConfigError unless the algorithm is elementwise."""
    check_divisible(components(algo), "algo", PER_DEVICE)
    if needs_tensors(algo):
        raise ConfigError("algo", f"{algo.title} codes whole tensors: {PER_DEVICE}")


def with_parameters(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that own trained parameters directly."""
    for module in model.modules():
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            yield module


def untrained(module: nn.Module) -> nn.Module:
    """Return ``module``. Raises ConfigError if another averager trains it or a part of it."""
    if any(part in TRAINED for part in with_parameters(module)):
        raise ConfigError(
            "model", "another Averager trains the model or a part of it: call its finish() first."
        )
    return module


def silence(model: DistributedDataParallel) -> None:
    """Make DDP leave each rank's gradients and buffers unchanged."""
    try:
        model.register_comm_hook(None, keep_bucket)
    except RuntimeError as error:
        raise ConfigError(
            "model",
            "a communication hook of DistributedDataParallel averages its gradients already "
            f"({str(error).splitlines()[0].rstrip('.')}): wrap the module without this hook.",
        ) from None
    model.broadcast_buffers = False
    SILENT.add(model)
    if dist.get_rank() == 0:
        logger.warning(
            "DistributedDataParallel no longer averages gradients or broadcasts buffers of this "
            "model: Averager has set a communication hook that leaves them as they are."
        )


def check_parameters(vector: ParameterVector) -> torch.device:
    """Return the device of the parameters. Raises ConfigError if devices or dtypes differ."""
    if not vector.parameters:
        raise ConfigError("model", "no parameter requires a gradient.")
    for what, kinds in (
        ("devices", {str(p.device) for p in vector.parameters}),
        ("types", {str(p.dtype) for p in vector.parameters}),
    ):
        if len(kinds) > 1:
            listed = ", ".join(sorted(kinds))
            raise ConfigError("model", f"the parameters span several {what} ({listed}): use one.")
    return vector.parameters[0].device


def check_same_model(world: World, vector: ParameterVector, model: nn.Module) -> None:
    """Raise RankFailed on all ranks, with the first tensor that differs, if the models differ.

    Values may differ, because all ranks start from the values of rank 0.
    """
    tensors = [*zip(vector.shapes, vector.parameters, strict=True), *model.named_buffers()]
    listed = [f"{name} {[*tensor.shape]} {tensor.dtype}" for name, tensor in tensors]
    if len({*world.gather(sha256(repr(listed).encode()).hexdigest())}) > 1:
        rows = zip_longest(*world.gather(listed), fillvalue="missing or frozen")
        different = next(row for row in rows if len({*row}) > 1)
        what = "first different tensor of the model"
        check_agreement(world, what, different[world.process_rank])


def check_optimizer(optimizer: object, vector: ParameterVector) -> None:
    """Raise ConfigError for an optimizer that cannot take the local steps."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            "optimizer", f"{type(optimizer).__name__} is not a torch.optim.Optimizer: pass one."
        )
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam) or requires_closure(optimizer):
        raise ConfigError(
            "optimizer",
            f"{kind} does not step with one dense gradient: "
            "use another, for example torch.optim.AdamW.",
        )
    if kind in OF_OTHERS:
        raise ConfigError(
            "optimizer",
            f"{kind} {OF_OTHERS[kind]}: use the optimizer inside it, for example "
            "torch.optim.AdamW.",
        )
    ids = set(map(id, vector.parameters))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if strangers := [tuple(p.shape) for p in held if p.requires_grad and id(p) not in ids]:
        raise ConfigError(
            "optimizer",
            f"a parameter of shape {strangers[0]} is not one of the model's: "
            "create it with model.parameters().",
        )


def requires_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``step`` needs a closure to evaluate the loss, like `torch.optim.LBFGS`."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError unless SGD uses one momentum for all parameters, as QG-DSGDm needs."""
    names = "momentum", "nesterov", "dampening"
    kinds = {tuple(group[name] for name in names) for group in optimizer.param_groups}
    if len(kinds) > 1 or any(kind[2] for kind in kinds):
        raise ConfigError(
            "optimizer",
            "QG-DSGDm replaces the momentum of all parameters: "
            "use one momentum, and dampening=0, in all groups.",
        )


class FiniteGradients:
    """A check for gradients that are not finite, before they reach other ranks.

    On a GPU, a step is checked during the next step, to avoid waiting for the device.
    """

    def __init__(self, rank: int, names: list[str]) -> None:
        self.rank, self.names = rank, names
        self.last: tuple[int, Tensor] | None = None  # the number of a step, and sums of its parts

    def check(self, parts: list[Tensor], step: int) -> None:
        """Raise Diverged with rank, step and parameter; ``parts``: gradients by parameter."""
        if parts[0].is_cuda:
            self.check_last()
        self.last = step, torch.stack([part.sum() for part in parts])
        if not parts[0].is_cuda:
            self.check_last()

    def check_last(self) -> None:
        last, self.last = self.last, None
        if last is not None and not bool(last[1].isfinite().all()):
            name = self.names[int(last[1].isfinite().int().argmin())]
            raise Diverged(
                self.rank,
                last[0],
                f"the gradient of {name} is not finite: lower the learning rate, clip the "
                "gradient, or use a GradScaler with float16.",
            )

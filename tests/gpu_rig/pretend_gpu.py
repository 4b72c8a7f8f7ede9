"""A pretend GPU: tensors with real values that claim to be on a device of their own.

`pretend_gpu` refuses operations on tensors of two devices, as CUDA does, and notes every wait of
the host for the device (a sync) and every kernel, with the file and line of the package.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretend")
torch.get_device_module("pretend").get_amp_supported_dtype = lambda: [torch.bfloat16, torch.half]
DEVICE = torch.device("pretend:0")
CPU = torch.device("cpu")
PACKAGE = "/sgp_runner/"
MAKE = torch.tensor

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
FILLS = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
# Operations whose result, or its size, the host reads.
SYNCS = {
    aten._local_scalar_dense.default: "scalar read",
    aten.bincount.default: "bincount",
    aten.equal.default: "equal",
    aten.linalg_cholesky_ex.default: "check of a factorisation",
    aten.linalg_inv_ex.default: "check of a factorisation",
    aten.masked_select.default: "boolean mask",
    aten.nonzero.default: "boolean mask",
    aten._linalg_eigh.default: "check of a factorisation",
    aten._linalg_solve_ex.default: "check of a factorisation",
    aten._linalg_svd.default: "check of a factorisation",
    aten._unique2.default: "unique",
}
# Operations that add up in an order that differs from run to run.
UNORDERED = {
    aten.index_add_.default,
    aten.index_add.default,
    aten.scatter_add_.default,
    aten.scatter_add.default,
}
# Operations whose backward pass CUDA refuses under `torch.use_deterministic_algorithms`.
UNDETERMINED = {
    aten._adaptive_avg_pool2d.default: "adaptive_avg_pool2d_backward_cuda",
    aten.adaptive_max_pool2d.default: "adaptive_max_pool2d_backward_cuda",
    aten.upsample_bilinear2d.default: "upsample_bilinear2d_backward_out_cuda",
}


class DeviceMismatch(RuntimeError):
    """An operation on tensors of two devices."""


@dataclass
class Log:
    """Events on the pretend GPU, by (what, file:line).

    syncs: waits of the host. unordered: sums of floats without a fixed order. launches: kernels,
    by file:line. moved: bytes that these read and write.
    """

    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)
    unordered: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)

    @property
    def sites(self) -> set[tuple[str, str]]:
        """Where the host waits: (what, file and function), without lines."""
        return {(what, re.sub(r":\d+", "", where)) for what, where in self.syncs}

    def clear(self) -> None:
        for counter in (self.syncs, self.unordered, self.launches, self.moved):
            counter.clear()


class PretendTensor(Tensor):
    """A tensor on the pretend GPU, with its values in ``inner``, a tensor on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
        )
        tensor.inner = inner
        return tensor

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendTensor({self.inner})"

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: PretendTensor) -> None:
        self.inner = value.inner

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return made_on_host(data, **{"dtype": self.dtype, "device": self.device, **options})

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor.__getitem__(self, MAKE(index) if isinstance(index, list) else index)

    def __setitem__(self, index: Any, value: Any) -> None:
        Tensor.__setitem__(self, MAKE(index) if isinstance(index, list) else index, value)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return execute(func, args, kwargs or {}, Log())


class Pretence(TorchDispatchMode):
    """Runs operations of both devices, and notes what happens on the pretend one."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and looking takes time

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return execute(func, args, kwargs or {}, self.log)


@contextmanager
def pretend_gpu() -> Iterator[Log]:
    """Provide the pretend GPU; yield what happens on it."""
    log = Log()
    future = torch.__future__
    swaps = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)  # shared parameters stay shared
    try:
        with (
            mock.patch.object(Tensor, "pin_memory", pinned),
            mock.patch.object(torch, "tensor", made_on_host),
            Pretence(log),
        ):
            yield log
    finally:
        future.set_swap_module_params_on_conversion(swaps)


def made_on_host(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """Return `torch.tensor` of the arguments, copied from the host if it is to be elsewhere."""
    made = MAKE(data, **options)
    return made if device is None else made.to(device)


def pinned(t: Tensor) -> Tensor:
    """Return a copy from which a device copies without the host."""
    copy = t.clone()
    copy.is_pretend_pinned = True  # type: ignore[attr-defined]
    return copy


def values(t: Tensor) -> Tensor:
    """Return the values of a tensor of either device, without a sync."""
    return t.inner if isinstance(t, PretendTensor) else t


def place() -> str:
    """Return the file, line and function of the package that is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        _, found, path = frame.f_code.co_filename.rpartition(PACKAGE)
        if found:
            return f"{path}:{frame.f_lineno} {frame.f_code.co_qualname.split('.<')[0]}"
        frame = frame.f_back
    return "elsewhere"  # the test itself, or a thread of the backward pass


@dataclass(frozen=True)
class Kind:
    """The kind of an operation.

    copies: between devices. indexes: by tensors. sync: why the host waits, if it always does.
    unordered: the order of its additions differs from run to run. launches: a kernel, as it is no
    view. moves: it is no allocation either. writes: its result is an argument.
    """

    copies: bool
    indexes: bool
    sync: str | None
    unordered: bool
    launches: bool
    moves: bool
    writes: bool


@functools.cache
def kind_of(func: Any) -> Kind:
    infos = [result.alias_info for result in func._schema.returns if result.alias_info is not None]
    return Kind(
        func in COPIES,
        func in INDEXING,
        SYNCS.get(func),
        func in UNORDERED,
        all(info.is_write for info in infos),
        all(info.is_write for info in infos) and "empty" not in func._schema.name,
        any(info.is_write for info in infos),
    )


def execute(func: Any, args: Any, kwargs: Any, log: Log) -> Any:
    """Run an operation on the values; its result is on the device on which CUDA would have it."""
    tensors: list[Tensor] = []
    inner = [unwrapped(argument, tensors) for argument in args]
    options = {name: unwrapped(argument, tensors) for name, argument in kwargs.items()}
    host = [t for t in tensors if not isinstance(t, PretendTensor)]
    on_device = len(host) < len(tensors)
    to = kwargs.get("device")
    to_device = to is not None and torch.device(to).type == DEVICE.type
    if not on_device and not to_device:
        return func(*args, **kwargs)
    kind = kind_of(func)
    if on_device and host and not kind.copies:
        check_devices(func, args, host)
    if (
        func in UNDETERMINED
        and torch.is_grad_enabled()
        and torch.are_deterministic_algorithms_enabled()
    ):
        raise RuntimeError(f"{UNDETERMINED[func]} does not have a deterministic implementation")
    if (why := sync_of(func, args, kwargs, host)) is not None:
        log.syncs[why, place()] += 1
    if kind.unordered and args[0].is_floating_point():
        log.unordered[str(func), place()] += 1
    if kind.launches:
        log.launches[place()] += 1
        log.moved[place()] += bytes_read(func, tensors, kwargs) if kind.moves else 0
    if to is not None:
        on_device, options["device"] = to_device, CPU
    elif func is aten.copy_.default or kind.indexes:
        on_device = isinstance(args[0], PretendTensor)
    out = func(*inner, **options)
    if kind.moves:
        log.moved[place()] += sum(map(nbytes, tree_leaves(out)))
    if kind.writes:
        return kwargs.get("out", args[0])
    return wrapped(out) if on_device else out


def bytes_read(func: Any, tensors: list[Tensor], kwargs: Any) -> int:
    """Return the bytes that a kernel reads; it only writes ``out`` and what it fills."""
    written = [kwargs["out"]] if "out" in kwargs else tensors[: func in FILLS]
    return sum(nbytes(t) for t in tensors if all(t is not output for output in written))


def nbytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def unwrapped(value: Any, found: list[Tensor]) -> Any:
    """Return an argument with the values of its tensors, which are added to ``found``."""
    if isinstance(value, Tensor):
        found.append(value)
        return values(value)
    if isinstance(value, list | tuple):
        return type(value)(unwrapped(item, found) for item in value)
    return value


def wrapped(value: Any) -> Any:
    """Return a result with its tensors on the pretend GPU."""
    if isinstance(value, list | tuple):
        return type(value)(map(wrapped, value))
    return PretendTensor(value) if isinstance(value, Tensor) else value


def check_devices(func: Any, args: Any, host: list[Tensor]) -> None:
    """Raise DeviceMismatch for tensors of two devices; a host's scalar goes with any tensor."""
    if kind_of(func).indexes:  # indices may be on the host, those of a host's tensor must
        on_device = isinstance(args[0], PretendTensor)
        others = args[2:3] if len(args) > 2 else ()
        wrong = [t for t in others if t.dim() and isinstance(t, PretendTensor) != on_device]
        if not on_device:
            wrong += [t for t in args[1] if isinstance(t, PretendTensor)]
    else:
        wrong = [t for t in host if t.dim()]
    if wrong:
        shapes = [tuple(t.shape) for t in wrong]
        raise DeviceMismatch(f"{func} at {place()}: {DEVICE} and cpu, tensors of {shapes}")


def sync_of(func: Any, args: Any, kwargs: Any, host: list[Tensor]) -> str | None:
    """Return why the host waits for the device in an operation, if it does."""
    kind = kind_of(func)
    if kind.indexes:
        indices = [t for t in args[1] if t is not None]
        if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
            return "boolean mask"
        if any(not isinstance(t, PretendTensor) for t in indices):
            return "index from the host"
    if kind.copies:
        source = args[1] if func is aten.copy_.default else args[0]
        waits = not kwargs.get("non_blocking", len(args) > 2 and args[2])
        if not isinstance(source, PretendTensor):
            pinned = getattr(source, "is_pretend_pinned", False)
            return "copy from pageable memory" if waits or not pinned else None
        return "copy to the host" if waits and not stays(func, args, kwargs) else None
    if func is aten.where.self and host:
        return "copy from pageable memory"
    return kind.sync


def stays(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a copy of a tensor of the device stays there."""
    if func is aten.copy_.default:
        return isinstance(args[0], PretendTensor)
    device = kwargs.get("device")
    return device is None or torch.device(device).type == DEVICE.type

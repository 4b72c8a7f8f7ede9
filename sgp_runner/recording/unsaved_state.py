"""A warning about algorithm state that checkpoints omit.

A resumed run calls `Algorithm.run` again at the start of a step, with the saved contents of
`Worker.state`. A local variable of the algorithm's coroutines counts as lost under two conditions:
the bytecode reads it before assigning it, and it holds a tensor or a pending collective that is
neither in the worker nor in its saved state. A tensor that is unchanged since the first step, such
as a table of weights, does not count, because `run` makes it again. A copy of the initial
parameters counts, however.
"""

from __future__ import annotations

import dis
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import CellType, CodeType, FrameType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from sgp_runner.core.scheduler import Future, Scheduler
from sgp_runner.core.worker import Worker
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import quoted

DEPTH = 5  # levels of nested containers and objects; enough for an optimizer of PyTorch
ALIKE = ("shape", "dtype", "device", "layout")  # equal for tensors that can be compared
RESUMABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR


class UnsavedState:
    """Check that warns once per run if a checkpoint loses state of the algorithm.

    title: title of the algorithm
    unsaved: list to which the names of the variables are added
    first: returns whether no other rank has warned
    """

    def __init__(
        self,
        title: str,
        scheduler: Scheduler,
        unsaved: list[str],
        first: Callable[[], bool] = lambda: True,
    ) -> None:
        self.title, self.scheduler, self.first = title, scheduler, first
        self.unsaved = unsaved
        self.warned = False
        # Tensors from before the first step and their versions, by rank and identity.
        self.before: dict[int, dict[int, tuple[ref[Tensor], int]]] = {}

    def begin(self, worker: Worker) -> None:
        """Store the tensors that exist before the first step of a worker."""
        if worker.rank in self.before or not worker.has_gradients:
            return
        self.before[worker.rank] = {
            id(item): (ref(item), item._version)
            for _, item in self.lost(worker)
            if isinstance(item, Tensor) and not is_copy(item, worker)
        }

    def check(self, worker: Worker) -> None:
        """Warn if a checkpoint of ``worker``, at the start of a step, loses state."""
        if self.warned or not worker.has_gradients:
            return
        names = [name for name, item in self.lost(worker) if not self.is_old(item, worker.rank)]
        if not names:
            return
        self.warned = True
        self.unsaved.extend(dict.fromkeys(names))
        if self.first():
            logger.warning(
                f"{self.title}: a resumed run does not have the tensors in {quoted(names)}: keep "
                "them with worker.state, or make them in the step that uses them."
            )

    def is_old(self, item: Any, rank: int) -> bool:
        """Return whether a tensor is unchanged since before the first step."""
        noted, version = self.before.get(rank, {}).get(id(item), (lambda: None, 0))
        tensor = noted()
        return tensor is not None and tensor is item and tensor._version == version

    def lost(self, worker: Worker) -> Iterator[tuple[str, Any]]:
        """Yield (variable, tensor or collective) for all state that a checkpoint would lose."""
        containers = [worker.push_sum, worker.buffers, worker.model_buffers, {**worker.state}]
        identities = {identity(item) for item in held(containers, depth=sys.maxsize)}
        for frame in self.frames(worker):
            live = read_first(frame.f_code, frame.f_lasti)
            for name, value in variables(frame).items():
                if name in live:
                    yield from (
                        (name, item) for item in held(value) if identity(item) not in identities
                    )

    def frames(self, worker: Worker) -> Iterator[FrameType]:
        """Yield the frames that wait for the next step, then those of the worker's activities."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not Worker.steps.__code__:
            frame = frame.f_back
        while frame is not None and frame.f_code.co_flags & RESUMABLE:
            if frame.f_code is not Worker.steps.__code__:
                yield frame
            frame = frame.f_back
        for task in self.scheduler.tasks:
            inner: Any = task.coroutine
            while task.name.startswith(f"rank {worker.rank} (") and inspect.iscoroutine(inner):
                if inner.cr_frame is not None:
                    yield inner.cr_frame
                inner = inner.cr_await


def is_copy(tensor: Tensor, worker: Worker) -> bool:
    """Return whether ``tensor`` equals the parameters, with or without the push-sum weight."""
    return any(
        all(getattr(vector, attribute) == getattr(tensor, attribute) for attribute in ALIKE)
        and torch.equal(vector, tensor)
        for vector in (worker.params, worker.push_sum)
    )


def identity(item: Tensor | Future[Any]) -> int:
    """Return the same number for all views of a tensor."""
    if isinstance(item, Tensor) and item.layout is torch.strided:
        storage: int = item.untyped_storage()._cdata
        return storage
    return id(item)


def held(value: object, depth: int = DEPTH) -> Iterator[Tensor | Future[Any]]:
    """Yield the tensors and collectives in a value, including its items, attributes and closure."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Future):  # an activity starts again with its worker
        yield from [value] if value.what[:1] != ("finish",) else []
    elif depth:
        for item in inside(value):
            yield from held(item, depth - 1)


def inside(value: Any) -> Iterable[object]:
    """Return the contents of a closure, container or object."""
    if inspect.isfunction(value):
        return [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    if isinstance(value, type | ModuleType) or type(value).__module__.startswith("sgp_runner."):
        return ()
    return gc.get_referents(value)


def variables(frame: FrameType) -> dict[str, object]:
    """Return the variables of a frame.

    Python 3.12 and earlier store a copy of them in the frame, which is cleared here."""
    present = frame.f_locals
    copied = dict(present)
    if isinstance(present, dict):
        present.clear()
    return copied


@lru_cache
def read_first(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables that code after an instruction reads before it assigns them.

    Instructions are followed in program order; the loop around ``offset`` starts again.
    """
    steps = list(dis.get_instructions(code))
    jumps = [step for step in steps if step.offset > offset and "JUMP_BACKWARD" in step.opname]
    begin = min((step.argval for step in jumps), default=offset)
    later = [step for step in steps if step.offset > offset]
    first: dict[str, str] = {}
    for step in [*later, *(step for step in steps if begin <= step.offset <= offset)]:
        if re.search("FAST(?!_AND_CLEAR)|DEREF|CLOSURE", step.opname):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            for name, word in zip(names, re.findall("LOAD|STORE|DELETE", step.opname), strict=True):
                first.setdefault(name, word)
    return frozenset(name for name, word in first.items() if word == "LOAD")

"""Writing of checkpoints: a draft becomes a checkpoint once all its files are on disk.

A thread writes the files while training continues, so the tensors are copied first.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from sgp_runner.core.state import tensors_in, with_memory
from sgp_runner.recording.checkpoint import MANIFEST, VERSION, invalid_reason, saved_steps
from sgp_runner.utils.errors import LOSSES, CannotWrite
from sgp_runner.utils.files import HashingWriter, sync, synced
from sgp_runner.utils.memory import free_bytes
from sgp_runner.utils.waits import LOOK_SECONDS, raise_if_interrupted, waiting_for

PATIENCE_SECONDS = 1.0


class Draft:
    """A checkpoint that is being written.

    folder: the folder of all checkpoints of this run
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.path, self.final = folder / f".part-{steps}", folder / f"step-{steps}"
        self.files: dict[str, str] = {}  # name -> checksum

    def clear(self) -> None:
        """Create the folder of the draft and remove unfinished drafts."""
        remove_drafts(self.folder)
        with self.writing():
            self.folder.mkdir(exist_ok=True)  # in the folder of the run, which must be there
            self.path.mkdir()

    def add(self, name: str, state: Mapping[str, Any]) -> None:
        """Write ``state`` (tensors and plain data) to the file ``name``; replace an old file."""
        with self.writing():
            with synced(self.path / name) as file:
                hashing = HashingWriter(file)
                torch.save(dict(state), hashing)  # type: ignore[arg-type]
            self.files[name] = hashing.checksum

    def finish(self, run: str, keep: int, longer: bool = False) -> None:
        """Make the draft the latest checkpoint of ``run`` and keep the ``keep`` newest checkpoints.

        longer: whether the same run with more epochs would have the same state at this step
        """
        manifest = {
            "version": VERSION,
            "run": run,
            "steps": self.steps,
            "files": self.files,
            "longer": longer,
        }
        with self.writing():
            with synced(self.path / MANIFEST) as file:
                file.write(json.dumps(manifest, indent=1).encode())
            sync(self.path)
            # A valid checkpoint of the same step stays: a replacement is not atomic.
            if invalid_reason(self.final, run) is None:
                shutil.rmtree(self.path)
            else:
                shutil.rmtree(self.final, ignore_errors=True)
                self.path.rename(self.final)
            sync(self.folder)
        for old in saved_steps(self.folder)[keep:]:
            shutil.rmtree(self.folder / f"step-{old}", ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Convert disk errors in the context to CannotWrite."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch.save turns an OSError into a RuntimeError
            raise CannotWrite(f"the checkpoint {self.final}", error) from error


def remove_drafts(folder: Path) -> None:
    """Remove unfinished drafts from the folder of all checkpoints of a run."""
    for path in folder.glob(".part-*"):
        shutil.rmtree(path, ignore_errors=True)


class BackgroundWriter:
    """Writer of files on a thread, in order; at the end of its context it waits for them.

    After an error in the context, a task may wait ``PATIENCE_SECONDS`` for other ranks.

    folder: folder of all checkpoints, where drafts are removed; None: another rank removes them
    exclude: called with the seconds that `wait` has taken
    deadline: when a task stops waiting for other ranks
    """

    def __init__(
        self, folder: Path | None, exclude: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self.folder, self.exclude = folder, exclude
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.tasks: deque[Future[None]] = deque()  # not checked for errors yet
        self.broken = False
        self.deadline = inf
        self.copied: torch.cuda.Event | None = None  # the end of all copies from a GPU

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sudden = isinstance(error, KeyboardInterrupt)
        try:
            if error is None:
                self.wait()
        finally:
            self.deadline = time.monotonic() + PATIENCE_SECONDS
            self.thread.shutdown(cancel_futures=sudden)
            # Lost ranks may still write to the draft.
            if self.folder is not None and not sudden and not isinstance(error, LOSSES):
                remove_drafts(self.folder)

    def add(self, draft: Draft, name: str, state: Mapping[str, Any]) -> None:
        """Queue `Draft.add` with ``name`` and a copy of ``state`` as it is now."""
        self.submit(partial(draft.add, name, self.copy(state)))

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of ``state`` in host memory, once there is room for it.

        A GPU makes the copy between its earlier and later work; only the thread waits for it.
        """
        if 2 * num_bytes(state) > free_bytes():
            self.wait()
        copy = on_host(state)
        gpu = next((tensor.device for tensor in tensors_in(state) if tensor.is_cuda), None)
        if gpu is not None:
            self.copied = torch.cuda.current_stream(gpu).record_event()
        return copy

    def submit(self, task: Callable[[], None]) -> None:
        """Run ``task`` after all earlier tasks, unless one of them has failed."""
        self.check()
        self.tasks.append(self.thread.submit(self.run, task))

    def run(self, task: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            if self.copied is not None:
                self.copied.synchronize()
            task()
        except BaseException:
            self.broken = True
            raise

    def check(self) -> None:
        """Raise the error of a task that has ended, if any."""
        while self.tasks and self.tasks[0].done():
            self.tasks.popleft().result()

    def wait(self) -> None:
        """Wait until all tasks have ended. Raises their errors, and that of `interrupt`."""
        began = time.monotonic()
        with waiting_for("waits until a checkpoint is written"):
            while wait(self.tasks, LOOK_SECONDS).not_done:
                raise_if_interrupted()
        self.exclude(time.monotonic() - began)
        self.check()


def on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``state`` in host memory, which a GPU may still be writing."""

    def copy(raw: Tensor) -> Tensor:
        on_gpu = raw.device.type not in ("cpu", "meta")
        return raw.to("cpu", non_blocking=True) if on_gpu else raw.clone()  # pinned, if of a GPU

    return with_memory(dict(state), copy)


def num_bytes(state: Mapping[str, Any]) -> int:
    """Return the size of the storage of all tensors in ``state``."""
    storages = [tensor.untyped_storage() for tensor in tensors_in(state)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

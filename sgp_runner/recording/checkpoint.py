"""Checkpoints on disk: a folder ``step-N`` with files of tensors and, written last, a manifest.

A checkpoint is written to a temporary folder, flushed to the disk and then renamed, so a folder
``step-N`` is complete unless the disk has lost data. The manifest has the checksums.
Reading never runs code: ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from zipfile import BadZipFile, ZipFile

from sgp_runner.config.checkpoints import Checkpoints
from sgp_runner.config.experiment import Experiment, Origin
from sgp_runner.utils.errors import ConfigError, DataError, Stopped
from sgp_runner.utils.files import checksum, replace_file
from sgp_runner.utils.messages import logger
from sgp_runner.utils.reading import open_regular, read_json
from sgp_runner.utils.signals import cause, stop_signals
from sgp_runner.utils.units import counted, rank_list

VERSION = 7
MANIFEST = "manifest.json"


class Trigger:
    """Schedule of checkpoints."""

    def __init__(self, checkpoints: Checkpoints, steps: int) -> None:
        self.checkpoints = checkpoints
        self.signal: int | None = None
        self.saved(steps)

    def saved(self, steps: int) -> None:
        """Schedule the next checkpoint after a checkpoint at ``steps``."""
        every = self.checkpoints.every_steps
        self.next_step = (steps // every + 1) * every if every is not None else sys.maxsize
        self.deadline = time.monotonic() + 60 * (self.checkpoints.every_minutes or float("inf"))

    def due(self, steps: int) -> bool:
        return (
            steps >= self.next_step or self.signal is not None or time.monotonic() >= self.deadline
        )

    @property
    def late(self) -> bool:
        """Whether the last checkpoint is older than ``checkpoint.every_minutes``."""
        return time.monotonic() >= self.deadline

    def listening(self) -> AbstractContextManager[None]:
        """Let signals request a checkpoint; the run stops after this checkpoint."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.signal = number

        return stop_signals(ask)


def resume_message(checkpoint: Found, lost: Sequence[int] = ()) -> str:
    step = checkpoint.path.name.replace("-", " ")
    if (origin := checkpoint.origin) is not None:
        had = counted(len(checkpoint.original_ranks), "node")
        return f"This run continues from {step} of {origin.run}, which had {had}."
    message = f"This run resumes from {step}"
    if checkpoint.back:
        return f"{message}, with the state of rank 0 for {rank_list(checkpoint.back)}, lost before."
    return f"{message}, without {rank_list(lost)}, lost before." if lost else f"{message}."


def stopped(number: int, path: Path | str) -> Stopped:
    """Return the error for a run that was saved in ``path`` and stopped by signal ``number``."""
    sentence = f"{cause(number)}; saved in {path}. Run the same command again to resume."
    return Stopped(sentence, number, str(path))


def stopped_unsaved(number: int, experiment: Experiment) -> str:
    """Describe how signal ``number`` stopped a run without saving a checkpoint."""
    if number == signal.SIGINT:
        return f"interrupted before the end; its records are in {experiment.directory}"
    return f"stopped by {signal.Signals(number).name}. {resume_hint(experiment)}"


def resume_hint(experiment: Experiment) -> str:
    newest = next(valid_checkpoints(experiment), None)
    return (
        f"Run the same command again to resume from {newest}."
        if newest is not None
        else "There is no checkpoint yet to resume from."
    )


@dataclass(frozen=True)
class Found:
    """A checkpoint that a run resumes from.

    original_ranks: original ranks of the participants
    back: original ranks that were lost before the checkpoint and rejoin now
    origin: origin of the checkpoint, if its run had a different number of nodes
    """

    path: Path
    original_ranks: list[int]
    back: Sequence[int] = ()
    origin: Origin | None = None


class UnusableCheckpoint(ConfigError):
    """A checkpoint that does not fit the run.

    reason: the reason, as a sentence
    damaged: whether a file does not match the manifest; the run itself is valid
    """

    def __init__(self, path: Path, reason: str, damaged: bool = False) -> None:
        super().__init__(
            "resume",
            f"{path} is not used: {reason} Remove its folder, or start over with resume=never.",
        )
        self.path, self.reason, self.damaged = path, reason, damaged


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Convert errors while reading or resuming the checkpoint ``path`` to UnusableCheckpoint."""
    try:
        yield
    except (DataError, UnusableCheckpoint):
        raise
    except Exception as error:  # forged state can raise any
        what = str(error).partition("\n")[0]
        if not isinstance(error, ValueError):
            what = f"{type(error).__name__}: {what}"
        raise UnusableCheckpoint(path, f"it does not fit this run ({what}).") from error


class Candidates:
    """The valid checkpoints that an interrupted run may resume from, newest first.

    device: device to which the tensors of a checkpoint are loaded
    files: names of the files that this process verifies; None: all
    """

    def __init__(
        self, experiment: Experiment, device: str = "cpu", files: Sequence[str] | None = None
    ) -> None:
        self.device = device
        self.experiment = experiment
        self.paths = valid_checkpoints(experiment, files)
        self.refused: UnusableCheckpoint | None = None

    def next(self, name: str) -> tuple[Found, dict[str, Any]] | None:
        """Return the next usable checkpoint and the state in its file ``name``; None at the end.

        Raises UnusableCheckpoint, for the oldest checkpoint, if every checkpoint was rejected.
        """
        for path in self.paths:
            try:
                with using(path):
                    state = read(path / name, self.device)
                    origin = origin_at(path, self.experiment)
                    ranks = self.experiment.run.ranks if origin is None else origin.nodes
                    return Found(path, ranks_in(state, ranks), origin=origin), state
            except UnusableCheckpoint as error:
                self.refuse(error)
        if self.refused is not None:
            raise self.refused
        if self.experiment.run.resume == "auto" and (origin := self.experiment.origin) is not None:
            path = origin_path(origin, self.experiment)
            raise UnusableCheckpoint(path, "it is missing or damaged.")
        return None

    def refuse(self, error: UnusableCheckpoint) -> None:
        """Report on stderr that a checkpoint is not used."""
        self.refused = self.refused if error.damaged else error
        warn(error.path, error.reason)


def ranks_in(state: Mapping[str, Any], ranks: int) -> list[int]:
    """Return the original ranks in a saved ``state`` of a run that started with ``ranks`` ranks."""
    names = list(state["observer"]["names"])
    if not names or not set(names) <= set(range(ranks)) or names != sorted(set(names)):
        raise ValueError("its ranks differ from those of the run")
    return names


def valid_checkpoints(experiment: Experiment, files: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield the valid checkpoints of a run that can resume, newest first.

    files: names of the files to verify; None: all
    """
    if experiment.run.resume == "auto":
        yield from valid(experiment.checkpoints, experiment.digest, files)
        if (origin := experiment.origin) is not None:
            path = origin_path(origin, experiment)
            if invalid_reason(path, origin.digest, files) is None:
                yield path


def origin_path(origin: Origin, experiment: Experiment) -> Path:
    return experiment.directory.parent / origin.run / "checkpoints" / f"step-{origin.steps}"


def origin_at(path: Path, experiment: Experiment) -> Origin | None:
    """Return the run's origin if checkpoint ``path`` is from there; None for its own checkpoint."""
    return None if path.parent == experiment.checkpoints else experiment.origin


def read(path: Path, device: str = "cpu", mapped: bool = False) -> dict[str, Any]:
    """Return the state in a checkpoint file. Raises OSError or ValueError for any other file.

    mapped: whether to memory-map the tensors instead of loading them
    """
    import torch

    check_uncompressed(path)
    try:
        state = torch.load(path, weights_only=True, map_location=device, mmap=mapped)
    except Exception as error:  # its message recommends weights_only=False, which would run code
        raise ValueError(f"{path.name} does not contain data of sgp-run") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path.name} holds no state")
    return state


def check_uncompressed(path: Path) -> None:
    """Raise ValueError if the tensors of a file are larger in memory than on disk."""
    with open_regular(path) as file:
        try:
            sizes = [
                (member.file_size, member.compress_size) for member in ZipFile(file).infolist()
            ]
        except BadZipFile as error:
            raise ValueError(f"{path.name} is not a file of tensors") from error
    if any(size > stored for size, stored in sizes):
        raise ValueError(f"{path.name} is compressed")


def valid(folder: Path, run: str, files: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield the valid checkpoints of ``run``, newest first; report invalid ones on stderr."""
    for steps in saved_steps(folder):
        path = folder / f"step-{steps}"
        problem = invalid_reason(path, run, files)
        if problem is None:
            yield path
        else:
            warn(path, problem)


def verify(path: Path, run: str, file: str) -> None:
    """Raise UnusableCheckpoint if the manifest or ``file`` of a checkpoint is damaged."""
    if (reason := invalid_reason(path, run, [file])) is not None:
        raise UnusableCheckpoint(path, reason, damaged=True)


def warn(path: Path, problem: str) -> None:
    logger.warning(f"the checkpoint {path} is not used: {problem}")


def invalid_reason(path: Path, run: str, only: Sequence[str] | None = None) -> str | None:
    """Return why a checkpoint cannot be used, as a sentence; None if it can be used.

    only: names of the files to verify, if they are in the manifest; None: all
    """
    damaged = f"its {MANIFEST} is missing or damaged."
    try:
        manifest = read_json(path / MANIFEST)
        version, name, files = manifest["version"], manifest["run"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return damaged
    if version != VERSION:
        return f"it has format {version}, and this version of sgp-run reads format {VERSION}."
    if name != run:
        return "it belongs to a run with other settings."
    for file, expected in files.items():
        if not re.fullmatch(r"\w+\.pt", file):
            return damaged
        try:
            if (only is None or file in only) and checksum(path / file) != expected:
                return f"{file} is damaged."
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})."
    return None


def extendable(folder: Path, run: str) -> list[Path]:
    """Return the checkpoints of ``run`` that a run with more epochs can continue, newest first."""
    return [
        path
        for path in (folder / f"step-{number}" for number in saved_steps(folder))
        if invalid_reason(path, run) is None and read_json(path / MANIFEST).get("longer") is True
    ]


def adopt(folder: Path, before: str, run: str) -> None:
    """Assign the extendable checkpoints of ``before`` to the longer ``run``; remove the others."""
    checkpoints = extendable(folder, before)
    for path in checkpoints:
        replace_file(path / MANIFEST, json.dumps({**read_json(path / MANIFEST), "run": run}))
    keep_only([*checkpoints, *extendable(folder, run)], folder)


def keep_only(checkpoints: Sequence[Path], folder: Path) -> None:
    """Remove all but ``checkpoints`` from their folder; remove the folder if there are none."""
    for path in folder.glob("*"):
        if path not in checkpoints:
            shutil.rmtree(path, ignore_errors=True)
    if not checkpoints:
        shutil.rmtree(folder, ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in a folder, newest first."""
    names = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted((int(name[1]) for name in names if name), reverse=True)

"""Recordings: ``recording-R.jsonl`` in the folder of a run holds the events of process rank R.

Each line is a JSON value, in the order of the events. The first line is an object that describes
the recording (`Header`). The last line has the checksum of all lines before it (`Footer`). The
lines in between are lists:

* ``["message", call_index, time, src, tag, arrived]``: a message reached the mailbox
* ``["gradient", call_index, time, seconds]``: a gradient was complete after ``seconds``
* ``["collective", call_index, time, number]``: the ``number``-th collective that the rank began, an
  all-reduce or an all-gather, ended
* ``["sleep", call_index, time, number]``: the ``number``-th sleep of the rank ended
* ``["step", number]``: the step that the rank drew from the shared budget; null: the budget was
  spent
* ``["send", dst, tag, bytes, sent]``

``call_index`` specifies when the event arrived: 0 while the rank's program waited; n > 0 during its
n-th receiving call (`recv`, `recv_any` or `poll`); -1 during an inline gradient. ``time`` is in
seconds of the rank's clock, which excludes evaluation; ``arrived`` and ``sent`` are in seconds of
its machine's clock, since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.recorder import LineFile
from sgp_runner.utils.errors import CannotWrite, ConfigError
from sgp_runner.utils.reading import parse_json, read_lines

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")
FORMAT = 3
WAITING, ON_THE_SPOT = 0, -1  # indices of calls
DETAILS = {  # fields of an event after its call_index and its time
    "message": ("src", "tag", "arrived"),
    "gradient": ("seconds",),
    "collective": ("number",),
    "sleep": ("number",),
}
MAX_BUFFERED_LINES = 1000  # buffered in memory
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Header:
    """Description of a recording.

    run: digest of the run's settings
    execution: identifier of the execution, the same for all ranks
    host: host of this rank
    code, torch: versions of sgp-runner and PyTorch
    threads: number of threads that compute a gradient
    polled: whether gradients run on a separate thread because the network needs the scheduler's
        thread
    parameters: number of parameters
    num_bytes: size of the parameters
    steps_per_epoch: steps of one node per epoch
    """

    format: int
    run: str
    execution: str
    rank: int
    ranks: int
    host: str
    code: str
    torch: str
    threads: int
    polled: bool
    parameters: int
    num_bytes: int
    steps_per_epoch: float


@dataclass(frozen=True)
class Footer:
    """Verification of a recording.

    lines: number of lines before the footer
    checksum: SHA-256 of the lines before the footer
    ended: whether the algorithm ended on this rank
    parameters: checksum of the final parameters
    time: final time of the rank's clock, in seconds
    """

    lines: int
    checksum: str
    ended: bool
    parameters: str
    time: float


@dataclass(frozen=True)
class TraceEvent:
    """Event that reached the rank from outside its program.

    src, tag, arrived: sender, tag and arrival time of a message
    seconds: duration of a gradient
    number: number of a collective or a sleep
    """

    kind: str
    call_index: int
    time: float
    src: int = -1
    tag: int = 0
    arrived: float = 0.0
    seconds: float = 0.0
    number: int = -1


@dataclass(frozen=True)
class Send:
    dst: int
    tag: int
    num_bytes: int
    sent: float


@dataclass(frozen=True)
class Recording:
    """The recording of one rank."""

    header: Header
    events: list[TraceEvent]
    steps: list[int | None]
    sends: list[Send]
    footer: Footer


def path_of(directory: Path, rank: int) -> Path:
    return directory / f"recording-{rank}.jsonl"


def remove_recordings(directory: Path) -> None:
    """Remove the recordings of an earlier execution."""
    for path in directory.glob("recording-*.jsonl"):
        path.unlink()


def checksum_of(push_sum: Tensor) -> str:
    """Return the checksum of a worker's parameters and push-sum weight."""
    return sha256(push_sum.cpu().numpy().tobytes()).hexdigest()


class Writer:
    """Buffered writer of one rank's recording, which can be replayed only after `finish`."""

    def __init__(self, directory: Path, header: Header) -> None:
        path = path_of(directory, header.rank)
        try:
            self.file = LineFile(path, path.open("wb", buffering=0))
        except OSError as error:
            raise CannotWrite(path, error) from error
        self.lines: list[Mapping[str, object] | list[object]] = []
        self.count = 0
        self.add(asdict(header))

    def add(self, value: Mapping[str, object] | list[object]) -> None:
        self.lines.append(value)
        self.count += 1
        if len(self.lines) == MAX_BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self.lines = self.lines, []
        self.file.append("".join(f"{ENCODE(line)}\n" for line in lines).encode())

    def finish(self, ended: bool, push_sum: Tensor, time: float) -> None:
        """Write the footer; ``push_sum`` has the parameters when the algorithm stopped."""
        self.flush()
        checksum = self.file.checksum.hexdigest()
        footer = Footer(self.count, checksum, ended, checksum_of(push_sum), round(time, 6))
        self.file.append((json.dumps(asdict(footer)) + "\n").encode())
        self.file.file.close()


def read_recordings(directory: Path, experiment: Experiment) -> list[Recording]:
    """Read the recordings of all ranks of the run in ``directory``.

    Raises ConfigError for the first defect that prevents a replay.
    """
    run = experiment.run
    ranks = run.nodes + run.algo.servers
    if not any(path_of(directory, rank).exists() for rank in range(ranks)):
        raise ConfigError(
            str(directory),
            "this run was not recorded; run its command again with record=true resume=never.",
        )
    recordings = [read_recording(path_of(directory, rank)) for rank in range(ranks)]
    for rank, recording in enumerate(recordings):
        path, header = str(path_of(directory, rank)), recording.header
        if header.run != experiment.digest:
            raise ConfigError(
                path, "the run was recorded with settings that differ from its config.yaml."
            )
        if (header.rank, header.ranks) != (rank, ranks):
            raise ConfigError(
                path,
                f"the file is the recording of rank {header.rank} of {header.ranks}, "
                f"not of rank {rank} of {ranks}.",
            )
        if header.execution != recordings[0].header.execution:
            raise ConfigError(
                path, f"the file was not recorded together with {path_of(directory, 0).name}."
            )
    return recordings


def read_recording(path: Path) -> Recording:
    try:
        *lines, last = [*read_lines(path)] or [b""]
    except FileNotFoundError:
        raise ConfigError(
            str(path), "the file is missing: every rank of a run has its own recording."
        ) from None
    except OSError as error:
        raise ConfigError(str(path), f"the file cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ConfigError(str(path), "the file is damaged: it has a line without end.") from error
    damaged = ConfigError(str(path), "the file is damaged: its lines do not match their checksum.")
    header = header_of(path, lines[0] if lines else last)
    try:
        footer = (
            of_types(Footer, parse_json(last.decode()))
            if last.startswith(b"{") and last.endswith(b"}\n") and lines
            else None
        )
    except (ValueError, TypeError):
        raise damaged from None
    if footer is None:
        raise ConfigError(
            str(path), "the file is incomplete: the rank was killed, or the file was truncated."
        )
    if (footer.lines, footer.checksum) != (len(lines), sha256(b"".join(lines)).hexdigest()):
        raise damaged
    events: list[TraceEvent] = []
    steps: list[int | None] = []
    sends: list[Send] = []
    try:
        for line in lines[1:]:
            kind, *values = parse_json(line.decode())
            if (kind, *values) == ("step", None):
                steps.append(None)
                continue
            if any(type(value) not in (int, float) for value in values):
                raise damaged
            if kind == "step":
                (number,) = values
                steps.append(number)
            elif kind == "send":
                sends.append(Send(*values))
            else:
                names = ("call_index", "time", *DETAILS[kind])
                events.append(TraceEvent(kind, **dict(zip(names, values, strict=True))))
    except (ValueError, KeyError, TypeError):
        raise damaged from None
    return Recording(header, events, steps, sends, footer)


def of_types(cls: type[T], fields: object) -> T:
    """Return a header or footer with ``fields``. Raises TypeError for a value of the wrong type."""
    if not isinstance(fields, dict):
        raise TypeError("no names")
    part = cls(**fields)
    for name, hint in get_type_hints(cls).items():
        value = getattr(part, name)
        if type(value) is not hint and not (hint is float and type(value) is int):
            raise TypeError(name)
    return part


def header_of(path: Path, line: bytes) -> Header:
    try:
        fields = parse_json(line.decode())
        version = fields["format"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(str(path), "this is not a recording of sgp-run.") from None
    if version != FORMAT:
        raise ConfigError(
            str(path),
            f"the file has format {version}, but this version of sgp-run reads format {FORMAT}.",
        )
    try:
        return of_types(Header, fields)
    except TypeError:
        raise ConfigError(str(path), "this is not a recording of sgp-run.") from None

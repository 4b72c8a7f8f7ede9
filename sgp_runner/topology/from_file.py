"""A custom communication graph from a text file.

A line is one edge: ``src dst``, or ``step src dst`` for a graph that changes; steps are 0, 1, ...
and then repeat. ``#`` starts a comment. The checksum of the file is one of the settings of a run:
with other contents it is another run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.topology.graphs import Peers, Phase, Topology
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, read_bytes

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

KEY = "algo.topology.path"
MOST_BYTES = 1024 * MIB
Neighbours = tuple[dict[int, Peers], ...]


@dataclass(frozen=True)
class Graph:
    """Per step, the peers that a node sends to and receives from, in the order of the lines.

    Nodes without an edge are omitted.
    """

    out: Neighbours
    into: Neighbours


@dataclass(frozen=True)
class Edges(Topology):
    """The edges in a file.

    path: relative to where the command is started
    sha256: checksum that the file must have; null: any; config.yaml records it
    """

    path: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        checksum = sha256(self.content).hexdigest()
        if self.sha256 not in (None, checksum):
            raise ConfigError(
                "algo.topology.sha256",
                f"{self.path} has other contents, whose checksum is {checksum}.",
            )
        object.__setattr__(self, "sha256", checksum)

    @cached_property
    def content(self) -> bytes:
        try:
            return read_bytes(Path(self.path), MOST_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(
                KEY, f"cannot read '{self.path}': {getattr(error, 'strerror', None) or error}."
            ) from error

    @cached_property
    def graph(self) -> Graph:
        return parse(self.content, self.path)

    @property
    def symmetric(self) -> bool:
        return all(
            step.keys() == back.keys() and all(set(step[i]) == set(back[i]) for i in step)
            for step, back in self.steps
        )

    @property
    def steps(self) -> list[tuple[dict[int, Peers], dict[int, Peers]]]:
        return list(zip(self.graph.out, self.graph.into, strict=True))

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return self.graph.out[step % len(self.graph.out)].get(rank, ())

    def in_peers(self, rank: int, size: int, step: int) -> Peers:
        return self.graph.into[step % len(self.graph.into)].get(rank, ())

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, len(self.graph.out))]

    def check(self, size: int) -> None:
        seen: set[int] = set()
        for step, out in enumerate(self.graph.out):
            for src, peers in out.items():
                for dst in peers:
                    if max(src, dst) >= size:
                        raise ConfigError(
                            KEY,
                            f"step {step} has the edge {src} -> {dst}, but nodes={size} are "
                            f"numbered 0 to {size - 1}.",
                        )
                seen |= {src, *peers}
        if missing := set(range(size)) - seen:
            raise ConfigError(
                KEY, f"node {min(missing)} is in no edge, but nodes={size} need one each."
            )


def parse(content: bytes, path: str) -> Graph:
    """Parse the lines of a graph; raise ConfigError, naming the line, if they are not one.

    A million edges take about a second: numpy reads, checks and sorts them.
    """
    import numpy

    text = re.sub(rb"\r\n?", b"\n", re.sub(rb"#[^\r\n]*", b"", content))
    if not text.strip():
        raise ConfigError(
            KEY, f"{path} has no edges; write 'src dst' or 'step src dst' on each line."
        )
    width = len(text.lstrip().partition(b"\n")[0].split())
    line = r"[ \t]*(?:" + r"[ \t]+".join(["[0-9]{1,9}"] * width) + r"[ \t]*)?"
    if width not in (2, 3) or not re.fullmatch(rf"(?:{line}\n)*+{line}".encode(), text):
        raise bad_line(content, path)
    numbers = numpy.fromstring(text, dtype=numpy.int64, sep=" ").reshape(-1, width)
    steps, src, dst = (
        numbers.T if width == 3 else (numpy.zeros(len(numbers), numpy.int64), *numbers.T)
    )
    numbered = [number for number, each in enumerate(text.split(b"\n"), start=1) if each.strip()]
    if (loops := (src == dst).nonzero()[0]).size:
        edge = loops[0]
        raise ConfigError(
            KEY,
            f"{path}, line {numbered[edge]}: in step {steps[edge]} node {src[edge]} sends to "
            "itself; it keeps its own share anyway.",
        )
    # Edges that are equal follow one another, in the order of their lines.
    order = numpy.lexsort((dst, src, steps))
    again = (numbers[order[1:]] == numbers[order[:-1]]).all(1).nonzero()[0]
    if again.size:
        twice = min(again, key=lambda place: order[place + 1])
        first, edge = order[twice], order[twice + 1]
        raise ConfigError(
            KEY,
            f"{path}, line {numbered[edge]}: step {steps[edge]} has the edge "
            f"{src[edge]} -> {dst[edge]} already, in line {numbered[first]}.",
        )
    known = numpy.unique(steps)
    if known[-1] >= len(known):
        missing = (known != numpy.arange(len(known))).nonzero()[0][0]
        raise ConfigError(
            KEY, f"{path}: steps are numbered 0, 1, 2, ...; step {missing} has no edge."
        )
    return Graph(grouped(steps, src, dst), grouped(steps, dst, src))


def grouped(steps: NDArray[int64], nodes: NDArray[int64], others: NDArray[int64]) -> Neighbours:
    """Per step, the ``others`` of each node, in the order of the lines; all are int64 [E]."""
    import numpy

    order = numpy.lexsort((nodes, steps))
    steps, nodes, peers = steps[order], nodes[order], others[order].tolist()
    starts = ((numpy.diff(steps) != 0) | (numpy.diff(nodes) != 0)).nonzero()[0] + 1
    bounds = [0, *starts.tolist(), len(peers)]
    out: list[dict[int, Peers]] = [{} for _ in range(int(steps[-1]) + 1)]
    for begin, end in pairwise(bounds):
        out[int(steps[begin])][int(nodes[begin])] = tuple(peers[begin:end])
    return tuple(out)


def bad_line(content: bytes, path: str) -> ConfigError:
    """The error of the first line that is no edge, or is one of another kind than those before."""
    width = 0
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        edge = line.partition("#")[0].strip(" \t")
        words = re.split(r"[ \t]+", edge) if edge else []
        where = f"{path}, line {number}"
        if words and not (
            len(words) in (2, 3) and all(re.fullmatch("[0-9]{1,9}", word) for word in words)
        ):
            return ConfigError(
                KEY, f"{where}: {line.strip()[:80]!r} is neither 'src dst' nor 'step src dst'."
            )
        if width and words and len(words) != width:
            break
        width = width or len(words)
    return ConfigError(KEY, f"{where}: either every line names a step or none does.")

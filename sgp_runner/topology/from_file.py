"""A custom communication graph from a text file.

Each line is one edge: ``src dst``, or ``step src dst`` for a graph that changes from step to step.
Steps are numbered 0, 1, ... and repeat after the last step in the file. ``#`` starts a comment. The
file's checksum is a setting of the run, so a run with changed contents counts as a different run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import count
from pathlib import Path

from sgp_runner.topology.graphs import Peers, Phase, Topology
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, read_bytes

KEY = "algo.topology.path"
MAX_BYTES = 1024 * MIB
EDGE = re.compile(r"[0-9]{1,9}(?:[ \t]+[0-9]{1,9}){1,2}")
Neighbours = tuple[dict[int, Peers], ...]


@dataclass(frozen=True)
class Graph:
    """The peers that each node sends to and receives from, by step, in file order.

    Nodes without an edge are omitted.
    """

    out: Neighbours
    into: Neighbours


@dataclass(frozen=True)
class Edges(Topology):
    """A graph with edges from a file.

    path: path of the file, relative to the working directory of the command
    sha256: required checksum of the file; null: any checksum; config.yaml records it
    """

    path: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        checksum = sha256(self.content).hexdigest()
        if self.sha256 not in (None, checksum):
            raise ConfigError(
                "algo.topology.sha256",
                f"{self.path} has different contents, with the checksum {checksum}.",
            )
        object.__setattr__(self, "sha256", checksum)

    @cached_property
    def content(self) -> bytes:
        try:
            return read_bytes(Path(self.path), MAX_BYTES)
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
            for step, back in zip(self.graph.out, self.graph.into, strict=True)
        )

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
                KEY, f"node {min(missing)} has no edge, but each of nodes={size} needs one."
            )


def parse(content: bytes, path: str) -> Graph:
    """Parse the lines of a graph; raise ConfigError with the line number if a line is invalid."""
    lines: dict[tuple[int, int, int], int] = {}  # (step, source, destination) -> line
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    width = None
    for number, line in enumerate(text.split("\n"), start=1):
        edge = line.partition("#")[0].strip(" \t")
        if not edge:
            continue
        where = f"{path}, line {number}"
        if not EDGE.fullmatch(edge):
            raise ConfigError(
                KEY, f"{where}: {line.strip()[:80]!r} is neither 'src dst' nor 'step src dst'."
            )
        *steps, src, dst = map(int, edge.split())
        if width not in (None, len(steps)):
            raise ConfigError(KEY, f"{where}: either every line has a step or none does.")
        width, step = len(steps), sum(steps)
        if src == dst:
            raise ConfigError(
                KEY,
                f"{where}: in step {step} node {src} sends to itself; remove the "
                "edge, as a node always keeps its own share.",
            )
        if (step, src, dst) in lines:
            raise ConfigError(
                KEY,
                f"{where}: step {step} repeats the edge {src} -> {dst} of line "
                f"{lines[step, src, dst]}.",
            )
        lines[step, src, dst] = number
    if not lines:
        raise ConfigError(
            KEY, f"{path} has no edges; write 'src dst' or 'step src dst' on each line."
        )
    numbers = {step for step, _, _ in lines}
    if max(numbers) >= len(numbers):
        missing = next(step for step in count() if step not in numbers)
        raise ConfigError(
            KEY, f"{path}: steps are numbered 0, 1, 2, ...; step {missing} has no edge."
        )
    out: list[dict[int, list[int]]] = [defaultdict(list) for _ in numbers]
    into: list[dict[int, list[int]]] = [defaultdict(list) for _ in numbers]
    for step, src, dst in lines:
        out[step][src].append(dst)
        into[step][dst].append(src)
    return Graph(frozen(out), frozen(into))


def frozen(steps: Iterable[Mapping[int, Sequence[int]]]) -> Neighbours:
    return tuple({node: tuple(peers) for node, peers in step.items()} for step in steps)

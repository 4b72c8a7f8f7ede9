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
from pathlib import Path

from sgp_runner.topology.graphs import Peers, Phase, Topology
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, read_bytes

KEY = "algo.topology.path"
MOST_BYTES = 1024 * MIB


@dataclass(frozen=True)
class Graph:
    """Per step, the peers that a node sends to and receives from, in the order of the lines.

    Nodes without an edge are omitted.
    """

    out: tuple[dict[int, Peers], ...]
    into: tuple[dict[int, Peers], ...]


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
        _ = self.graph

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
    """Parse the lines of a graph; raise ConfigError, naming the line, if they are not one."""
    lines: dict[tuple[int, int, int], int] = {}  # (step, src, dst) -> number of its line
    width = 0
    for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) not in (2, 3) or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
            raise ConfigError(
                KEY, f"{where}: {line.strip()[:80]!r} is neither 'src dst' nor 'step src dst'."
            )
        if width not in (0, len(words)):
            raise ConfigError(KEY, f"{where}: either every line names a step or none does.")
        width = len(words)
        step, src, dst = [0] * (3 - width) + [int(word) for word in words]
        edge = step, src, dst
        if src == dst:
            raise ConfigError(
                KEY,
                f"{where}: in step {step} node {src} sends to itself; "
                "it keeps its own share anyway.",
            )
        if edge in lines:
            raise ConfigError(
                KEY,
                f"{where}: step {step} has the edge {src} -> {dst} already, in line {lines[edge]}.",
            )
        lines[edge] = number
    steps = {step for step, _, _ in lines}
    if not steps:
        raise ConfigError(
            KEY, f"{path} has no edges; write 'src dst' or 'step src dst' on each line."
        )
    if missing := set(range(len(steps))) - steps:
        raise ConfigError(
            KEY, f"{path}: steps are numbered 0, 1, 2, ...; step {min(missing)} has no edge."
        )
    out: list[dict[int, Peers]] = [{} for _ in steps]
    into: list[dict[int, Peers]] = [{} for _ in steps]
    for step, src, dst in lines:
        out[step][src] = (*out[step].get(src, ()), dst)
        into[step][dst] = (*into[step].get(dst, ()), src)
    return Graph(tuple(out), tuple(into))

"""A recorded trace of nodes that join and leave, from a user's file.

Each line is ``milliseconds,add|remove,node``, in order of time, as in Oobleck's traces of spot
machines. A node that joins takes the lowest free rank, and frees it when it leaves. Nodes that are
removed in their first line are present from the start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from math import inf

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, read_bytes

KEY = "faults.trace"
MAX_BYTES = 64 * MIB
LINE = re.compile(r"([0-9]{1,15}),(add|remove),([^,\s]{1,80})")


@dataclass(frozen=True)
class SpotTrace:
    """The absences of ranks and the largest number of nodes at a time.

    absences: (rank, seconds at which it leaves, seconds at which it returns or infinity)
    line: line in which the largest number is first reached
    sha256: checksum of the file
    """

    absences: list[tuple[int, float, float]]
    most: int
    line: str
    sha256: str


def read_trace(path: str, checksum: str | None = None) -> SpotTrace:
    """Read a trace; raise ConfigError with the line number if a line is invalid."""
    try:
        content = read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            KEY,
            f"cannot read '{path}': {getattr(error, 'strerror', None) or error}; name a file of "
            "lines such as 600000,remove,a.",
        ) from error
    actual = sha256(content).hexdigest()
    if checksum not in (None, actual):
        raise ConfigError(
            "faults.trace_sha256", f"{path} has different contents, with the checksum {actual}."
        )
    changes = changes_of(content.decode("utf-8", errors="replace"), path)
    first: dict[str, bool] = {}
    for _, _, joins, node in changes:
        first.setdefault(node, joins)
    places = {node: rank for rank, node in enumerate(n for n, joins in first.items() if not joins)}
    most, line = len(places), f"{path}, line 1"
    left = dict.fromkeys(places.values(), inf)  # when each rank left; infinity: it is there
    absences = []
    for where, moment, joins, node in changes:
        if not joins:
            left[places.pop(node)] = moment
            continue
        rank = min(set(range(len(places) + 1)) - {*places.values()})
        if (begin := left.get(rank, 0.0)) < moment:
            absences.append((rank, begin, moment))
        places[node], left[rank] = rank, inf
        if len(places) > most:
            most, line = len(places), where
    absences += [(rank, moment, inf) for rank, moment in left.items() if moment < inf]
    return SpotTrace(absences, most, line, actual)


def changes_of(text: str, path: str) -> list[tuple[str, float, bool, str]]:
    """Return the location, the seconds, whether the node joins, and the node of each line."""
    changes: list[tuple[str, float, bool, str]] = []
    last: dict[str, tuple[bool, int]] = {}  # joined, line
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where, match = f"{path}, line {number}", LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigError(
                KEY,
                f"{where}: {line.strip()[:80]!r} is not 'milliseconds,add|remove,node' with a time "
                "of zero or more.",
            )
        moment, joins, node = int(match[1]) / 1000, match[2] == "add", match[3]
        if node in last and last[node][0] == joins:
            raise ConfigError(
                KEY,
                f"{where}: {node} is {'added' if joins else 'removed'} twice, first in line "
                f"{last[node][1]}.",
            )
        if changes and moment < changes[-1][1]:
            raise ConfigError(KEY, f"{where}: {match[1]} ms is before the line above.")
        changes.append((where, moment, joins, node))
        last[node] = joins, number
    if not changes:
        raise ConfigError(KEY, f"{path} is empty; write 'milliseconds,add|remove,node' lines.")
    return changes

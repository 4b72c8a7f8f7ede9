"""Processor sharing: the ranks of one host compute, send and receive on the same cores.

The tasks of a host have equal shares of its cores, and each uses at most one core. So with ``k``
tasks on ``c`` cores each advances at the rate ``min(1, c / k)``, and the next to end is the one
that has the least left, whatever the rate is until then. A task therefore waits for a level of the
processor time that any task would have received since the start of the run.

Source: Kleinrock, Queueing Systems II, 1976, section 4.4 (processor sharing).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sgp_runner.core.scheduler import Event, VirtualClock
from sgp_runner.core.state import State


@dataclass(slots=True)
class TaskEnds:
    """The next task of a ``host`` ends, unless one has come or gone since ``turn``."""

    host: int
    turn: int
    kind: ClassVar[str] = "task ends"

    def fire(self, machines: HasHosts) -> None:
        machines.hosts[self.host].end(self.turn, machines)

    def state_dict(self) -> State:
        return {"host": self.host, "turn": self.turn}


@dataclass(slots=True)
class NoOp:
    """The end of a task that only takes time from others."""

    kind: ClassVar[str] = "nothing"

    def fire(self, machines: Any) -> None:
        """Do nothing."""

    def state_dict(self) -> State:
        return {}


class Host:
    """The processors of host number ``number``, with so many ``cores``."""

    def __init__(self, number: int, cores: float, clock: VirtualClock) -> None:
        self.number, self.cores, self.clock = number, cores, clock
        self.level = 0.0  # processor seconds of a task that has run all the time
        self.since = 0.0  # time of the level
        self.turn = 0  # counts the tasks that have come and gone
        self.tasks: list[tuple[float, int, Event]] = []  # the level at which each ends

    def begin(self, seconds: float, end: Event, after: float = 0.0) -> float:
        """Begin a task of so many ``seconds`` of one core; ``end`` fires when it ends.

        Returns the level at which it ends, which is not below ``after``.
        """
        self.rise()
        level = max(self.level + seconds, after)
        heapq.heappush(self.tasks, (level, self.turn, end))
        self.schedule()
        return level

    def end(self, turn: int, machines: Any) -> None:
        if turn != self.turn:
            return
        self.rise()
        level, _, event = heapq.heappop(self.tasks)
        self.level = max(self.level, level)
        self.schedule()
        event.fire(machines)

    def rise(self) -> None:
        """Bring the level up to now."""
        if self.tasks:
            self.level += (self.clock.now - self.since) * self.rate
        self.since = self.clock.now

    def schedule(self) -> None:
        self.turn += 1
        if self.tasks:
            left = max(0.0, self.tasks[0][0] - self.level)
            self.clock.at(self.clock.now + left / self.rate, TaskEnds(self.number, self.turn))

    @property
    def rate(self) -> float:
        return min(1.0, self.cores / len(self.tasks))

    def state_dict(self) -> State:
        tasks = [(*task, event.kind, event.state_dict()) for *task, event in sorted(self.tasks)]
        return {"level": self.level, "since": self.since, "turn": self.turn, "tasks": tasks}

    def load_state_dict(self, state: State, kinds: Mapping[str, Callable[..., Event]]) -> None:
        self.level, self.since, self.turn = state["level"], state["since"], state["turn"]
        self.tasks = [
            (level, turn, kinds[kind](**fields)) for level, turn, kind, fields in state["tasks"]
        ]


class HasHosts(Protocol):
    """The machines that these events happen to."""

    @property
    def hosts(self) -> list[Host]: ...

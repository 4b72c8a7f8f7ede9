"""Processor sharing: the ranks of one host compute, send and receive on the same cores.

The tasks of a host have equal shares of its cores, and each task uses at most one core. With ``k``
tasks on ``c`` cores, each task advances at rate ``min(1, c / k)``, and the task with the least
remaining work ends next, no matter how the rate changes. The *level* of a host is the processor
time that a task would have received since the start of the run; a task ends at a known level.

Source: Kleinrock, Queueing Systems II, 1976, section 4.4 (processor sharing).
"""

from __future__ import annotations

import heapq
from typing import Any

from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.core.state import State
from sgp_runner.simulator.fabric import packed_events, unpacked_events


class Host:
    """The processors of host ``number``, which has ``cores`` cores."""

    def __init__(self, number: int, cores: float, clock: VirtualClock) -> None:
        self.number, self.cores, self.clock = number, cores, clock
        self.level = 0.0  # processor seconds of a task since the start of the run
        self.since = 0.0  # time of the level
        self.turn = 0  # counts starts and ends of tasks
        # (level at the end, turn, event at the end, its arguments) of each task.
        self.tasks: list[tuple[float, int, str, tuple[Any, ...]]] = []

    def begin(self, seconds: float, event: str, *arguments: Any, after: float = 0.0) -> float:
        """Start a task that takes ``seconds`` of one core; ``event`` happens at its end.

        Return the level at the end of the task, at least ``after``.
        """
        self.rise()
        level = max(self.level + seconds, after)
        heapq.heappush(self.tasks, (level, self.turn, event, arguments))
        self.schedule()
        return level

    def cancel(self, event: str, *arguments: Any) -> None:
        """Remove the task of ``event`` whose first arguments are ``arguments``, if any."""
        self.rise()
        self.tasks = [
            task
            for task in self.tasks
            if task[2:] != (event, (*arguments, *task[3][len(arguments) :]))
        ]
        heapq.heapify(self.tasks)
        self.schedule()

    def end(self, turn: int) -> None:
        """End the next task, unless a task has started or ended since ``turn``."""
        if turn != self.turn:
            return
        self.rise()
        level, _, event, arguments = heapq.heappop(self.tasks)
        self.level = max(self.level, level)
        self.schedule()
        self.clock.handlers[event](*arguments)

    def rise(self) -> None:
        """Update the level to the current time."""
        if self.tasks:
            self.level += (self.clock.now - self.since) * self.rate
        self.since = self.clock.now

    def schedule(self) -> None:
        self.turn += 1
        if self.tasks:
            left = max(0.0, self.tasks[0][0] - self.level)
            self.clock.at(self.clock.now + left / self.rate, "task ends", self.number, self.turn)

    @property
    def rate(self) -> float:
        return min(1.0, self.cores / len(self.tasks))

    def state_dict(self) -> State:
        tasks = packed_events(self.clock, self.tasks)
        return {"level": self.level, "since": self.since, "turn": self.turn, "tasks": tasks}

    def load_state_dict(self, state: State) -> None:
        self.level, self.since, self.turn = state["level"], state["since"], state["turn"]
        self.tasks = unpacked_events(state["tasks"])

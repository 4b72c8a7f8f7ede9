"""The number of steps that workers have left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Budget(Protocol):
    """The steps that are left.

    Each synchronous worker has its own budget; asynchronous workers share one budget.
    """

    taken: int

    def next_step(self) -> int | None:
        """Take a step and return its number, or None if no step is left."""

    @property
    def spent(self) -> bool: ...


@dataclass(slots=True)
class OwnBudget:
    """The ``total`` steps of one worker or parameter server."""

    total: int
    taken: int = 0

    def next_step(self) -> int | None:
        if self.taken == self.total:
            return None
        self.taken += 1
        return self.taken - 1

    @property
    def left(self) -> int:
        return self.total - self.taken

    @property
    def spent(self) -> bool:
        return self.left == 0


def own_budgets(total: int, nodes: int, servers: int, shared: bool) -> list[OwnBudget]:
    """Return the budgets of all workers in one process, servers last.

    shared: whether the nodes share one budget of ``total`` steps
    """
    budgets = [OwnBudget(total) for _ in range(nodes + servers)]
    return [*budgets[:1] * nodes, *budgets[nodes:]] if shared else budgets

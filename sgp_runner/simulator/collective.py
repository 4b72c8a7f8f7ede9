"""One all-reduce or all-gather of the simulated machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sgp_runner.core.mailbox import check_unwritten
from sgp_runner.core.scheduler import Future
from sgp_runner.core.state import State
from sgp_runner.simulator.engine import Engine, Gradient

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Collective:
    """One all-reduce or all-gather.

    missing: ranks that have not joined. parts: by rank, a tensor and its version, or a gradient
        still to be computed. futures: of the waiting ranks. begin: when it can begin. ready: when
        the last part is complete. unreduced: ranks whose processors are still busy with it.
    end: when the network is done.
    """

    number: int
    gathers: bool
    missing: set[int]
    parts: dict[int, tuple[Tensor, int] | Gradient] = field(default_factory=dict)
    futures: dict[int, Future[Any]] = field(default_factory=dict)
    begin: float = 0.0
    ready: float = 0.0
    num_bytes: float = 0.0
    unreduced: int = 0
    end: float = 0.0

    @property
    def name(self) -> str:
        return f"{'all-gather' if self.gathers else 'all-reduce'} {self.number}"

    def values(self, engine: Engine) -> list[Tensor]:
        """The parts in rank order, so that sums do not depend on timing; each is released."""
        return [self.value(rank, engine) for rank in sorted(self.parts)]

    def value(self, rank: int, engine: Engine) -> Tensor:
        part = self.parts.pop(rank)
        if isinstance(part, Gradient):
            return engine.finish(part)
        tensor, version = part
        check_unwritten(tensor, version, f"what rank {rank} gave to {self.name}")
        return tensor

    def outcome(self, engine: Engine) -> Any:
        if self.gathers:
            return self.values(engine)
        total: Tensor | None = None
        ranks = sorted(self.parts)
        for rank in ranks:
            value = self.value(rank, engine)
            total = value if total is None else total.add_(value)
        assert total is not None
        total /= len(ranks)
        return total

    def state_dict(self) -> State:
        """The fields as plain data; a gradient is saved as None and computed again."""
        parts = {
            rank: None if isinstance(part, Gradient) else part[0]
            for rank, part in self.parts.items()
        }
        names = ("number", "gathers", "missing", "begin", "ready", "num_bytes", "unreduced", "end")
        return {name: getattr(self, name) for name in names} | {
            "parts": parts,
            "futures": list(self.futures),
        }

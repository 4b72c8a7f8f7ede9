"""``logger=none``, also called ``jsonl``: the metrics are only in the run's ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgp_runner.config.logger import Listener


@dataclass(frozen=True)
class Jsonl:
    """Keeps metrics in ``metrics.jsonl`` only."""

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Listener:
        return NullListener()


@dataclass(frozen=True)
class NullListener:
    """A listener that does nothing."""

    def write(self, record: Mapping[str, object]) -> None:
        pass

    def finish(self, summary: Mapping[str, object] | None) -> None:
        pass

"""``logger=tensorboard``: event files of TensorBoard in ``<run_dir>/tensorboard``.

When a run resumes, the files are written again from ``metrics.jsonl``, so that no point is
duplicated.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.recording.loggers.mirror import (
    Mirror,
    Row,
    check_installed,
    count_lines,
    final,
    flat_settings,
    training_step,
)
from sgp_runner.utils.user_code import nearby

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True)
class TensorBoard:
    """Writes event files; needs ``pip install 'sgp-runner[tensorboard]'``."""

    copied: ClassVar[str] = "tensorboard"

    def check_installed(self) -> None:
        check_installed("tensorboard", "tensorboard")

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Mirror:
        return self.mirror(run_dir, name, config, tags, group, count_lines(run_dir))

    def mirror(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
        first_step: int,
    ) -> Mirror:
        folder = run_dir / "tensorboard"

        def start() -> Events:
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(folder, ignore_errors=True)
            return Events(SummaryWriter(str(folder)), run_dir, config)

        return Mirror("TensorBoard", run_dir, start, first_step)


@dataclass
class Events:
    """Points by training step; the *relative* axis of TensorBoard is the clock of the run."""

    writer: SummaryWriter
    run_dir: Path
    config: Mapping[str, object]
    first: int = 0
    step: int = 0
    started: float = field(default_factory=time.time)

    def log(self, rows: Sequence[Row]) -> None:
        for _, row in rows:
            self.step = training_step(row, self.step)
            for name, value in row.items():
                if name != "time_s":
                    self.writer.add_scalar(name, value, self.step, self.started + row["time_s"])

    def finish(self, summary: Mapping[str, object] | None) -> str:
        if summary is not None:
            values = {
                key: value if isinstance(value, bool | int | float | str) else str(value)
                for key, value in flat_settings(self.config).items()
            }
            self.writer.add_hparams(values, final(summary), run_name=".")
        self.writer.close()
        return f"tensorboard --logdir {nearby(self.run_dir.parent)} shows it"

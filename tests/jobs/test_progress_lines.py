"""Lines of a sweep while its jobs run."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from sgp_runner.console import progress
from sgp_runner.jobs.side_by_side import ProgressLines

DONE = {"metric": "accuracy", "average": 0.5, "time_s": 2.0, "clock": "simulated"}


def test_a_sweep_prints_finished_jobs_and_after_30_quiet_seconds_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each look at the clock takes 10 s. A line comes after 30 s."""
    now, over = [0], Event()

    def clock() -> int:
        now[0] = min(now[0] + 10, 160)
        if now[0] == 160:
            over.set()
        return now[0]

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.001)
    pool: Any = SimpleNamespace(most=2, running=[])
    jobs: list[Any] = [
        SimpleNamespace(title=f"seed={n}", row_if_done=lambda n=n: DONE if n == 2 else None)
        for n in (1, 2, 3)
    ]
    lines = ProgressLines(jobs, pool)
    for number in range(3):
        lines.begin(number)
    pool.running += [SimpleNamespace(number=1), SimpleNamespace(number=2)]
    lines.end(0, DONE, 5.0)
    lines.display.start()
    assert over.wait(600)
    lines.display.stop()
    lines.end(1, DONE, 0.01)
    lines.end(2, DONE, 4.0)
    assert capsys.readouterr().out.splitlines() == [
        "[1/3] seed=1  50.0 % in 2 s simulated · 5 s · about 5 s left",
        *3 * ["  run 1/3 · about 5 s left · running: seed=2 · seed=3"],
        "[2/3] seed=2  50.0 % in 2 s simulated · finished before · about 5 s left",
        "[3/3] seed=3  50.0 % in 2 s simulated · 4 s",
    ]

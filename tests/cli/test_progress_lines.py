"""Lines of a sweep while its jobs run."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from sgp_runner.cli import local_jobs
from sgp_runner.cli.local_jobs import ProgressLines


def test_a_quiet_sweep_prints_its_status_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each look at the clock takes 10 s. A line comes after 30 s: at 40, 90, 140."""
    now, over = [-10], Event()

    def clock() -> int:
        now[0] = min(now[0] + 10, 160)
        if now[0] == 160:
            over.set()
        return now[0]

    monkeypatch.setattr(local_jobs, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(local_jobs, "LOOK_SECONDS", 0.001)
    pool: Any = SimpleNamespace(most=2, running=[])
    jobs: Any = [SimpleNamespace(title=f"seed={n}") for n in (1, 2, 3)]
    lines = ProgressLines(total=3, pool=pool)
    lines.jobs, lines.ended, lines.seconds = jobs, 1, [5.0]
    pool.running += [SimpleNamespace(number=number) for number in (1, 2)]
    with lines.lines_while_quiet():
        assert over.wait(600)
    status = "1/3  about 5 s left  running: seed=2 · seed=3\n"
    assert capsys.readouterr().out == 3 * status

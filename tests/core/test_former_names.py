"""Former names of what plug-ins use: they do the same, and say the new name once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from helpers.paths import ROOT
from helpers.tiny import run
from test_simulator import Custom

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.names import warn_of_new_name
from sgp_runner.core.worker import Worker


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    warn_of_new_name.cache_clear()
    yield
    warn_of_new_name.cache_clear()


def in_the_notes(warnings: list[str]) -> bool:
    """Return whether the notes for an upgrade list the names of these warnings."""
    notes = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    pairs = [
        re.findall(r"(?:Old\.)?([a-z_.]+) is now called ([a-z_.]+)\.", line) for line in warnings
    ]
    return all(f"| `{new}` | `{old}` |" in notes for ((old, new),) in pairs)


def test_former_names_of_a_worker_do_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    async def body(worker: Worker) -> None:
        m = worker.keep("momentum", lambda: torch.zeros(2))
        assert m is worker.keep("momentum", dict) is worker.state["momentum"]
        for k in worker.steps():
            worker.params.sub_(worker.update(await worker.grad()))
            assert worker.count("rounds") == k and worker.tally("rounds") == k + 1
            worker.observe("staleness", 2.0)
        assert worker.learns and not worker.own_pace
        worker.own_pace = True
        assert worker.lr_follows_own_steps

    (one, _) = run(Custom(body), 2, 3).workers
    assert one.counter("rounds") == 3 and one.progress.observed == {"staleness": [2.0] * 3}
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == [
        "warning: worker.keep is now called worker.state.",
        "warning: worker.count is now called worker.increment.",
        "warning: worker.tally is now called worker.counter.",
        "warning: worker.observe is now called worker.log.",
        "warning: worker.learns is now called worker.has_gradients.",
        "warning: worker.own_pace is now called worker.lr_follows_own_steps.",
    ]
    assert in_the_notes(warnings)


def test_former_names_in_an_algorithm_do_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Old(Algorithm):
        title: ClassVar[str] = "Old"
        sends: ClassVar[str] = "chunks"
        measures: ClassVar[bool] = True

        def without_effect(self, steps: int, epochs: float) -> str | None:
            return f"{steps} steps"

        async def run(self, worker: Worker) -> None: ...

    old: Any = Old()
    assert (old.message_layout, old.is_probe, old.warning(3, 1.0)) == ("chunks", True, "3 steps")
    warnings = sorted(capsys.readouterr().err.splitlines())
    assert warnings == [
        "warning: Old.measures is now called is_probe.",
        "warning: Old.sends is now called message_layout.",
        "warning: Old.without_effect is now called warning.",
    ]
    assert in_the_notes(warnings)
    assert Algorithm.message_layout == "model" and not Algorithm.is_probe

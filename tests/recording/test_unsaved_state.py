"""State of an algorithm that a checkpoint does not have is named, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from test_records_lost import Killed, events_of, kill

from sgp_runner.cli.main import main
from sgp_runner.core.worker import Worker
from sgp_runner.recording.unsaved_state import UnsavedState
from sgp_runner.report.read.run_groups import settings_in
from sgp_runner.report.read.runs import read_runs

FILE = """from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import torch

from sgp_runner.plugin import Algorithm


class Box:
    def __init__(self):
        self.messages = {{}}


async def inner(worker, {parameters}):
    for k in worker.steps():
        worker.params.sub_(worker.update(await worker.grad()))
        {loop}


@dataclass(frozen=True)
class Mine(Algorithm):
    title: ClassVar[str] = "Mine"

    async def run(self, worker):
        x, other = worker.params, 1 - worker.rank
        {before}
        {call}
        for k in worker.steps():
            d = worker.update(await worker.grad())
            x -= d
            {loop}
"""
SWAP = "worker.comm.send(other, x.clone()); {} = await worker.comm.recv(other)"
LOST = {
    "a mapping of messages": ("inbox = {}", SWAP.format("inbox[other]"), "'inbox'"),
    "a queue": ("last = deque()", "last.append(d); x.add_(last[0], alpha=0.1)", "'last'"),
    "an object": ("box = Box()", SWAP.format("box.messages[other]"), "'box'"),
    "another tensor in each step": ("m = 0 * x", "m = 0.5 * m + d; x -= m", "'m'"),
    "changed in place": ("m = 0 * x", "m.mul_(0.5).add_(d); x -= m", "'m'"),
    "a copy of the parameters": ("start = x.clone()", "x.lerp_(start, 0.01)", "'start'"),
    "an average under way": (
        "mean = None",
        "x.copy_(x if mean is None else await mean); "
        "mean = None if worker.done else worker.comm.all_reduce(x.clone())",
        "'mean'",
    ),
    "what a function changes": (
        "m = 0 * x; step = lambda d: m.mul_(0.5).add_(d)",
        "x -= step(d)",
        "'step'",
    ),
    "read in some steps": ("m, n = x, x", "m = d if k % 2 else m; x -= 0 * m", "'m'"),
    "two variables": ("a, b = {}, {}", "a[0] = d; b[0] = d; x -= 0 * b[0] * len(a)", "'a', 'b'"),
}
KEPT = {
    "kept": ("inbox = worker.state('inbox', dict)", SWAP.format("inbox[other]")),
    "part of what is kept": (
        "two = worker.state('two', lambda: x.new_zeros(2, 3)); a, b = two",
        "a.copy_(d); x -= b; b.copy_(a)",
    ),
    "an average that is kept": (
        "under_way = worker.state('under_way', dict)",
        "x.copy_(await under_way.pop('mean', worker.comm.all_reduce(x.clone())))",
    ),
    "made again": (
        "table, chunks = torch.tensor([0.5, 0.25]), x.chunk(2)",
        "x.sub_(d, alpha=float(table[k % 2])); chunks[0].mul_(1)",
    ),
    "of one step": ("before = x.clone(); e = []", "before = x.clone(); e = [d]; x -= 0 * before"),
    "a comprehension": ("e = {}", "e = [each * 0 for each in (d, x)]; x -= e[0]"),
    "a function with a variable of later": (
        "twice = lambda: later * 2; sparse = x.to_sparse()",
        "later = k; twice(), sparse",
    ),
    "parts of the worker": (
        "comm, optim, limited = worker.comm, worker.optim, worker.limit(9)",
        "pass",
    ),
}
TINY = [
    *("model=quadratic", "data.samples=64", "data.dimension=4", "nodes=2", "epochs=1"),
    *("logger=none", "checkpoint.every_steps=1"),
]


def text(
    before: str = "pass", loop: str = "pass", call: str = "pass", parameters: str = "_=None"
) -> str:
    return FILE.format(before=before, loop=loop, call=call, parameters=parameters)


def warnings(capsys: pytest.CaptureFixture[str], **code: str) -> list[str]:
    """Return the warnings of 12 steps on 2 nodes, with a checkpoint at each."""
    module: dict[str, Any] = {"__name__": __name__}
    exec(compile(text(**code), "mine.py", "exec", dont_inherit=True), module)
    watched: list[UnsavedState] = []

    def at_step(result: tiny.Result, worker: Worker) -> None:
        if not watched:
            watched.append(UnsavedState("Mine", result.simulation.scheduler, []))
        watched[0].begin(worker)
        if worker.step >= 1:
            watched[0].check(worker)

    tiny.run(module["Mine"](), 2, 12, at_step=at_step)
    return capsys.readouterr().err.splitlines()


def sentence(names: str) -> str:
    return (
        f"warning: Mine: a resumed run does not have the tensors in {names}: keep them with "
        "worker.state, or make them in the step that uses them."
    )


@pytest.mark.parametrize("case", LOST)
def test_a_variable_whose_tensors_are_lost_is_named_once(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, loop, names = LOST[case]
    assert warnings(capsys, before=before, loop=loop) == [sentence(names)]


@pytest.mark.parametrize("case", KEPT)
def test_what_a_resumed_run_has_again_is_not_named(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, loop = KEPT[case]
    assert warnings(capsys, before=before, loop=loop) == []


def test_a_coroutine_that_another_awaits_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert warnings(
        capsys,
        before="inbox = {}",
        call="await inner(worker, inbox)",
        parameters="inbox",
        loop="inbox[k] = worker.params.clone()",
    ) == [sentence("'inbox'")]


def test_an_activity_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    activity = """async def activity():
            total = 0 * x
            while worker.counter("received") < 3:
                total.add_(await worker.comm.recv(other, 1))
                worker.increment("received")
"""
    assert warnings(
        capsys,
        before=activity,
        call="worker.spawn(activity())",
        loop="if k in (1, 5, 9): worker.comm.send(other, x.clone(), 1)",
    ) == [sentence("'total'")]


@pytest.mark.parametrize("network", ["sim", "gloo"])
@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_run_warns_at_its_first_checkpoint(
    network: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before, loop, names = LOST["a mapping of messages"]
    Path("mine.py").write_text(text(before, loop))
    assert main(["algo=./mine.py", *TINY, f"network={network}"]) == 0
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("warning")] == [sentence(names)]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.usefixtures("in_an_empty_folder")
def test_lost_state_is_named_again_at_the_resume_and_marked_in_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, loop, names = LOST["changed in place"]
    Path("mine.py").write_text(text(before, loop))
    command = ["algo=./mine.py", *TINY, "epochs=9", "logger=jsonl", "name=mine"]
    events_of(monkeypatch)[60] = kill
    with pytest.raises(Killed):
        main(command)
    assert capsys.readouterr().err.splitlines() == [sentence(names)]
    assert main(command) == 0
    assert capsys.readouterr().err.splitlines()[0] == (
        "warning: Mine: this run resumes without the tensors in 'm', so its results differ from "
        "those without an interruption; its summary says so."
    )
    assert json.loads(Path("results/runs/mine/summary.json").read_text())["lost_state"] == ["m"]
    assert main([*command, "name=whole"]) == 0
    assert "lost_state" not in json.loads(Path("results/runs/whole/summary.json").read_text())
    runs = read_runs([Path("results/runs")])
    states = runs.table.set_index("run")["state"]
    assert [*states[["mine", "whole"]]] == ["resumed without its state", "finished"]
    assert [group.finished for group in settings_in(runs)] == [True, True]

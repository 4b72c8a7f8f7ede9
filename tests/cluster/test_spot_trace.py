"""Traces of nodes that join and leave: ranks, absences and refusals."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from helpers.refusals import refusal

from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.spot_trace import read_trace
from sgp_runner.utils.errors import ConfigError

LINES = ("0,add,a", "0,add,b", "1500,add,c", "2000,remove,a", "2500,remove,c", "3000,add,d")


def trace(folder: Path, *lines: str) -> str:
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_node_takes_the_lowest_free_rank(tmp_path: Path) -> None:
    read = read_trace(path := trace(tmp_path, *LINES))
    # d takes the rank of a; c joins late and never comes back.
    assert read.absences == [(2, 0.0, 1.5), (0, 2.0, 3.0), (2, 2.5, inf)]
    assert (read.most, read.line) == (3, f"{path}, line 3")


def test_nodes_that_a_line_removes_first_are_there_from_the_start(tmp_path: Path) -> None:
    read = read_trace(trace(tmp_path, "0,add,x", "5000,remove,y", "7000,add,y"))
    assert (read.absences, read.most) == ([(0, 5.0, 7.0)], 2)


def test_a_trace_is_crashes_of_ranks(tmp_path: Path) -> None:
    faults = Faults(trace=trace(tmp_path, *LINES))
    assert faults.timed == (
        Event("crash", (2,), 0.0, 1.5),
        Event("crash", (0,), 2.0, 3.0),
        Event("crash", (2,), 2.5),
    )
    assert [death.ranks for death in faults.deaths] == [(2,)] and faults.any
    smaller = faults.subset({0: 0, 2: 1})
    assert smaller.trace is None and [event.ranks for event in smaller.timed] == [[1], [0], [1]]
    assert Faults(trace=faults.trace, trace_sha256=faults.trace_sha256) == faults
    trace(tmp_path, "0,add,a")
    with pytest.raises(ConfigError, match=r"^faults\.trace_sha256: .* has different contents"):
        Faults(trace=faults.trace, trace_sha256=faults.trace_sha256)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0,add,a", "1,remove,a", "2,remove,a"], "line 3: a is removed twice, first in line 2"),
        (["0,add,a", "1,add,a"], "line 2: a is added twice, first in line 1."),
        (["0,jump,a"], "line 1: '0,jump,a' is not 'milliseconds,add|remove,node'"),
        (["-5,add,a"], "line 1: '-5,add,a' is not 'milliseconds,add|remove,node' with a time of"),
        (["5,add,a", "3,add,b"], "line 2: 3 ms is before the line above."),
        ([], " is empty; write 'milliseconds,add|remove,node' lines."),
    ],
)
def test_lines_that_are_no_change_of_a_node(lines: list[str], message: str, tmp_path: Path) -> None:
    error = refusal(Faults, trace=trace(tmp_path, *lines))
    assert error.key == "faults.trace" and message in error.sentence


def test_a_run_has_the_nodes_of_its_trace(tmp_path: Path) -> None:
    faults = Faults(trace=trace(tmp_path, "0,add,a", "0,add,b"))
    faults.check(2, 0)
    with pytest.raises(ConfigError, match=r"line 2: 2 nodes are present, .* has 1: use nodes=2\.$"):
        faults.check(1, 0)
    with pytest.raises(ConfigError, match=r"faults\.trace: cannot read 'nowhere'"):
        Faults(trace="nowhere")

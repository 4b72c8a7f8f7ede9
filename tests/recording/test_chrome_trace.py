"""Traces of steps: what is drawn of simulated and of real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import make_experiment

from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.config.run import steps_in

TINY = ("model=mlp", "data=digits", "nodes=2", "batch_size=32", "epochs=0.3", "log_every=100")
# A gradient takes 50 ms, a message 10 ms.
CLOCK = (
    "cluster.step_seconds.default=0.05",
    "compute_time@cluster.compute_time=constant",
    "cluster.latency_seconds=0.01",
    "cluster.bandwidth=1e18",
    "cluster.compute.input_seconds=0",
    "cluster.links.message_overhead_seconds=0",
)


def events(tmp_path: Path, *overrides: str) -> list[dict[str, Any]]:
    experiment = make_experiment(tmp_path, *TINY, *CLOCK, *overrides)
    assert execute(experiment) is not None
    trace = json.loads((experiment.directory / "trace.json").read_text())
    assert trace["otherData"] == {"clock": "simulated"}
    return trace["traceEvents"]  # type: ignore[no-any-return]


def spans(of: list[dict[str, Any]], node: int) -> list[tuple[str, int, int]]:
    """Name, begin and end (ms) of what a node does and sends."""
    found = []
    begins = {}
    for event in of:
        if event["pid"] != node:
            continue
        if event["ph"] == "X":
            found.append((event["name"], event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            begins[event["id2"]["local"]] = event["ts"]
        elif event["ph"] == "e":
            found.append((event["name"], begins[event["id2"]["local"]], event["ts"]))
    return [(name, round(begin / 1000), round(end / 1000)) for name, begin, end in found]


def titles(of: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Groups with their names, places and rows."""
    return [(event["pid"], *event["args"].values()) for event in of if event["ph"] == "M"]


def test_sgp_computes_sends_and_waits(tmp_path: Path) -> None:
    of = events(tmp_path, "algo=sgp", "trace_steps=2-3")
    # Steps last 60 ms: gradients of 50 ms, and a message that takes 10 ms.
    assert sorted(spans(of, 0)) == [
        ("gradient 2", 120, 170),
        ("gradient 3", 180, 230),
        ("to node 1", 170, 180),
        ("to node 1", 230, 240),
        ("waits", 170, 180),
    ]
    assert titles(of) == [
        (0, "node"),
        (0, 0),
        (0, "computes"),
        (1, "node"),
        (1, 1),
        (1, "computes"),
    ]
    assert {event["args"]["bytes"] for event in of if event["ph"] == "b"} == {
        4 * 4811  # parameters and a weight
    }


def test_nodes_encode_and_decode(tmp_path: Path) -> None:
    """4,810 numbers take 10 ms to encode and 5 ms to decode."""
    times = "{encode_seconds: {int8: 2079ns}, decode_seconds: {int8: 1039.5ns}}"
    codec = ("algo.codec=int8", f"cluster.codecs={times}")
    of = events(tmp_path, "algo=ar_sgd", *codec, "trace_steps=0-1")
    assert sorted(spans(of, 0)) == [
        ("decodes", 60, 65),
        ("decodes", 70, 80),
        ("encodes", 50, 60),
        ("encodes", 130, 140),
        ("gradient 0", 0, 50),
        ("gradient 1", 80, 130),
        ("waits", 50, 80),
    ]
    assert spans(of, 2)[0] == ("collective", 60, 70)


def test_all_nodes_take_part_in_a_collective(tmp_path: Path) -> None:
    of = events(tmp_path, "algo=local_sgd", "algo.tau=2", "trace_steps=1")
    assert [name for name, *_ in spans(of, 0)] == ["gradient 1"]
    assert [name for name, *_ in spans(of, 2)] == ["collective"]
    assert titles(of)[-3:] == [(2, "all nodes"), (2, 2), (2, "computes")]


def test_messages_sent_right_before_the_first_traced_gradient_are_shown(tmp_path: Path) -> None:
    of = events(tmp_path, "algo=osgp", "trace_steps=2-3")
    for node, peer in ((0, 1), (1, 0)):
        assert (f"to node {peer}", 100, 110) in spans(of, node)


def test_a_trace_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    records = []
    for name, overrides in (("a", ()), ("b", ("trace_steps=1-2",))):
        experiment = make_experiment(tmp_path, *TINY, "algo=osgp", f"name={name}", *overrides)
        execute(experiment)
        *lines, _ = (experiment.directory / "metrics.jsonl").read_bytes().splitlines()
        records.append(lines)  # without the summary, which has the name
        assert experiment.digest == make_experiment(tmp_path / name, *TINY, "algo=osgp").digest
    assert records[0] == records[1]


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_real_rank_is_profiled() -> None:
    overrides = ["network=gloo", "algo=sgp", "trace_steps=1-6", "name=run", "logger=jsonl"]
    assert main([*TINY, *overrides]) == 0
    waits = []
    for rank in (0, 1):
        trace = json.loads(Path(f"results/runs/run/trace.rank{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"aten::addmm", "gradient 3"} <= names
        waits += [f"waits for a message from rank {1 - rank}" in names]
    assert any(waits)  # the slower rank may never wait


@pytest.mark.parametrize("text", ["", "3-2", "-1", "a", "1-2-3"])
def test_no_range_of_steps(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, f"trace_steps='{text}'"]) == 2
    assert capfd.readouterr().err == (
        f"sgp-run: trace_steps: '{text}' is not a range of steps: "
        "use 5 or 100-103, counted from 0.\n"
    )


def test_ranges_of_steps() -> None:
    assert [list(steps_in(text)) for text in ("5", "100-102")] == [[5], [100, 101, 102]]

"""Periods of timing studies, against simulations of every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import make_experiment, summary_of

SLOW = "cluster.bandwidth=100e6"  # a message takes 8 s, a gradient 0.23 s
CODING = (
    "cluster.codecs.encode_seconds={int8:4ns} cluster.codecs.decode_seconds={int8:2ns} "
    "cluster.codecs.overlap=true"
)
HETEROGENEOUS = "cluster.bandwidth=1e9 cluster.compute.heterogeneity=0.2"


def timed(results: Path, overrides: str) -> tuple[dict[str, Any], dict[tuple[int, int], Any]]:
    """The summary of a timing study and its training records, by rank and step."""
    more = ("model=timing_only", "model.sample_steps=61", "logger=jsonl", "log_every=1")
    experiment = make_experiment(results, *more, *overrides.split())
    summary = summary_of(experiment)
    lines = (experiment.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return summary, {(record["rank"], record["step"]): record for record in records}


@pytest.mark.parametrize(
    ("algo", "nodes", "cluster", "simulated"),
    [
        ("algo=ar_sgd", 2, "", 17),
        ("algo=ar_sgd", 8, SLOW, 17),
        ("algo=d_psgd", 4, "", 17),
        ("algo=d_psgd", 8, SLOW, 17),
        ("algo=sgp", 2, HETEROGENEOUS, 17),
        ("algo=sgp", 4, "cluster.links.duplex=full", 17),
        ("algo=sgp", 8, SLOW, 25),
        ("algo=osgp algo.tau=1", 4, HETEROGENEOUS, 25),
        ("algo=osgp algo.tau=1", 8, SLOW, 25),
        ("algo=slowmo algo.tau=6", 8, "", 19),
        ("algo=slowmo algo.tau=3 algo.base=sgp", 4, HETEROGENEOUS, 19),
        ("algo=local_sgd algo.tau=4", 4, HETEROGENEOUS, 13),
        ("algo=diloco algo.period=5", 8, SLOW, 16),
        ("algo=diloco algo.period=5 algo.overlap=delayed", 4, SLOW, 21),
        ("algo=streaming_diloco algo.period=7 algo.delay=2", 4, SLOW, 33),
        ("algo=noloco algo.period=3 algo.topology=ring", 4, HETEROGENEOUS, 25),
        (f"algo=ar_sgd algo.codec=int8 {CODING}", 4, HETEROGENEOUS, 17),
        (f"algo=choco_sgd algo.codec=int8 algo.layout=released {CODING}", 4, SLOW, 17),
    ],
)
def test_periods_change_no_time(
    algo: str, nodes: int, cluster: str, simulated: int, tmp_path: Path
) -> None:
    overrides = f"{algo} nodes={nodes} cluster=sgp_ethernet {cluster}"
    every, expected = timed(tmp_path / "every", overrides)
    summary, records = timed(tmp_path / "periods", f"{overrides} model.periods=true")
    assert summary["simulated_steps"] == simulated and summary["steps"] == 61
    assert records.keys() == expected.keys() and len(records) == 61 * nodes
    for key, record in records.items():
        assert record["time_s"] == pytest.approx(expected[key]["time_s"], rel=1e-12, abs=0)
        for name in ("epoch", "lr", "bytes_sent", "staleness"):
            assert record[name] == expected[key][name]
    assert summary["hours"] == pytest.approx(every["hours"], rel=1e-12, abs=0)
    assert summary["bytes_per_node"] == every["bytes_per_node"]
    coded = pytest.approx(every.get("coding_s", 0.0), rel=1e-12, abs=0)
    assert summary.get("coding_s", 0.0) == coded


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("algo=sgp cluster=ethernet_10g", "cluster.compute_time is not constant"),
        ("algo=noloco cluster=sgp_ethernet", "the messages of NoLoCo do not repeat"),
        ("algo=ad_psgd cluster=sgp_ethernet", "the messages of AD-PSGD do not repeat"),
        ("algo=sgp cluster=sgp_ethernet faults.slow_nodes={1:2}", "the run has faults"),
        ("algo=sgp cluster=sgp_ethernet trace_steps=3", "trace_steps is set"),
        ("algo=diloco algo.period=30 cluster=sgp_ethernet", "no period was found"),
    ],
)
def test_a_run_without_periods_simulates_every_step(
    overrides: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        summary, _ = timed(tmp_path, f"{overrides} nodes=4 model.periods=true")
    assert summary["simulated_steps"] == summary["steps"] == 61
    assert f"Every step is simulated: {reason}." in caplog.text

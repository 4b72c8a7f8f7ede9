"""Times for a range of rates: those of the runs at both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import make_experiment, summary_of

from sgp_runner.assembly.dry_run import verify_calls
from sgp_runner.console.summary import outcome, stdout_console, summary_table
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.report.read.run_groups import cluster_name
from sgp_runner.utils.errors import ConfigError

TRAINED = (
    *("model=mlp", "nodes=4", "batch_size=32", "epochs=1", "eval_every=0.25"),
    "cluster.compute_time.cv=0.2",
)
STUDY = ("model=timing_only", "nodes=4", "model.sample_steps=12")


def summary(results: Path, *overrides: str) -> dict[str, Any]:
    return summary_of(make_experiment(results, *overrides))


def evaluations(results: Path, server: bool) -> dict[float, float]:
    """Return the seconds at which the last worker, or the server, is evaluated, by epoch."""
    found: dict[float, float] = {}
    records = [line for folder in (results / "runs").iterdir() for line in read_metrics(folder)]
    for record in records:
        if record["kind"] == ("average" if server else "eval"):
            found[record["epoch"]] = max(record["time_s"], found.get(record["epoch"], 0.0))
    return found


@pytest.mark.parametrize(
    "overrides",
    [
        "algo=sgp",
        "algo=ar_sgd cluster.collectives.overlap=0.5",
        "algo=slowmo algo.tau=3",
        "algo=pipe_sgd algo.compression=quantize8 faults=slow_link",
        "algo=ar_sgd algo.codec=int8 cluster.codecs.encode_seconds={int8:1us}",
        "algo=ps_sgd cluster.links.duplex=half",
    ],
)
@pytest.mark.parametrize("kind", [TRAINED, STUDY], ids=["trained", "study"])
def test_a_range_has_the_times_of_both_ends(
    overrides: str, kind: tuple[str, ...], tmp_path: Path
) -> None:
    """Times are monotone in the rate."""
    low, middle, high = (
        summary(tmp_path / rate, *kind, *overrides.split(), f"cluster.bandwidth={rate}")
        for rate in ("20Mbit/s", "50Mbit/s", "1Gbit/s")
    )
    both = summary(
        tmp_path / "range", *kind, *overrides.split(), "cluster.bandwidth=20Mbit/s..1Gbit/s"
    )
    assert low["time_s"] >= middle["time_s"] >= high["time_s"]
    times = {key for key in ("time_s", "ms_per_iteration", "hours") if key in low}
    assert times == {"time_s"} if kind == TRAINED else len(times) == 3
    for key in times:
        assert (both[key], both[f"{key}_fastest"]) == (low[key], pytest.approx(high[key]))
    assert both.get("average") == low.get("average")
    evaluated = evaluations(tmp_path / "1Gbit/s", server="ps_sgd" in overrides)
    assert dict(both.get("evaluated_fastest", ())) == pytest.approx(evaluated)
    assert len(evaluated) == (4 if kind == TRAINED else 0)


def test_both_times_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"clock": "simulated", "time_s": 16.8, "time_s_fastest": 5.75}
    stdout_console().print(summary_table(facts))
    assert "5.75 s to 16.8 s" in capsys.readouterr().out
    study = {"clock": "simulated", "ms_per_iteration": 40.0, "ms_per_iteration_fastest": 30.0}
    assert outcome(study) == "30 ms to 40 ms per iteration simulated"
    stdout_console().print(summary_table({"clock": "simulated", "time_s": 16.8}))
    assert "│ simulated time │ 16.8 s │" in capsys.readouterr().out


def test_tables_name_both_rates() -> None:
    machines = {"cluster.name": "lab", "cluster.links.bandwidth": [2e7, 1e9]}
    assert cluster_name(machines) == "lab (20 Mbit/s to 1 Gbit/s)"
    slower = {**machines, "cluster.links.bandwidth_up": 1e6}
    assert cluster_name(slower) == "lab (1 Mbit/s up, 20 Mbit/s down)"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("algo=ad_psgd", "the course of AD-PSGD with these settings depends on time"),
        ("algo=osgp", "the course of OSGP with these settings depends on time"),
        ("algo=sgp on_failure=continue", "the course of SGP with these settings depends on time"),
        ("cluster.bandwidth=[1e9,1e8]", "is not a lower and a higher rate"),
        ("cluster.bandwidth=[1e9]", "is not a lower and a higher rate"),
        ("cluster.bandwidth=[0,1e9]", "must be positive"),
        (
            "cluster.bandwidth=1ms",
            r"'1ms' is not a number in bit/s \(such as 100Mbit/s\) or an interval such as "
            r"4\.\.10Gbit/s\.",
        ),
    ],
)
def test_refused_ranges(overrides: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        words_of_both = (*TRAINED, "cluster.bandwidth=[1e8,1e9]", *overrides.split())
        verify_calls(make_experiment(tmp_path, *words_of_both).run)
    assert refused.value.key == "cluster.links.bandwidth"

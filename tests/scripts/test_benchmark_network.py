"""The benchmark over slow networks: how it counts, on literal values; its hosts and a small run,
where that is possible.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.paths import ROOT

SCRIPTS = ROOT / "scripts"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="network namespaces need root and iproute2",
)


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def write_records(path: Path, rank: int, times: dict[int, float]) -> None:
    lines = [
        {"kind": "train", "rank": rank, "step": step, "time_s": seconds}
        for step, seconds in times.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_time_of_a_step_leaves_out_the_first_ones_and_the_end(tmp_path: Path) -> None:
    from benchmarks.network_runs import step_seconds

    write_records(
        tmp_path / "metrics.jsonl", 0, {0: 8.0, 1: 9.0, 3: 10.0, 7: 12.0, 11: 14.0, 99: 99.0}
    )
    write_records(
        tmp_path / "metrics.rank1.jsonl", 1, {0: 0.0, 1: 1.0, 3: 2.0, 7: 5.0, 11: 8.0, 99: 99.0}
    )
    assert step_seconds(tmp_path, 2, asynchronous=False) == (4 / 8 + 6 / 8) / 2
    assert (
        step_seconds(tmp_path, 2, asynchronous=True) == 2 * (4 / 8 + 6 / 8) / 2
    )  # as many steps of two nodes together
    write_records(
        tmp_path / "metrics.rank1.jsonl", 1, {0: 0.0, 1: 1.0, 5: 2.0, 11: 8.0}
    )  # too slow to count
    assert step_seconds(tmp_path, 2, asynchronous=True) == 2 * 4 / 8


def test_a_pair_has_an_order_if_it_differs_by_more_than_five_percent() -> None:
    from benchmarks.network import accuracy, lost_to

    measured = {"a": 100.0, "b": 110.0, "c": 112.0}
    predicted = {"a": 105.0, "b": 121.0, "c": 100.8}
    results = {
        result.what: result for result in accuracy({"n": predicted}, {"n": measured}).results
    }
    assert results["error, n"].values == (
        pytest.approx(5.0),
        pytest.approx(10.0),
        pytest.approx(-10.0),
    )
    assert (results["mean error of all cells"].median, results["mean error of all cells"].met) == (
        pytest.approx(25 / 3),
        False,
    )
    assert (results["worst error"].median, results["pairs in the right order"].values) == (
        pytest.approx(10.0),
        (50.0,),
    )
    assert lost_to((150.0, 90.0), (100.0, 100.0)) == (pytest.approx(50.0), pytest.approx(-10.0))


def test_without_root_there_are_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.hosts import Hosts
    from benchmarks.measure import Skipped

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(Skipped, match="Virtual hosts need root, and ip and tc of iproute2."),
        Hosts(2),
    ):
        pass


@needs_root
def test_hosts_are_apart_and_leave_nothing_behind() -> None:
    from benchmarks.hosts import OWN, Hosts

    before = os.readlink(OWN)
    with Hosts(2) as hosts:
        hosts.shape(50e6)
        paths = [hosts.path(host) for host in range(2)]
        assert len({os.readlink(path) for path in paths} | {before}) == 3
        assert hosts.achieved(250_000) > 0
    assert not any(os.path.exists(path) for path in paths)
    assert os.readlink(OWN) == before


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_network_is_measured_and_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import network
    from benchmarks.network_runs import slug
    from reproduce.archives import members
    from sgp_runner.cli.replay import main as replay

    monkeypatch.setattr(network, "OUT", tmp_path)
    small = network.Network(2, 200e6, 4, repeats=1)
    column, summary = network.measure(
        [small], (small, replace(small, bits_per_second=400e6)), seconds=0.1
    )
    values = {result.what: result.values for result in column.results}
    assert set(values) >= {
        network.COMPUTE,
        *network.ALGORITHMS,
        "SGP, simulated before",
        "achieved",
    }
    assert all(value > 0 for each in values.values() for value in each)
    predicted = json.loads((tmp_path / "predicted.json").read_text())
    assert (
        predicted.keys() == {"2 nodes, 200 Mbit/s"}
        and predicted["2 nodes, 200 Mbit/s"].keys() == network.ALGORITHMS.keys()
    )
    assert (tmp_path / "cluster/n2_200mbit.yaml").exists()
    files = members(tmp_path / "recordings/n2_200mbit.tar.xz")
    assert {name.partition("-1/")[0] for name in files} == {
        slug(name) for name in (network.COMPUTE, *network.ALGORITHMS)
    }
    (tmp_path / "runs/sgp").mkdir(parents=True)
    for name, content in files.items():
        if name.startswith("sgp-1/"):
            (tmp_path / "runs/sgp" / name.partition("/")[2]).write_bytes(content)
    assert replay([str(tmp_path / "runs/sgp")]) == 0
    assert [result.what for result in summary.results][1:] == [
        "mean error of all cells",
        "worst error",
        "pairs in the right order",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_imitated_network_needs_no_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import imitated_network, network
    from benchmarks.network_runs import RIVALS

    monkeypatch.setattr(imitated_network, "OUT", tmp_path)
    monkeypatch.setattr(
        network.Network, "tolerance", 1.0
    )  # the machine may be busy with other things
    column, _ = imitated_network.measure(
        [network.Network(2, 50e6, 4, repeats=1, imitated=True)], seconds=0.1
    )
    values = {result.what: result.values for result in column.results}
    assert set(values) >= {
        network.COMPUTE,
        *network.ALGORITHMS,
        "SGP, simulated before",
        "achieved",
    }
    assert not set(values) & set(RIVALS)
    wire = network.num_bytes() * 8 / 50e6 * 1000  # ms
    assert all(
        value >= wire for name in ("AR-SGD", "D-PSGD", "SGP", "SlowMo") for value in values[name]
    )
    assert 0 < max(values["achieved"]) <= 50.0


def test_nothing_is_reported_of_links_that_are_not_as_slow_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import network
    from benchmarks.hosts import Here

    rates = {100e6: 96e6, 300e6: 280e6}
    monkeypatch.setattr(
        network.Bench, "achieved", lambda bench: (rates[bench.network.bits_per_second],)
    )
    monkeypatch.setattr(
        network.Bench, "predict", lambda bench, cells, *rates: dict.fromkeys(cells, 1.0)
    )
    monkeypatch.setattr(
        network.Bench,
        "times",
        lambda bench, cells: dict.fromkeys([network.COMPUTE, *cells], (1.0,)),
    )
    networks = [network.Network(2, rate, 4, imitated=True) for rate in rates]
    monkeypatch.setattr(network.Bench, "calibrate", lambda bench, seconds: None)
    benches = [network.Bench(Here(), each, tmp_path, tmp_path) for each in networks]
    tables = list(network.columns((benches[0], benches[1]), benches, 0.1))
    assert [(table.title, bool(table.results)) for table in tables] == [
        ("2 nodes, 100 Mbit/s", True),
        ("2 nodes, 300 Mbit/s", False),
        ("What the simulator predicted", True),
    ]
    assert (
        tables[1].text == "280.0 Mbit/s were achieved here, more than 5 % off: the processors are "
        "the limit, not the links, and nothing is reported."
    )

"""Measured networks that are simulated again, and hosts where root makes them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from helpers.paths import ROOT

SCRIPTS = ROOT / "scripts"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
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
    from benchmarks.rendezvous import step_seconds

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


def test_without_root_there_are_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.hosts import Hosts
    from benchmarks.measure import Skipped

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(Skipped, match="Virtual hosts need root, and ip of iproute2."),
        Hosts(2),
    ):
        pass


@needs_root
def test_hosts_are_apart_and_leave_nothing_behind() -> None:
    from benchmarks.hosts import OWN, Hosts

    before = os.readlink(OWN)
    with Hosts(2) as hosts:
        paths = [hosts.path(host) for host in range(2)]
        assert len({os.readlink(path) for path in paths} | {before}) == 3
    assert not any(os.path.exists(path) for path in paths)
    assert os.readlink(OWN) == before


def test_machines_at_another_rate_interpolate_between_two_calibrations() -> None:
    """Slower by 1 s/Gbit than the first; passing a byte costs 2 ns and 1 ns at the two rates."""
    from benchmarks.rendezvous import Profile, machines
    from sgp_runner.config.overrides import experiment_of

    profiles = (
        Profile(
            (f"cluster={name}",),
            experiment_of(
                [
                    *("model=timing_only", f"cluster.links.bandwidth={rate}"),
                    "cluster.hosts.cores_per_host=2",
                    f"cluster.hosts.passing_seconds_per_byte={cost}",
                ]
            ).run.cluster,
            rate,
        )
        for name, rate, cost in (("one", 250e6, 2e-9), ("two", 1e9, 1e-9))
    )
    choice, links, rings, passing = machines(tuple(profiles), 200e6)  # type: ignore[arg-type]
    assert choice == "cluster=one"
    assert float(links.rpartition("=")[2]) == pytest.approx(200e6)
    assert float(rings.rpartition("=")[2]) == pytest.approx(200e6)
    assert float(passing.rpartition("=")[2]) == pytest.approx(2e-9 + 1e-9 / 3)

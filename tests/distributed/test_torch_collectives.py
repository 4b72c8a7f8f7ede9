"""Collectives: several under way at once, on every backend; and what networks with an order of
their own need under random delays.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.clusters import changed
from helpers.paths import RANKS
from helpers.processes import run_world
from helpers.tiny import machines, run
from test_mpi import mpirun
from test_simulator import Custom

from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.torch_collectives import Hierarchy, named
from sgp_runner.utils.errors import LostConnection

RANK = str(RANKS / "collective_rank.py")


@pytest.mark.parametrize(
    ("network", "ranks", "devices", "said"),
    [
        ("gloo", 4, 1, None),
        ("paired", 4, 1, "in one order"),
        pytest.param("gloo", 4, 2, "in one order", marks=pytest.mark.slow),
        pytest.param("paired", 4, 2, "in one order", marks=pytest.mark.slow),
        ("hierarchical", 4, 2, "in one order"),
        pytest.param("hierarchical", 6, 3, "in one order", marks=pytest.mark.slow),
    ],
)
def test_collectives_and_pairs_of_messages_of_real_ranks_that_are_late_at_random(
    network: str,
    ranks: int,
    devices: int,
    said: str | None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Over pairs, and where devices share messages, all ranks wake in the same order."""
    run_world(tmp_path, ranks, RANK, network, str(devices))
    out = capfd.readouterr().out
    assert out.endswith(" 36\n") and out.startswith(said or "in ")


@pytest.mark.parametrize(
    ("device", "calls", "value"),
    [(0, ["ring of leaders", "broadcast in node"], 3.0), (1, ["broadcast in node"], 6.0)],
)
def test_the_order_of_a_hierarchical_all_reduce(
    device: int, calls: list[str], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device divides by the nodes; others only receive."""
    seen: list[str] = []

    def all_reduce(tensor: torch.Tensor, group: str, async_op: bool) -> SimpleNamespace:
        seen.append(f"ring of {group}")
        return SimpleNamespace(wait=lambda: None)

    def broadcast(tensor: torch.Tensor, group: str, group_src: int) -> None:
        seen.append(f"broadcast in {group}")

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    tensor = torch.tensor([6.0])
    Hierarchy("leaders", "node", 2, device).average(tensor)  # type: ignore[arg-type]
    assert seen == calls
    assert tensor.tolist() == [value]


def test_collectives_over_mpi() -> None:
    done = mpirun(3, RANK, "mpi", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 36\n")


def test_a_failed_allocation_is_no_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    with pytest.raises(LostConnection, match="^rank 3 lost it$"), named("lost it"):
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(torch.OutOfMemoryError), named("lost a connection"):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(RuntimeError, match="can't allocate memory"), named("lost a connection"):
        torch.empty(2**58)


def test_simulated_collectives_under_way_together() -> None:
    """Three nodes; awaited in another order than begun."""
    seen: dict[int, list[float]] = {}

    async def body(worker: Worker) -> None:
        first = worker.comm.all_reduce(torch.tensor([float(worker.rank)]))
        gathered = worker.comm.all_gather(torch.tensor([10.0 * worker.rank]))
        second = worker.comm.all_reduce(torch.tensor([float(worker.rank**2), 6.0]))
        seen[worker.rank] = [
            *(await second).tolist(),
            *[float(part) for part in await gathered],
            *(await first).tolist(),
        ]

    run(Custom(body), 3, 1, cluster=machines(LogNormalTime(0.5), latency=0.3))
    assert sorted(seen) == [0, 1, 2]
    assert all(
        values == pytest.approx([5 / 3, 6.0, 0.0, 10.0, 20.0, 1.0]) for values in seen.values()
    )


@pytest.mark.parametrize(
    ("collective", "duplex", "seconds"),
    [
        ("ring", "full", 3 * (2.0 + 5.0)),  # three rounds, each of which passes on a part of 5 s
        ("recursive_doubling", "full", 2 * 2.0 + 3 * 5.0),  # two rounds, of one part and of two
        ("ring", "half", 3 * (2.0 + 2 * 5.0)),
    ],
)
def test_the_time_and_bytes_of_an_all_gather(collective: str, duplex: str, seconds: float) -> None:
    """Four nodes with a part of 40 bytes each, at 8 bytes a second and 2 s."""
    ends: list[float] = []

    async def body(worker: Worker) -> None:
        await worker.comm.all_gather(torch.zeros(5, dtype=torch.float64))
        ends.append(worker.now)

    cluster = changed(machines(latency=2.0, bandwidth=64.0), collective=collective, duplex=duplex)  # type: ignore[arg-type]
    result = run(Custom(body), 4, 1, cluster=cluster)
    assert ends == [seconds] * 4
    assert [comm.num_bytes_sent for comm in result.simulation.comms] == [3 * 40] * 4

"""Workers that are gone for good: who goes on, from where, and as which run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from helpers.descent import descend
from helpers.experiments import instrumented, make_experiment, saved
from test_resume import RANDOM, events, finish, records  # noqa: F401

from sgp_runner.assembly.dry_run import verify_calls
from sgp_runner.assembly.start import execute
from sgp_runner.cluster.faults import Event
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.membership import Membership, full_membership, membership_of
from sgp_runner.core.scheduler import Deadlock
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import RankFailed

DIES = "faults.events=[{what: crash, ranks: [2], start: 3}]"
SETTINGS = (
    "model=mlp",
    "batch_size=32",
    "dtype=float64",
    "on_failure=continue",
    "cluster.step_seconds.default=0.2",
    "log_every=1",
    "eval_every=100",
)
SERVED = ("gap_aware", "async_diloco", "rennala", "ringmaster")
ASYNCHRONOUS = ("a2cid2", "ad_psgd", "swarm_sgd", *SERVED)
OWN = {
    "async_diloco": ("algo.period=3", "algo.momentum=0.5"),
    "a2cid2": ("algo.topology=bipartite",),  # a ring of three nodes has no pairs
    "relay_sgd": ("algo.fill=own",),
    "rennala": ("optim.momentum=0.9",),  # a quarter as many steps as gradients
}
ALGORITHMS = ("sgp", "osgp", "d_psgd", *ASYNCHRONOUS, "relay_sgd", "slowmo")


def simulate(folder: Path, *settings: str) -> tuple[Experiment, dict[str, object]]:
    experiment = make_experiment(folder, *SETTINGS, *settings)
    summary = execute(instrumented(experiment))
    assert summary is not None
    return experiment, summary


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_others_spend_the_whole_budget(algo: str, tmp_path: Path) -> None:
    experiment, summary = simulate(
        tmp_path, f"algo={algo}", *OWN.get(algo, ()), "nodes=4", "epochs=2", DIES
    )
    records = read_metrics(experiment.directory)
    (lost,) = (record for record in records if record["kind"] == "lost")
    assert (lost["ranks"], lost["nodes"], lost["time_s"], summary["lost"]) == ([2], 3, 8.0, [2])
    assert lost["steps"] == 2 * 14 * (3 if algo in ASYNCHRONOUS else 1)
    steps = {
        rank: [record for record in records if record["kind"] == "train" and record["rank"] == rank]
        for rank in range(4)
    }
    assert max(float(str(record["time_s"])) for record in steps[2]) <= 3
    last = [int(str(steps[rank][-1]["step"])) for rank in (0, 1, 3)]
    # 1437 samples in batches of 32 for three nodes: 14 steps of each in an epoch
    if algo in ASYNCHRONOUS:
        assert max(last) == 2 * 14 * 3 - 1
    else:
        assert last == [2 * 14 - 1] * 3
        assert sum(
            float(str(steps[rank][-1]["push_sum_weight"])) for rank in (0, 1, 3)
        ) == pytest.approx(3, abs=1e-12)
        again = [
            int(str(record["step"])) for record in steps[0] if float(str(record["time_s"])) > 8
        ]
        assert again[:-1] == list(range(round(float(str(lost["epoch"])) * 14), 28))
    assert float(str(summary["average"])) > 0.8


def test_a_hybrid_switches_at_the_same_step_everywhere(tmp_path: Path) -> None:
    """Whatever number of steps each survivor has taken, and lost, before."""
    overrides = (
        "algo=hybrid",
        "algo.first=sgp",
        "algo.then=d_psgd",
        "algo.switch_epoch=1.6",
        "cluster.compute.node_factors={1: 1.3}",
    )
    experiment, _ = simulate(tmp_path, *overrides, "nodes=4", "epochs=2", DIES)
    assert [
        (record["rank"], record["step"])
        for record in read_metrics(experiment.directory)
        if record["kind"] == "train"
    ][-3:] == [(0, 27), (1, 27), (3, 27)]


def test_the_rest_is_the_run_of_so_many_nodes(tmp_path: Path) -> None:
    """On a complete graph without momentum all models stay equal: gradient descent with four nodes'
    batches, then with three nodes'.
    """
    experiment, _ = simulate(
        tmp_path,
        "algo=sgp",
        "algo.topology=complete",
        "optim.momentum=0",
        "optim.schedule=constant",
        "epochs=1.5",
        "nodes=4",
        DIES,
    )
    # At 3 s rank 2 is in its 15th gradient: 14 are done, of 11 in an epoch; with three nodes an
    # epoch has 14.
    *_, (params, _) = descend(experiment.run, [(4, range(14)), (3, range(round(14 / 11 * 14), 21))])
    assert all(
        float((saved(experiment, rank)["params"] - params).abs().max()) < 1e-12 for rank in range(3)
    )


@pytest.mark.parametrize(
    "algo",
    [
        "sgp",
        pytest.param("ad_psgd", marks=pytest.mark.slow),
        pytest.param("gap_aware", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_without_them_to_the_same_bytes(
    algo: str,
    tmp_path: Path,
    events: list[int],  # noqa: F811
) -> None:
    settings = (
        "nodes=4",
        f"algo={algo}",
        "epochs=1.5",
        DIES,
        *RANDOM,
        "checkpoint.every_minutes=null",
    )
    whole, _ = simulate(tmp_path / "whole", *settings)
    needed = 10**9 - events[0]
    cut = make_experiment(tmp_path / "cut", *SETTINGS, *settings, "checkpoint.every_steps=2")
    assert finish(cut, events, Random(len(algo)), needed) > 0
    assert all(
        torch.equal(saved(whole, rank)["params"], saved(cut, rank)["params"]) for rank in range(3)
    )
    assert records(whole) == records(cut)


def test_deaths_one_after_the_other_down_to_one_node(tmp_path: Path) -> None:
    deaths = (
        "faults.events=[{what: crash, ranks: [1], start: 1}, {what: crash, ranks: [3], start: 2}, "
        "{what: crash, ranks: [2], start: 9}]"
    )
    experiment, summary = simulate(tmp_path, "algo=sgp", "nodes=4", "epochs=2", deaths)
    assert summary["lost"] == [1, 2, 3]
    lost = [record for record in read_metrics(experiment.directory) if record["kind"] == "lost"]
    assert [(record["ranks"], record["nodes"], record["time_s"]) for record in lost] == [
        ([1], 3, 6.0),
        ([3], 2, 7.0),
        ([2], 1, 14.0),
    ]


def test_without_rank_0_a_run_ends(tmp_path: Path) -> None:
    """As a real one does: its records would be gone."""
    death = "faults.events=[{what: crash, ranks: [0, 2], start: 3}]"
    with pytest.raises(
        RankFailed,
        match=r"^ranks 0, 2 are lost; the run needs rank 0, which writes the records.$",
    ):
        simulate(tmp_path, "algo=sgp", "nodes=4", "epochs=2", death)


def test_ranks_are_counted_anew(tmp_path: Path) -> None:
    event_list = (
        "{what: crash, ranks: [1, 4], start: 1}, {what: pause, ranks: [0, 1], start: 2, end: 3}, "
        "{what: partition, ranks: [2, 3], start: 4, end: 5}"
    )
    settings = (
        "nodes=5",
        "faults.slow_nodes={4: 2.0, 3: 3.0}",
        "cluster.compute.node_factors={2: 1.5}",
        f"faults.events=[{event_list}]",
    )
    run = make_experiment(tmp_path, "model=mlp", "algo=sgp", "on_failure=continue", *settings).run
    membership = full_membership(run).without([1], verify_calls).without([3], verify_calls)
    assert membership == membership_of(run, [0, 2, 3], verify_calls) and isinstance(
        membership, Membership
    )
    assert (membership.original_ranks, membership.run.nodes) == ((0, 2, 3), 3)
    assert (membership.run.faults.slow_nodes, membership.run.cluster.compute.node_factors) == (
        {2: 3.0},
        {1: 1.5},
    )
    assert membership.run.faults.events == [
        Event("pause", [0], 2, 3),
        Event("partition", [1, 2], 4, 5),
    ]


def test_without_its_server_a_run_ends(tmp_path: Path) -> None:
    run = make_experiment(
        tmp_path, "model=mlp", "algo=gap_aware", "nodes=2", "on_failure=continue"
    ).run
    with pytest.raises(
        RankFailed,
        match=r"^rank 2 is lost; the run needs the parameter server.$",
    ):
        full_membership(run).without([2], verify_calls)
    with pytest.raises(Deadlock, match="are down"):
        simulate(
            tmp_path / "run",
            "algo=gap_aware",
            "nodes=2",
            "epochs=1",
            "faults.events=[{what: crash, ranks: [2], start: 1}]",
        )

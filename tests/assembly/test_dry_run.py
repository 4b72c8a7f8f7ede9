"""Before a run, every rank does what the algorithm asks for once, dry; what does not fit together
is refused, by rank and step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from helpers.experiments import make_experiment
from helpers.refusals import refusal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.a2cid2 import A2CiD2
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.halos import HALoS
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.relay_sgd import RelaySGD
from sgp_runner.algorithms.rennala import Rennala
from sgp_runner.algorithms.ringleader import Ringleader
from sgp_runner.algorithms.ringmaster import Ringmaster
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.algorithms.swarm_sgd import SwarmSGD
from sgp_runner.assembly.dry_run import steps_of, verify_calls
from sgp_runner.assembly.execution import run_experiment
from sgp_runner.config.run import Run
from sgp_runner.core.optim import Adam, Constant, Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import (
    BipartiteExponential,
    Complete,
    DirectedExponential,
    Phase,
    RandomMatching,
    Ring,
)
from sgp_runner.topology.trees import Tree
from sgp_runner.utils.errors import ConfigError, RankFailed

SGP_2_THEN_1 = SGP(DirectedExponential(peers={0: 2, 10: 1}))
GOOD: dict[str, Algorithm] = {
    "ar_sgd": ARSGD(),
    "ar_sgd of parameters": ARSGD("parameters"),
    "d_psgd": DPSGD(Ring()),
    "d_psgd adapting first": DPSGD(RandomMatching(), "adapt_then_combine"),
    "ad_psgd": ADPSGD(BipartiteExponential(), averages_per_gradient=2),
    "a2cid2": A2CiD2(BipartiteExponential()),
    "sgp": SGP(DirectedExponential()),
    "osgp": OSGP(DirectedExponential(), tau=2, interval=2),
    "osgp as released": OSGP(DirectedExponential(), layout="released"),
    "slowmo": SlowMo(SGP(DirectedExponential())),
    "slowmo that averages buffers": SlowMo(LocalSGD(None), tau=5, buffers="average"),
    "slowmo over hybrid": SlowMo(Hybrid(ARSGD(), OSGP(Ring()), 5.0), tau=4),
    "local_sgd": LocalSGD(),
    "pipe_sgd": PipeSGD(depth=3, warmup_epochs=2),
    "pipe_sgd compressed": PipeSGD(depth=3, compression="quantize8", clip=1.0),
    "ps_sgd": PSSGD(),
    "gap_aware": GapAware(momentum="per_worker", gap="layer"),
    "async_diloco": AsyncDiLoCo(period=3, grace=1.5),
    "ringmaster": Ringmaster(),
    "ringmaster that stops workers": Ringmaster(1, stop=True),
    "rennala": Rennala(3),
    "ringleader": Ringleader(),
    "relay_sgd": RelaySGD(Tree()),
    "swarm_sgd": SwarmSGD(Complete(), 3),
    "swarm_sgd blocking": SwarmSGD(RandomMatching(), 2, "geometric", blocking=True),
    "halos": HALoS(1, 2, arrivals=3),
    "hybrid": Hybrid(SlowMo(LocalSGD(None)), SGP_2_THEN_1, 5.0),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A run of 15 epochs with an algorithm of its own."""
    run = make_experiment(tmp_path_factory.mktemp("runs"), "model=mlp", "batch_size=4").run
    return lambda algo, nodes, **settings: replace(run, algo=algo, nodes=nodes, **settings)


@pytest.mark.parametrize("name", GOOD)
def test_what_every_algorithm_does_fits_together(name: str, run_of: Callable[..., Run]) -> None:
    for nodes in (1, 2, 5, 8):
        if nodes > 2 or not name.startswith("hybrid"):  # two peers need three nodes
            verify_calls(run_of(GOOD[name], nodes))


def test_calls_depend_on_all_settings_but_those_of_the_machines(tmp_path: Path) -> None:
    def calls(*overrides: str) -> str:
        return make_experiment(tmp_path, "model=timing_only", "nodes=4", *overrides).run.calls

    assert calls("cluster.bandwidth=1e9") == calls("cluster=infiniband_100g")
    others = ["nodes=8", "algo=osgp", "algo.topology=ring", "cluster.bandwidth=[1e9,1e10]"]
    assert len({calls(), *map(calls, others)}) == 5


def test_momentum_buffers_and_devices_are_those_of_the_run(
    run_of: Callable[..., Run], tmp_path: Path
) -> None:
    verify_calls(run_of(SlowMo(SGP(Ring()), buffers="average"), 4, optim=Adam(Constant())))
    for overrides in (
        ("algo=ad_psgd",),
        ("algo=sgp", "network.gossip=leader"),
        ("algo=gap_aware",),
    ):
        verify_calls(
            make_experiment(
                tmp_path / overrides[0][5:],
                "network=gloo",
                "nodes=4",
                "gpus_per_node=2",
                *overrides,
            ).run
        )


def test_it_is_as_long_as_every_phase_needs(run_of: Callable[..., Run]) -> None:
    # Of the hybrid, 48 local steps in each of SlowMo's periods of 12; from epoch 5 to 10 two peers
    # on 9 nodes, 2 steps; then one, 4 steps, for 5 of 15.
    assert GOOD["hybrid"].phases(9) == [(0.0, 12), (5.0, 2), (10.0, 4)]
    for algo, nodes, steps in (
        (SGP(DirectedExponential()), 8, 3),
        (OSGP(DirectedExponential(), interval=4), 8, 12),
        (SlowMo(SGP(DirectedExponential())), 64, 48),
        (GOOD["hybrid"], 9, 36),
        (SGP(RandomMatching()), 300, 27),  # of 300 ranks in MAX_STEPS
        (SlowMo(SGP(Ring())), 8192, 2),
    ):
        assert steps_of(run_of(algo, nodes, batch_size=1)) == steps


# Ranks of which something does not fit.


@dataclass(frozen=True)
class Wrong:
    """Each of three steps is a gradient and then ``body``."""

    body: Callable[[Worker, int], Awaitable[object]]
    servers: int = 0
    title: ClassVar[str] = "Wrong"
    asynchronous: ClassVar[bool] = False

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Nothing is found here."""

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 3)]

    async def run(self, worker: Worker) -> None:
        for k in worker.steps():
            await worker.grad()
            await self.body(worker, k)


def skips(step: int) -> Callable[[Worker, int], Awaitable[object]]:
    async def body(worker: Worker, k: int) -> None:
        if (worker.rank, k) != (1, step):
            await worker.comm.all_reduce(worker.params.clone())

    return body


async def another_order(worker: Worker, k: int) -> None:
    if worker.rank == 1:
        await worker.comm.all_reduce(worker.params.clone())
    await worker.mean_grad()
    if worker.rank != 1:
        await worker.comm.all_reduce(worker.params.clone())


async def another_size(worker: Worker, k: int) -> None:
    await worker.comm.all_reduce(torch.zeros(5 if (worker.rank, k) == (0, 1) else 4))


async def one_leaves_early(worker: Worker, k: int) -> None:
    if worker.rank == 0:
        worker.comm.send(1, torch.zeros(1))
    if worker.rank == 1:
        await worker.comm.recv(0, tag=k // 2)


async def receives_first(worker: Worker, k: int) -> None:
    await worker.comm.recv((worker.rank - 1) % worker.size)
    worker.comm.send((worker.rank + 1) % worker.size, torch.zeros(1))


async def one_waits_in_a_collective(worker: Worker, k: int) -> None:
    if worker.rank == 1:
        await worker.comm.recv(2, tag=7)
    await worker.comm.all_reduce(torch.zeros(4))
    if worker.rank == 2:
        worker.comm.send(1, torch.zeros(1), tag=7)


async def one_too_many(worker: Worker, k: int) -> None:
    if worker.rank == 2:
        worker.comm.send(0, torch.zeros(1), tag=3)
    if worker.rank == 0 and k < 2:
        await worker.comm.recv(2, tag=3)


async def waits_for_anybody(worker: Worker, k: int) -> None:
    if worker.rank == 2:
        await worker.comm.recv_any()


async def does_not_await(worker: Worker, k: int) -> None:
    if worker.rank != 2 or k < 2:
        worker.comm.all_reduce(torch.zeros(4))


async def sends_to_itself(worker: Worker, k: int) -> None:
    worker.comm.send(worker.rank, torch.zeros(1))


async def sends_to_nobody(worker: Worker, k: int) -> None:
    worker.comm.send(k + 1 + worker.rank, torch.zeros(1))


async def all_take_part(worker: Worker, k: int) -> None:
    await worker.comm.all_reduce(torch.zeros(4))


async def never_ends(worker: Worker, k: int) -> None:
    while worker.rank == 1:
        await worker.grad()


async def fails(worker: Worker, k: int) -> None:
    if (worker.rank, k) == (1, 2):
        raise ZeroDivisionError("too few neighbours")


ORDER = (
    "; all ranks must call the same collectives in the same order (the model has 4 parameters here)"
)
BAD: dict[str, tuple[Callable[[Worker, int], Awaitable[object]], str]] = {
    "an all-reduce left out": (
        skips(1),
        (
            "in step 1 rank 2 would begin an all-reduce of 4 numbers, but rank 1 would begin an "
            f"all-reduce of 4 numbers, in step 2{ORDER}"
        ),
    ),
    "the last one left out": (
        skips(2),
        "in step 2 rank 0 would wait for rank 1 in an all-reduce of 4 numbers: rank 1 has ended",
    ),
    "another order": (
        another_order,
        (
            "in step 0 rank 0 would begin a mean of gradients of 4 numbers, but rank 1 would begin "
            f"an all-reduce of 4 numbers, in step 0{ORDER}"
        ),
    ),
    "another size": (
        another_size,
        (
            "in step 1 rank 2 would begin an all-reduce of 4 numbers, but rank 0 would begin an "
            f"all-reduce of 5 numbers, in step 1{ORDER}"
        ),
    ),
    "what never comes": (
        one_leaves_early,
        "in step 2 rank 1 would wait for a message from rank 0 (tag 1): rank 0 has ended",
    ),
    "a circle": (
        receives_first,
        (
            "ranks would wait in a circle: in step 0 rank 0 would wait for a message from rank 2, "
            "in step 0 rank 2 would wait for a message from rank 1, in step 0 rank 1 would wait "
            "for a message from rank 0"
        ),
    ),
    "a circle through a collective": (
        one_waits_in_a_collective,
        (
            "ranks would wait in a circle: in step 0 rank 1 would wait for a message from rank 2 "
            "(tag 7), in step 0 rank 2 would wait for rank 1 in an all-reduce of 4 numbers"
        ),
    ),
    "a message that is never received": (
        one_too_many,
        "in step 2 rank 2 would send rank 0 a message (tag 3) that is never received",
    ),
    "anybody": (
        waits_for_anybody,
        "in step 0 rank 2 would wait for a message from any rank, but none is sent",
    ),
    "a collective that is not awaited": (
        does_not_await,
        (
            "in step 2 rank 0 would begin an all-reduce of 4 numbers, in which rank 2 does not "
            "take part"
        ),
    ),
    "gradients without end": (
        never_ends,
        "in step 0 rank 1 would compute gradients endlessly; loop over worker.steps()",
    ),
    "to itself": (sends_to_itself, "in step 0 rank 0 would send to itself"),
    "to nobody": (sends_to_nobody, "in step 0 rank 2 would send to rank 3; ranks are 0 to 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_by_rank_and_step(
    name: str, run_of: Callable[..., Run]
) -> None:
    body, sentence = BAD[name]
    assert str(refusal(verify_calls, run_of(Wrong(body), 3))) == (
        f"algo: Wrong cannot run on 3 nodes: {sentence}."
    )


@dataclass(frozen=True)
class CountsItself(Algorithm):
    title: ClassVar[str] = "Count"

    async def run(self, worker: Worker) -> None:
        for _ in range(3):
            worker.params.sub_(worker.update(await worker.grad()))


def test_an_algorithm_that_leaves_steps_is_refused(run_of: Callable[..., Run]) -> None:
    assert refusal(verify_calls, run_of(CountsItself(), 2)).sentence == (
        "Count cannot run on 2 nodes: before step 0 rank 0 would end although it has steps left; "
        "loop over worker.steps()."
    )


def test_a_long_circle_is_cut_short(run_of: Callable[..., Run]) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "rank 7 would wait .*rank 6 would wait for a message from rank 5, and so on, 8 "
            r"ranks\.$"
        ),
    ):
        verify_calls(run_of(Wrong(receives_first), 8))


def test_servers_take_no_part_in_collectives(run_of: Callable[..., Run]) -> None:
    with pytest.raises(
        ConfigError,
        match="in step 0 rank 2, a server, would take part in an all-reduce of 4 numbers, which",
    ):
        verify_calls(run_of(Wrong(all_take_part, servers=1), 2))


def test_an_algorithm_that_fails_by_itself_is_refused(run_of: Callable[..., Run]) -> None:
    assert str(refusal(verify_calls, run_of(Wrong(fails), 3))) == (
        "algo: Wrong failed in its dry run without gradients: rank 1, step 2: "
        "ZeroDivisionError: too few neighbours."
    )


@pytest.mark.parametrize("network", ["sim", "gloo"])
def test_nothing_has_been_written_or_started_by_then(network: str, tmp_path: Path) -> None:
    experiment = make_experiment(
        tmp_path / "made", "model=mlp", f"network={network}", "nodes=2", f"results={tmp_path}"
    )
    wrong = replace(
        experiment,
        run=replace(experiment.run, algo=Wrong(skips(1)), results=str(tmp_path / "results")),
    )
    with pytest.raises(
        ConfigError,
        match="^algo: Wrong cannot run on 2 nodes: in step 1 rank 0 would begin an all-reduce",
    ):
        run_experiment(wrong)
    assert not (tmp_path / "results").exists()


def test_the_survivors_of_a_loss_are_proved_again(run_of: Callable[..., Run]) -> None:
    from sgp_runner.config.membership import full_membership

    async def needs_three(worker: Worker, k: int) -> None:
        if worker.size < 3:
            await receives_first(worker, k)

    with pytest.raises(
        RankFailed,
        match=(
            "^rank 1 is lost, and the others cannot continue: algo: Wrong cannot run on 2 nodes: "
            "ranks"
        ),
    ):
        full_membership(run_of(Wrong(needs_three), 3)).without([1], verify_calls)

"""Every algorithm, codec, graph and optimizer on the pretend GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from math import inf, nan, prod
from typing import Any, TypeAlias

import pytest
import torch
from gpu_rig.pretend_gpu import DEVICE, pretend_gpu
from gpu_rig.ranks import NODES, START, STEPS, sampled, train

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.a2cid2 import A2CiD2
from sgp_runner.algorithms.acco import ACCO
from sgp_runner.algorithms.accum_adam import AccumAdam
from sgp_runner.algorithms.acp_sgd import ACPSGD
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.choco_sgd import ChocoSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.d_squared import DSquared
from sgp_runner.algorithms.demo import DeMo
from sgp_runner.algorithms.des_loc import DESLOC
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.ef_sign import EFSign
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.gossip_pga import GossipPGA
from sgp_runner.algorithms.gradient_tracking import GradientTracking
from sgp_runner.algorithms.halos import HALoS
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.noloco import NoLoCo
from sgp_runner.algorithms.onebit_adam import OneBitAdam
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.powersgd import PowerSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.qg_dsgdm import QGDSGDm
from sgp_runner.algorithms.relay_sgd import RelaySGD
from sgp_runner.algorithms.rennala import Rennala
from sgp_runner.algorithms.ringleader import Ringleader
from sgp_runner.algorithms.ringmaster import Ringmaster
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.algorithms.sparseloco import SparseLoCo
from sgp_runner.algorithms.streaming_diloco import StreamingDiLoCo
from sgp_runner.algorithms.swarm_sgd import SwarmSGD
from sgp_runner.algorithms.zero_one_adam import ZeroOneAdam
from sgp_runner.config.choices import class_of, groups
from sgp_runner.core.codecs.casts import BF16, Identity
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.codecs.quantised import FP4, Int8, Sign, TwoBit
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.optim import SGD, AdamW, Constant, Muon, Optimizer
from sgp_runner.topology.finite_time import Base
from sgp_runner.topology.graphs import (
    BipartiteExponential,
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    Topology,
    Torus,
)
from sgp_runner.topology.trees import Tree
from sgp_runner.utils.errors import Diverged

CODECS: list[Codec] = [
    Identity(),
    BF16(),
    Int8(),
    FP4(),
    TwoBit(),
    Sign(),
    TopK(k=3, side=4),
    TopK(k=3, side=4, bits=2),
    LowRank(1),
]
SIGNS: list[Codec] = [Sign("l2"), Sign("l1", "vector"), Identity()]
ANY: list[Topology] = [DirectedExponential(), Base(), Ring()]
SYMMETRIC: list[Topology] = [Ring(), Base(), BipartiteExponential()]
STATIC: list[Topology] = [Ring(), Complete(), Torus()]
PAIRS: list[Topology] = [BipartiteExponential(), Ring()]
GROUPS: list[Topology] = [RandomMatching(), Ring(), Complete()]
NO_MOMENTUM = SGD(Constant(), momentum=0.0)
PLAIN = SGD(Constant(), nesterov=False)
COMPRESSIONS = ["none", "truncate16", "quantize8"]
Row: TypeAlias = tuple[int, Any, Any, Any, Algorithm]  # number, graph, codec, optimizer
ALL: list[Optimizer] = [SGD(Constant()), AdamW(Constant()), Muon(Constant(), iterations=1)]


@dataclass(frozen=True)
class Case:
    """An algorithm, made from one of the ``graphs`` and one of the ``codecs`` if it takes any."""

    make: Callable[..., Algorithm]
    graphs: Sequence[Topology | None] = (None,)
    codecs: Sequence[Codec | str | None] = (None,)
    optims: Sequence[Optimizer] = tuple(ALL)

    def rows(self, number: int) -> list[Row]:
        """Return all combinations, with the number of this case."""
        return [
            (number, graph, codec, optim, self.make(*filter(None, (graph, codec))))
            for graph, codec, optim in product(self.graphs, self.codecs, self.optims)
        ]


CASES = [
    Case(ARSGD),
    Case(lambda codec: ARSGD(codec=codec), codecs=CODECS),
    Case(lambda: ARSGD("parameters")),
    Case(DPSGD, SYMMETRIC),
    Case(lambda graph: DPSGD(graph, "adapt_then_combine"), SYMMETRIC),
    Case(SGP, ANY),
    Case(OSGP, ANY),
    Case(lambda graph: OSGP(graph, tau=0, interval=2), ANY),
    Case(lambda graph: OSGP(graph, push_sum_weight=False), ANY),
    Case(lambda graph: OSGP(graph, layout="released"), ANY),
    Case(lambda graph: OSGP(graph, layout="released_2019"), ANY),
    Case(lambda graph: SlowMo(SGP(graph), tau=2), ANY),
    Case(lambda graph: SlowMo(OSGP(graph), tau=2, exact_average=False), ANY),
    Case(lambda: SlowMo(LocalSGD(None), tau=2, buffers="average")),
    Case(lambda: LocalSGD(2)),
    Case(lambda code: PipeSGD(clip=0.1, compression=code), codecs=COMPRESSIONS),
    Case(lambda graph: Hybrid(ARSGD(), SGP(graph), 0.1), ANY),
    Case(PSSGD),
    Case(lambda: DiLoCo(2)),
    Case(lambda: DiLoCo(2, nesterov=False, weights="examples")),
    Case(lambda: DiLoCo(2, overlap="delayed")),
    Case(lambda: DiLoCo(2, overlap="eager")),
    Case(
        lambda codec: StreamingDiLoCo(codec, period=3, blocks=1, fragments=2, delay=1),
        codecs=CODECS,
    ),
    Case(lambda graph: NoLoCo(graph, period=2), GROUPS),
    Case(lambda codec: SparseLoCo(codec, period=2), codecs=CODECS),
    Case(lambda: SparseLoCo(TopK(3, 4), period=2, divide_by="senders")),
    Case(lambda: DeMo(k=3, side=4), optims=[NO_MOMENTUM]),
    Case(lambda: PowerSGD(1)),
    Case(lambda: PowerSGD(2, "released", start=1)),
    Case(lambda: ACPSGD(1)),
    Case(lambda: DESLOC(2, 1)),
    Case(lambda: RelaySGD(Tree())),
    Case(lambda: RelaySGD(Tree(1), "own")),
    Case(lambda codec: OneBitAdam(codec, 0.1), codecs=SIGNS, optims=ALL[1:2]),
    Case(lambda codec: ZeroOneAdam(codec, 0.1, 1, 1), codecs=SIGNS, optims=ALL[1:2]),
    Case(EFSign, codecs=CODECS),
    Case(ACCO),
    Case(lambda graph: AccumAdam(graph, 2), SYMMETRIC, optims=ALL[1:2]),
    Case(ChocoSGD, STATIC, CODECS),
    Case(lambda codec: ChocoSGD(Ring(), codec, layout="released"), codecs=CODECS),
    Case(QGDSGDm, SYMMETRIC, optims=ALL[:1]),
    Case(DSquared, STATIC),
    Case(GradientTracking, SYMMETRIC),
    Case(lambda graph: GradientTracking(graph, "diging"), SYMMETRIC),
    Case(lambda graph: GossipPGA(graph, 2), SYMMETRIC),
    Case(ADPSGD, PAIRS),
    Case(A2CiD2, PAIRS),
    Case(lambda: AsyncDiLoCo(2)),
    Case(GapAware, optims=ALL[:1]),
    Case(lambda: GapAware(gap="layer", momentum="per_worker"), optims=ALL[:1]),
    Case(lambda: GapAware(gap="global", momentum="dana"), optims=[PLAIN]),
    Case(lambda: GapAware("staleness"), optims=ALL[:1]),
    Case(lambda: Ringmaster(2, stop=True)),
    Case(lambda: Rennala(3)),
    Case(Ringleader),
    Case(lambda: HALoS(2, 2, arrivals=1)),
    Case(lambda graph: SwarmSGD(graph, 2), SYMMETRIC),
    Case(lambda graph: SwarmSGD(graph, 1, "geometric", blocking=True), SYMMETRIC),
]
EVERYTHING = [row for number, case in enumerate(CASES) for row in case.rows(number)]
SAMPLE = sampled([row[:4] for row in EVERYTHING])
ROWS = {row[:4]: row for row in EVERYTHING}
# Where an algorithm's host may wait for its device, and why. Records may, too.
ALLOWED = {
    # An exact average checks that no push-sum mass was lost, as nothing is in flight.
    ("scalar read", "core/push_sum.py average"),
    # Messages to a server end with the number of inner steps.
    ("scalar read", "algorithms/async_diloco.py AsyncDiLoCo.exchange"),
    ("scalar read", "algorithms/halos.py HALoS.apply"),
    ("scalar read", "algorithms/halos.py HALoS.serve_regions"),
    # Gradients and parameters end with the number of the server's steps.
    ("scalar read", "algorithms/rennala.py Rennala.serve"),
    ("scalar read", "algorithms/ringmaster.py Ringmaster.serve"),
    ("scalar read", "algorithms/ringmaster.py adopt"),
}
RECORDS = {
    ("scalar read", "core/worker.py Worker.push_sum_weight"),
    ("scalar read", "recording/divergence.py check_parameters"),
    ("scalar read", "recording/observer.py Observer.record_training"),
}


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU take steps as a GPU does; its fused kernel of SGD rounds less often."""
    monkeypatch.delattr(torch, "_fused_sgd_")


def name_of(row: Row) -> str:
    """Return the algorithm's title and what it is combined with."""
    return "-".join([row[4].title, *(str(part).split("(sch")[0] for part in row[:4] if part)])


def check(row: Row) -> None:
    """Models and buffers are those of a CPU, to the bit, and the host does not wait in a step."""
    _, graph, codec, optim, algo = row
    nodes = NODES + isinstance(graph, Base)  # of which the shares of five nodes differ
    on_cpu, on_gpu = (train(algo, optim, on_device, nodes) for on_device in (False, True))
    # Their sums have another order on a GPU.
    sums = isinstance(codec, TwoBit | Sign) or getattr(codec, "bits", 0) == 2
    same = partial(torch.allclose, rtol=1e-5, atol=1e-6) if sums else torch.equal
    for model, other in zip(on_gpu.models, on_cpu.models, strict=True):
        assert other.isfinite().all() and not torch.equal(other, START[:-1])
        assert same(model, other)
    for mine, others in zip(on_gpu.buffers, on_cpu.buffers, strict=True):
        assert all(map(same, mine, others))
    assert on_gpu.log.sites <= ALLOWED and on_gpu.log.unordered == {}
    assert sum(on_gpu.log.launches.values()) >= NODES * STEPS


@pytest.mark.parametrize("key", SAMPLE, ids=lambda key: name_of(ROWS[key]))
def test_a_sample_runs_as_on_a_cpu_without_a_host_sync_in_a_step(key: Any) -> None:
    check(ROWS[key])


@pytest.mark.slow
@pytest.mark.parametrize("row", EVERYTHING, ids=name_of)
def test_everything_runs_as_on_a_cpu_without_a_host_sync_in_a_step(row: Row) -> None:
    check(row)


@pytest.mark.parametrize("algo", [SGP(Ring()), SparseLoCo(Int8(), period=2)], ids=str)
def test_records_are_those_of_a_cpu_and_wait_for_the_device(algo: Algorithm) -> None:
    on_cpu, on_gpu = (train(algo, ALL[0], on_gpu=on_device, every=2) for on_device in (False, True))
    assert len(on_gpu.records) == 8 and on_gpu.records == on_cpu.records
    checks = {("scalar read", "core/codecs/codec.py check_finite")}
    assert on_gpu.log.sites == (RECORDS if isinstance(algo, SGP) else RECORDS | checks)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(
    ("algo", "bad", "step", "value"),
    [
        (ARSGD(codec=Int8()), inf, 2, "inf"),
        (ARSGD(codec=TwoBit()), nan, 2, "nan"),
        (ARSGD(codec=FP4()), -1e19, 2, "-1e+19"),
        (DeMo(k=3, side=4), 1e30, 2, "1e+29"),
        (PipeSGD(compression="quantize8"), nan, 2, "nan"),
    ],
    ids=str,
)
def test_a_message_that_cannot_be_coded_has_the_same_error_later(
    algo: Algorithm, bad: float, step: int, value: str, on_gpu: bool
) -> None:
    error = f"^rank 0 diverged at step {step}: its message has {re.escape(value)} in the tensor "
    with pytest.raises(Diverged, match=f"{error}blocks.0.up.weight$"):
        train(algo, NO_MOMENTUM, on_gpu, every=2, bad=bad)


def test_every_algorithm_and_every_codec_is_among_the_cases() -> None:
    classes = {type(row[4]) for row in EVERYTHING}
    assert {class_of("algo", name) for name in groups()["algo"]} == classes
    assert {class_of("codec", name) or TopK for name in groups()["codec"]} == {*map(type, CODECS)}


def test_the_sample_has_every_case_and_every_pair_of_what_they_are_made_with() -> None:
    assert {key[0] for key in SAMPLE} == {*range(len(CASES))}
    for i, j in combinations(range(1, 4), 2):
        pairs = {(row[i], row[j]) for row in EVERYTHING if None not in (row[i], row[j])}
        assert pairs == {(key[i], key[j]) for key in SAMPLE if None not in (key[i], key[j])}
    assert len(SAMPLE) < len(EVERYTHING) / 5


def test_the_launches_of_top_k_do_not_grow_with_the_number_of_chunks() -> None:
    counts = []
    for rows in (16, 64, 256):  # 4, 16 and 64 chunks of "a"
        shapes = {"a": (rows, 16), "b": (rows, 4, 4), "c": (7,), "d": (rows + 3, 16)}
        with pretend_gpu() as log:
            x = torch.linspace(-1, 1, sum(map(prod, shapes.values()))).to(DEVICE)
            codec = TopK(k=3, side=8)
            message = codec.encode(x, shapes, 0, lambda check: None)
            log.clear()
            codec.encode(x, shapes, 0, lambda check: None)
            codec.decode(message, shapes, x, 0)
        assert log.syncs == {}
        counts.append(sum(log.launches.values()))
    assert counts[0] < 120 and len({*counts}) == 1

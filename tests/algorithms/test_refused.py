"""Settings of algorithms and codecs that cannot work are refused by the key to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.recursion import ADAM, OPTIM, PLAIN, SHIFTS
from helpers.refusals import refusal
from helpers.tiny import sgd

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.a2cid2 import A2CiD2
from sgp_runner.algorithms.accum_adam import AccumAdam
from sgp_runner.algorithms.acp_sgd import ACPSGD
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.choco_sgd import ChocoSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.d_squared import DSquared
from sgp_runner.algorithms.des_loc import DESLOC
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.gap_aware import GapAware
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
from sgp_runner.algorithms.rennala import Rennala
from sgp_runner.algorithms.ringmaster import Ringmaster
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.algorithms.streaming_diloco import StreamingDiLoCo
from sgp_runner.algorithms.swarm_sgd import SwarmSGD
from sgp_runner.algorithms.zero_one_adam import ZeroOneAdam
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.quantised import Int8, TwoBit
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.optim import Cosine, WarmupCosine
from sgp_runner.topology.graphs import Complete, DirectedExponential, RandomMatching, Ring

ENDS = (
    "needs a learning rate above 0 at the end, when fast workers wait for slow workers: use "
    "optim.schedule=warmup_cosine, constant or steps."
)
# What makes it, the key, and the sentence unless it is the business of other tests.
REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: A2CiD2(Ring(), eta=-0.1), "algo.eta", ""),
    (lambda: A2CiD2(Complete()).check(4, OPTIM), "algo.topology", ""),
    (lambda: A2CiD2(Ring()).check(5, OPTIM), "algo.topology", ""),
    (lambda: AccumAdam(Ring(), 0), "algo.accumulate", ""),
    (lambda: AccumAdam(SHIFTS).check(4, ADAM), "algo.topology", ""),
    (lambda: AccumAdam(Ring()).check(4, OPTIM), "optim", ""),
    (lambda: ACPSGD(0), "algo.rank", ""),
    (lambda: ACPSGD(start=-1), "algo.start", ""),
    (lambda: ADPSGD(Ring(), averages_per_gradient=0), "algo.averages_per_gradient", ""),
    (lambda: ADPSGD(Ring()).check(5, OPTIM), "algo.topology", ""),
    (lambda: ADPSGD(Complete()).check(4, OPTIM), "algo.topology", ""),
    (lambda: ARSGD("parameters", TopK()), "algo.codec", ""),
    (
        lambda: AsyncDiLoCo(delay=0).check(4, sgd()),
        "algo.delay",
        "0 must be at least 1, or null.",
    ),
    (
        lambda: AsyncDiLoCo(c=0.3).check(4, sgd()),
        "algo.c",
        "must be from 0 to 1/N = 0.25, not 0.3.",
    ),
    (
        lambda: AsyncDiLoCo(grace=-1.0).check(4, sgd()),
        "algo.grace",
        "-1.0 must be zero or positive, and finite.",
    ),
    (
        lambda: AsyncDiLoCo(speeds=(1.0, 0.0)).check(4, sgd()),
        "algo.speeds",
        "[1.0, 0.0] must be positive numbers.",
    ),
    (
        lambda: AsyncDiLoCo(speeds=(1.0,)).check(4, sgd()),
        "algo.speeds",
        "1 speeds for nodes=4: give one per node.",
    ),
    (
        lambda: AsyncDiLoCo().check(4, sgd(schedule=Cosine())),
        "optim.schedule",
        f"Async DiLoCo {ENDS}",
    ),
    (
        lambda: AsyncDiLoCo().check(4, sgd(schedule=WarmupCosine(final=0.0))),
        "optim.schedule",
        f"Async DiLoCo {ENDS}",
    ),
    (lambda: ChocoSGD(Ring(), Identity(), gamma=1.5), "algo.gamma", ""),
    (lambda: ChocoSGD(RandomMatching(), Identity()).check(4, OPTIM), "algo.topology", ""),
    (lambda: DESLOC(0), "algo.period", "0 must be at least 1."),
    (lambda: DESLOC(2, 0), "algo.period_u", "0 must be at least 1, or null."),
    (lambda: DESLOC(2, 2, -1), "algo.period_v", "-1 must be at least 1, or null."),
    (
        lambda: DESLOC(2, 2, 2).check(4, OPTIM),
        "algo.period_v",
        "SGD has no second moment: leave it null.",
    ),
    (
        lambda: DESLOC(2, 2).check(4, sgd()),
        "algo.period_u",
        "SGD without momentum has no state: leave it null.",
    ),
    (lambda: DiLoCo(period=0), "algo.period", ""),
    (lambda: DiLoCo(lr=0.0), "algo.lr", ""),
    (lambda: DiLoCo(momentum=1.0), "algo.momentum", ""),
    (lambda: DPSGD(SHIFTS).check(4, OPTIM), "algo.topology", ""),
    (lambda: DSquared(Ring(), lazy=False).check(4, PLAIN), "algo.lazy", ""),
    (lambda: DSquared(RandomMatching()).check(4, PLAIN), "algo.topology", ""),
    (lambda: GapAware().check(4, ADAM), "optim", ""),
    (lambda: GapAware(momentum="dana").check(4, OPTIM), "algo.momentum", ""),
    (lambda: HALoS(regions=0).check(4, OPTIM), "algo.regions", ""),
    (lambda: HALoS(regions=5).check(4, OPTIM), "algo.regions", ""),
    (lambda: HALoS(period=0).check(4, OPTIM), "algo.period", ""),
    (lambda: HALoS(arrivals=0).check(4, OPTIM), "algo.arrivals", ""),
    (lambda: HALoS(delay=0).check(4, OPTIM), "algo.delay", ""),
    (lambda: HALoS(alpha=1.5).check(4, OPTIM), "algo.alpha", ""),
    (lambda: HALoS(global_lr=0.0).check(4, OPTIM), "algo.global_lr", ""),
    (lambda: HALoS(global_momentum=1.0).check(4, OPTIM), "algo.global_momentum", ""),
    (lambda: HALoS(global_delay=0).check(4, OPTIM), "algo.global_delay", ""),
    (lambda: HALoS(speeds=(1.0, 2.0)).check(4, OPTIM), "algo.speeds", ""),
    (lambda: HALoS(speeds=(1.0, 0.0)).check(4, OPTIM), "algo.speeds", ""),
    (lambda: HALoS().check(4, sgd(schedule=Cosine())), "optim.schedule", f"HALoS {ENDS}"),
    (lambda: Hybrid(ARSGD(), ADPSGD(Ring()), 1.0), "algo.then", ""),
    (lambda: Hybrid(PSSGD(), ARSGD(), 1.0), "algo.first", ""),
    (lambda: Hybrid(ARSGD(), ARSGD(), 0.0), "algo.switch_epoch", ""),
    (lambda: LocalSGD(0), "algo.tau", ""),
    (lambda: NoLoCo(RandomMatching(), momentum=0.9), "algo.gamma", ""),
    (lambda: NoLoCo(RandomMatching(), gamma=0.0), "algo.gamma", ""),
    (lambda: NoLoCo(RandomMatching()).check(5, OPTIM), "nodes", ""),
    (
        lambda: OneBitAdam(warmup_epochs=0),
        "algo.warmup_epochs",
        "0 must be positive and finite.",
    ),
    (
        lambda: OneBitAdam(Int8()),
        "algo.codec",
        "averaging in two phases sends signs, not int8: use codec=sign, sign_l2 or none.",
    ),
    (
        lambda: OneBitAdam().check(4, OPTIM),
        "optim",
        "1-bit Adam computes Adam's steps itself: use optim=adam or optim=adamw, not sgd.",
    ),
    (lambda: OSGP(SHIFTS, tau=-1), "algo.tau", ""),
    (lambda: OSGP(SHIFTS, interval=0), "algo.interval", ""),
    (lambda: PipeSGD(depth=0), "algo.depth", ""),
    (lambda: PipeSGD(clip=0.0), "algo.clip", ""),
    (lambda: PipeSGD(warmup_epochs=-1), "algo.warmup_epochs", ""),
    (lambda: PowerSGD(0), "algo.rank", ""),
    (lambda: PowerSGD(start=-1), "algo.start", ""),
    (lambda: QGDSGDm(Ring()).check(4, ADAM), "optim", ""),
    (lambda: Rennala(0), "algo.batch", "0 must be at least 1, or null."),
    (lambda: Ringmaster(0), "algo.limit", "0 must be at least 1, or null."),
    (lambda: SlowMo(LocalSGD(None), tau=0), "algo.tau", ""),
    (lambda: SlowMo(LocalSGD(None), alpha=0.0), "algo.alpha", ""),
    (lambda: SlowMo(LocalSGD(None), beta=1.0), "algo.beta", ""),
    (lambda: SlowMo(GapAware()), "algo.base", ""),
    (lambda: SlowMo(SlowMo(SGP(SHIFTS))), "algo.base", ""),
    (lambda: StreamingDiLoCo(Identity(), 3, delay=3), "algo.delay", ""),
    (lambda: StreamingDiLoCo(Identity(), alpha=1.1), "algo.alpha", ""),
    (lambda: SwarmSGD(Complete(), 0), "algo.period", ""),
    (lambda: SwarmSGD(DirectedExponential()).check(4, OPTIM), "algo.topology", ""),
    (lambda: TopK(k=0), "algo.codec.k", ""),
    (lambda: TopK(k=5, side=2), "algo.codec.k", ""),
    (lambda: ZeroOneAdam(freeze_epochs=0), "algo.freeze_epochs", ""),
    (lambda: ZeroOneAdam(kappa=0), "algo.kappa", ""),
    (lambda: ZeroOneAdam(doubling=0), "algo.doubling", ""),
    (lambda: ZeroOneAdam(max_period=0), "algo.max_period", ""),
    (lambda: ZeroOneAdam(TwoBit()), "algo.codec", ""),
    (lambda: ZeroOneAdam().check(4, OPTIM), "optim", ""),
]


# An algorithm, steps and epochs of a run that never does what it is for, those of one that does,
# and what is said of the first.
WARNED: list[tuple[Algorithm, tuple[int, float], tuple[int, float], str]] = [
    (
        AsyncDiLoCo(period=50),
        (49, 1.0),
        (50, 1.0),
        "Async DiLoCo exchanges once in 49 steps: algo.period=50 is longer than the run.",
    ),
    (
        OneBitAdam(),
        (100, 1.0),
        (100, 1.1),
        "1-bit Adam only warms up: algo.warmup_epochs=1 is not shorter than the run.",
    ),
    (
        ZeroOneAdam(),
        (100, 0.5),
        (100, 1.5),
        "0/1 Adam makes no local steps: algo.freeze_epochs=1 is not shorter than the run.",
    ),
]


@pytest.mark.parametrize(("algo", "short", "long", "sentence"), WARNED)
def test_a_run_that_is_too_short_for_its_algorithm_is_reported(
    algo: Algorithm, short: tuple[int, float], long: tuple[int, float], sentence: str
) -> None:
    assert (algo.warning(*short), algo.warning(*long)) == (sentence, None)


@pytest.mark.parametrize(("make", "key", "sentence"), REFUSED)
def test_what_cannot_work_is_refused_by_its_key(
    make: Callable[[], object], key: str, sentence: str
) -> None:
    error = refusal(make)
    assert (error.key, error.sentence if sentence else "") == (key, sentence)

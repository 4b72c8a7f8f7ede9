"""0/1 Adam against a recursion in the order of the released code."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.onebit import OneBit
from helpers.recursion import ADAM, assert_equal
from helpers.shaped import SPANS, START, D, gradient, trained
from helpers.tiny import Result

import sgp_runner as sgp
from sgp_runner.algorithms.zero_one_adam import ZeroOneAdam
from sgp_runner.config.choices import CLASSES, class_of
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.optim import AdamW, Constant
from sgp_runner.core.optim.adam import frozen_divisor
from sgp_runner.core.worker import Worker

STEPS, FREEZE = 24, 8  # steps, of which 4 are an epoch
LR, EPS = 0.05, 1e-8
UPDATES = {1, 2, 4, 6, 8}  # of the variance, with kappa = 2


# Means without coding: there are no errors to forget.
EXACT = SimpleNamespace(mean=lambda z: z.mean(axis=0), forget=lambda: None)


def root(v: np.ndarray) -> np.ndarray:
    """The root of ``v``, in each tensor at least a tenth of its root mean square."""
    parts = [np.sqrt(v[span]) for span in SPANS.values()]
    return np.concatenate([np.maximum(part, 0.1 * np.sqrt(np.mean(part**2))) for part in parts])


def recursion(n: int, onebit: Any, period: dict[int, int]) -> np.ndarray:
    """The released order, with u, for ``period`` steps between means from some steps on."""
    x, m = np.tile(START, (n, 1)), np.zeros((n, D))
    v, u, lr_sum, every = np.zeros(D), np.zeros((n, D)), 0.0, 1
    for t in range(1, STEPS + 1):
        g = np.stack([gradient(i, t - 1, x[i]) for i in range(n)])
        if t <= FREEZE:
            if t in UPDATES:
                mean = g.mean(axis=0)
                v = 0.98 * v + 0.02 * mean**2
            else:
                mean = onebit.mean(g)
            m = 0.9 * m + 0.1 * mean
            x = x - LR * m / (root(v) + EPS)
            continue
        if t == FREEZE + 1:
            onebit.forget()
        every = period.get(t, every)
        m = 0.9 * m + 0.1 * g
        d = LR * m / (root(v) + EPS)
        x, u, lr_sum = x - d, u - d, lr_sum + LR
        if t % every == 0 or t == STEPS:
            c = onebit.mean(u * (root(v) + EPS))
            m = np.tile(-c / lr_sum, (n, 1))
            x = x - u + c / (root(v) + EPS)
            u, lr_sum = np.zeros((n, D)), 0.0
    return x


def zero_one(codec: Any, n: int = 3, doubling: int = 4, longest: int = 3, **how: Any) -> Result:
    algo = ZeroOneAdam(codec, FREEZE / 4, 2, doubling, longest)
    return trained(algo, n, STEPS, **{"optim": ADAM, **how})


MEANS = (9, 10, 12, 16, 20, 24)  # steps with means, with doubling=1, longest=4
PERIOD = {FREEZE + 1: 1, FREEZE + 5: 2, FREEZE + 9: 3}


@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_zero_one_adam(n: int, scale: Any) -> None:
    assert_equal(zero_one(Sign(scale), n).x, recursion(n, OneBit(n, SPANS, scale), PERIOD))


def test_zero_one_adam_without_a_codec() -> None:
    assert_equal(zero_one(Identity()).x, recursion(3, EXACT, PERIOD))


def test_steps_that_update_the_variance_are_ever_further_apart() -> None:
    """16 steps, then 16 even ones, then 16 that 4 divides, and so on."""
    algo = ZeroOneAdam()
    found = [t for t in range(1, 200) if algo.updates_variance(t)]
    assert found == [*range(1, 17), *range(18, 49, 2), *range(52, 113, 4), *range(120, 200, 8)]
    assert {t for t in range(1, 9) if ZeroOneAdam(kappa=2).updates_variance(t)} == UPDATES


def test_steps_between_means_double_up_to_their_largest_number() -> None:
    periods = [ZeroOneAdam().period_after(steps) for steps in (0, 32767, 32768, 65536, 10**9)]
    assert periods == [1, 1, 2, 4, 16]


def test_zero_one_adam_with_exact_means_in_all_steps_is_momentum_with_a_frozen_root() -> None:
    states: list[tuple[np.ndarray, ...]] = []

    def note(_: Result, worker: Worker) -> None:
        if worker.rank == 0:
            kept = (worker.params, worker.buffers["mean"], worker.buffers["square"])
            states.append(tuple(t.numpy().copy() for t in kept))

    zero_one(Identity(), longest=1, each_step=note)
    x, m, v = states[FREEZE - 1]
    for t in range(FREEZE, STEPS):
        m = 0.9 * m + 0.1 * np.mean([gradient(i, t, x) for i in range(3)], axis=0)
        x = x - LR * m / (root(v) + EPS)
    assert_equal(states[-1][0], x)
    assert_equal(states[-1][1], m)
    assert np.array_equal(states[-1][2], v)


def test_parameters_and_momenta_of_all_workers_are_the_same_bytes_after_a_mean() -> None:
    seen: dict[int, list[bytes]] = {}

    def look(_: Result, worker: Worker) -> None:
        state = torch.cat([worker.params, worker.buffers["mean"]])
        seen.setdefault(worker.step + 1, []).append(state.numpy().tobytes())

    zero_one(Sign(), doubling=1, longest=4, optim=AdamW(Constant(), lr=LR), each_step=look)
    equal = [t for t, states in seen.items() if states == [states[0]] * 3]
    assert equal == [*range(1, FREEZE + 1), *MEANS]


def test_one_node_without_a_codec_takes_the_mean_of_its_last_momenta() -> None:
    momenta: list[np.ndarray] = []

    def note(_: Result, worker: Worker) -> None:
        momenta.append(worker.buffers["mean"].numpy().copy())

    result = zero_one(Identity(), 1, doubling=1, longest=4, each_step=note)
    # Means are in steps 12 and 16; in step 16 the momentum before the mean is not recorded.
    last = 0.9 * momenta[14] + 0.1 * gradient(0, 15, result.history[0][14])
    assert_equal(momenta[15], np.mean([*momenta[12:15], last], axis=0))


def test_weight_decay_of_zero_one_adam_shrinks_matrices_once_for_each_step() -> None:
    decay = AdamW(Constant(), lr=LR, weight_decay=0.1, clip=1e-30)
    x = zero_one(Sign(), optim=decay, doubling=1, longest=4).x[0]
    shrunk = START * np.prod(1 - LR * 0.1 * np.diff([*range(FREEZE + 1), *MEANS]))
    for name, expected in (("a", shrunk), ("b", START), ("c", shrunk)):
        np.testing.assert_allclose(x[SPANS[name]], expected[SPANS[name]], rtol=1e-9)


def test_bytes_of_zero_one_adam() -> None:
    """Three workers send two chunks of 3 scales and 3 bytes in each of two phases of a mean."""
    sent = zero_one(Sign(), doubling=1, longest=4).workers[0].comm.num_bytes_sent
    coded = FREEZE - len(UPDATES) + len(MEANS)
    assert sent == len(UPDATES) * round(4 / 3 * 8 * D) + coded * 2 * 2 * (3 * 4 + 3)


def test_a_parameter_without_gradients_takes_no_large_steps() -> None:
    """Its variance is 0, and its coded gradient is not: a step of its scale / eps diverged."""
    divisor = frozen_divisor(torch.tensor([4.0, 0.0, 0.0]), 1e-8, {"a": (2,), "b": (1,)})
    assert divisor.tolist() == pytest.approx([2.0, 0.1 * 2**0.5, 1e-8])


@pytest.mark.parametrize(("nodes", "accuracy"), [(2, 0.7), (4, 0.5)])
def test_the_default_trains(nodes: int, accuracy: float, tmp_path: Path) -> None:
    settings = (
        f"algo=zero_one_adam model=mlp nodes={nodes} epochs=1 eval_workers=false logger=jsonl"
    )
    assert sgp.run(settings, results=tmp_path).summary["average"] > accuracy


@pytest.mark.parametrize("algo", [*CLASSES["algo"]])
def test_settings_that_help_a_diverged_run_exist(algo: str) -> None:
    cls = class_of("algo", algo)
    assert set(cls.if_diverged) <= {f"algo.{field.name}" for field in fields(cls)} | {"optim.eps"}

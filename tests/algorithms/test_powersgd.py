"""PowerSGD and ACP-SGD against the recursions of their papers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import assert_equal
from helpers.shaped import OPTIM, PLAIN, SPANS, START, D, gradient, trained
from helpers.tiny import STEPS, Momentum

from sgp_runner.algorithms.acp_sgd import ACPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.powersgd import PowerSGD
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.matrices import Matrices
from sgp_runner.utils.seeding import generator

SIDES = {"a": (4, 6), "c": (3, 3)}


def first_q(rank: int) -> dict[str, np.ndarray]:
    """The random factors that all workers draw."""
    sizes = {name: (k, min(rank, m, k)) for name, (m, k) in SIDES.items()}
    count = sum(map(prod, sizes.values()))
    numbers = torch.randn(count, generator=generator(0), dtype=torch.float64)
    parts = numbers.split_with_sizes([*map(prod, sizes.values())])
    return {
        name: t.view(size).numpy() for (name, size), t in zip(sizes.items(), parts, strict=True)
    }


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd(rank: int) -> None:
    x, momentum, q = START, Momentum(OPTIM, np.zeros(D)), first_q(rank)
    e = {name: np.zeros((3, *sides)) for name, sides in SIDES.items()}
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x) for i in range(3)])
        out = g.mean(axis=0)
        for name, sides in SIDES.items():
            a = g[:, SPANS[name]].reshape(3, *sides) + e[name]
            p = np.linalg.qr((a @ q[name]).mean(axis=0)).Q
            own_q = a.swapaxes(1, 2) @ p
            q[name] = own_q.mean(axis=0)
            out[SPANS[name]] = (p @ q[name].T).reshape(-1)
            e[name] = a - p @ own_q.swapaxes(1, 2)
        x = x - momentum.step(out, x)
    assert_equal(trained(PowerSGD(rank)).x, np.tile(x, (3, 1)))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_acp_sgd(rank: int) -> None:
    x, momentum, q = START, Momentum(OPTIM, np.zeros(D)), first_q(rank)
    p: dict[str, np.ndarray] = {}
    e = {name: np.zeros((3, *sides)) for name, sides in SIDES.items()}
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x) for i in range(3)])
        out = g.mean(axis=0)
        for name, sides in SIDES.items():
            a = g[:, SPANS[name]].reshape(3, *sides) + e[name]
            if k % 2 == 0:
                q[name] = np.linalg.qr(q[name]).Q
                factors = a @ q[name]
                e[name], p[name] = a - factors @ q[name].T, factors.mean(axis=0)
            else:
                p[name] = np.linalg.qr(p[name]).Q
                factors = a.swapaxes(1, 2) @ p[name]
                e[name], q[name] = a - p[name] @ factors.swapaxes(1, 2), factors.mean(axis=0)
            out[SPANS[name]] = (p[name] @ q[name].T).reshape(-1)
        x = x - momentum.step(out, x)
    assert_equal(trained(ACPSGD(rank)).x, np.tile(x, (3, 1)))


@pytest.mark.parametrize("error", ["local", "released"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_powersgd_of_full_rank_is_ar_sgd(n: int, error: Any) -> None:
    assert_equal(trained(PowerSGD(4, error), n).x, trained(ARSGD(), n).x)


def test_acp_sgd_of_square_matrices_of_full_rank_is_ar_sgd() -> None:
    coded, exact = trained(ACPSGD(4)).x, trained(ARSGD()).x
    for name in ("b", "c"):
        assert_equal(coded[:, SPANS[name]], exact[:, SPANS[name]])
    assert np.abs(coded - exact)[:, SPANS["a"]].max() > 0.05  # Q has 4 of 6 columns


@pytest.mark.parametrize(
    "algo", [PowerSGD(1), PowerSGD(2, "released"), ACPSGD(1), ACPSGD(2)], ids=str
)
def test_results_of_powersgd_and_acp_sgd_and_the_error_left_are_the_sum_of_gradients(
    algo: Any,
) -> None:
    result = trained(algo, optim=PLAIN)
    models, total = [START, *result.history[0]], np.zeros(D)
    for k, at in enumerate(models[:STEPS]):
        total += np.mean([gradient(i, k, at) for i in range(3)], axis=0)
    left = np.mean([worker.state["error"].numpy() for worker in result.workers], axis=0)
    assert_equal((START - models[-1]) / 0.2 + left, total)
    assert np.abs(left[SPANS["b"]]).max() == 0 < np.abs(left[SPANS["a"]]).max()


def test_both_errors_of_powersgd_give_the_same_models_but_released_errors_grow() -> None:
    assert_equal(trained(PowerSGD(1)).x, trained(PowerSGD(1, "released")).x)
    grown = {}
    for error in ("local", "released"):
        algo: Any = PowerSGD(1, error)  # type: ignore[arg-type]
        ends = [trained(algo, 2, steps, PLAIN).workers[0] for steps in (12, 120)]
        first, last = (float(worker.state["error"].norm()) for worker in ends)
        grown[error] = last / first
    assert grown["local"] < 1.5 < 5 < grown["released"]


def test_powersgd_of_a_constant_matrix_finds_the_best_one_of_its_rank() -> None:
    """Without error feedback: the products approach the truncated singular value decomposition."""
    matrices = Matrices({"m": (6, 5), "v": (2,)}, 2)
    x = torch.randn(32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, v = np.linalg.svd(x[:30].view(6, 5).numpy())
    q = matrices.random_q(x)
    for _ in range(400):
        p = matrices.orthonormal(matrices.times_q(x, q), matrices.p_sizes)
        q = matrices.times_p(x, p)
    found = matrices.product(p, q, matrices.vectors(x))
    assert_equal(found[:30].view(6, 5).numpy(), u[:, :2] @ np.diag(s[:2]) @ v[:2])
    assert torch.equal(found[30:], x[30:])


def test_powersgd_and_acp_sgd_start_with_exact_steps() -> None:
    for algo in (PowerSGD(1, start=STEPS), ACPSGD(1, start=STEPS)):
        assert np.array_equal(trained(algo).x, trained(ARSGD()).x)
    assert not np.array_equal(trained(PowerSGD(1, start=STEPS - 1)).x, trained(ARSGD()).x)


@pytest.mark.parametrize(
    ("algo", "numbers"),
    [
        # Per step r (4 + 3) + 2 numbers, and r (6 + 3).
        (PowerSGD(2), STEPS * (2 * 7 + 2 + 2 * 9)),
        (ACPSGD(2), STEPS // 2 * (2 * 7 + 2 + 2 * 9 + 2)),
        (PowerSGD(2, start=2), 2 * D + (STEPS - 2) * (2 * 7 + 2 + 2 * 9)),
    ],
    ids=str,
)
def test_bytes_of_powersgd_and_acp_sgd(algo: Any, numbers: int) -> None:
    result = trained(algo, n=2)
    # An all-reduce of two workers sends each number once, in float64.
    assert [worker.comm.num_bytes_sent for worker in result.workers] == [8 * numbers] * 2


def resnet_18() -> dict[str, tuple[int, ...]]:
    """The shapes of ResNet-18 for images of 32 x 32 in ten classes."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3)]
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        shapes += [(width, before, 3, 3), *[(width, width, 3, 3)] * 3]
        shapes += [(width, before, 1, 1)] * (before != width)
    shapes += [shape[:1] for shape in shapes for _ in range(2)]  # of batch norms
    return {str(i): shape for i, shape in enumerate([*shapes, (10, 512), (10,)])}


@pytest.mark.parametrize(
    ("rank", "ratio", "mebibytes"), [(1, 243.3, 4.21), (2, 135.8, 7.53), (4, 72.1, 14.18)]
)
def test_bytes_of_powersgd_are_the_published_ones_of_resnet_18(
    rank: int, ratio: float, mebibytes: float
) -> None:
    """An epoch of CIFAR-10, 24 steps: published as 1023, 4, 8 and 14 MB."""
    count = sum(map(prod, resnet_18().values()))
    assert count == 11_173_962
    assert round(4 * count * 24 / 2**20, 1) == 1023.0
    sizes = Matrices(resnet_18(), rank)
    numbers = sum(sizes.p_sizes) + sum(sizes.v_sizes) + sum(sizes.q_sizes)
    assert round(count / numbers, 1) == ratio
    assert round(4 * numbers * 24 / 2**20, 2) == mebibytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_basis_in_half_precision_is_that_of_float32(dtype: torch.dtype) -> None:
    found = Matrices({"a": (2, 2)}, 1).orthonormal(torch.tensor([3.0, 4.0], dtype=dtype), [2])
    assert found.dtype == dtype
    assert torch.equal(found, torch.tensor([-0.6, -0.8]).to(dtype))
    vector = torch.tensor([3.0, 4.0] * 8, dtype=dtype)
    coded = LowRank(1).to_message(vector, [(8, 2)], 1)
    assert torch.allclose(LowRank(1).from_message(coded, [(8, 2)], vector, 1), vector, rtol=0.02)

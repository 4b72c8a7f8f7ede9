"""Pipe-SGD against its recursion, and its compressed all-reduce."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import OPTIM, STEPS, Oracle, assert_equal
from helpers.tiny import START, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.pipe_sgd import PipeSGD


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_pipe_sgd_applies_the_mean_gradient_of_k_minus_1_steps_ago(depth: int, n: int) -> None:
    oracle, momentum, gradients = Oracle(n), Momentum(OPTIM), []
    for k in range(STEPS):
        gradients.append(oracle.mean_g(k))
        if k >= depth - 1:
            oracle.x = oracle.x - momentum.step(gradients[k - (depth - 1)], oracle.x[0])
    for g in gradients[STEPS - (depth - 1) :]:  # what is left in the pipeline
        oracle.x = oracle.x - momentum.step(g, oracle.x[0])
    assert_equal(run(PipeSGD(depth=depth), n, STEPS, OPTIM).x, oracle.x)


def test_pipe_sgd_warms_up_synchronously() -> None:
    """Four steps per epoch; with one epoch of warm-up steps 0 to 3 are synchronous, and step 4
    applies nothing yet.
    """
    oracle, momentum, gradients = Oracle(2), Momentum(OPTIM), []
    for k in range(STEPS):
        gradients.append(oracle.mean_g(k))
        if k != 4:
            oracle.x = oracle.x - momentum.step(gradients[k if k < 4 else k - 1], oracle.x[0])
    oracle.x = oracle.x - momentum.step(gradients[-1], oracle.x[0])
    assert_equal(run(PipeSGD(depth=2, warmup_epochs=1), 2, STEPS, OPTIM).x, oracle.x)


@pytest.mark.parametrize("compression", ["truncate16", "quantize8"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
def test_a_compressed_mean_is_the_same_everywhere_and_close_to_the_exact_one(
    compression: str, nodes: int
) -> None:
    plain = run(ARSGD(), nodes, 6, sgd(lr=0.1)).x
    result = run(PipeSGD(depth=1, compression=compression), nodes, 6, sgd(lr=0.1))  # type: ignore[arg-type]
    assert all(np.array_equal(result.x[0], other) for other in result.x)
    error = np.abs(result.x - plain).max()
    assert (
        error == 0 if nodes == 1 else 0 < error < 0.1 * 6 * 5 * 0.02
    )  # six steps, gradients below 5, under 2 % off each


@pytest.mark.parametrize(
    ("compression", "step"), [("truncate16", 2.0**-7), ("quantize8", 0.5 / 127)]
)
@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
def test_a_compressed_mean_errs_by_at_most_the_codecs_step(
    compression: str, step: float, nodes: int
) -> None:
    """Each of n encodings of a sum of up to n gradients is off by a share ``step`` of its largest;
    then all is divided by n.
    """
    largest = max(np.abs(gradient(i, 0, START)).max() for i in range(nodes))
    plain = run(ARSGD(), nodes, 1, sgd(lr=1.0)).x
    result = run(PipeSGD(depth=1, compression=compression), nodes, 1, sgd(lr=1.0)).x  # type: ignore[arg-type]
    assert 0 < np.abs(result - plain).max() <= 1.01 * nodes * largest * step


@pytest.mark.parametrize(
    ("compression", "num_bytes"), [("none", 8.0), ("truncate16", 2.0), ("quantize8", 1.0)]
)
def test_compression_sends_fewer_bytes(compression: str, num_bytes: float) -> None:
    """Two nodes exchange halves of a vector of 3: 2 + 1 elements each way, plus a scale of 4 bytes
    per chunk for int8.
    """
    result = run(PipeSGD(depth=1, compression=compression), 2, 5)  # type: ignore[arg-type]
    per_step = sum(comm.num_bytes_sent for comm in result.simulation.comms) / 5
    scales = 4 * 4 if compression == "quantize8" else 0
    assert per_step == 2 * 3 * num_bytes + scales


def test_a_compressed_all_reduce_travels_while_the_next_gradient_is_computed() -> None:
    """Two hops of 0.4 s each fit into a gradient of 1 s; the last one cannot be hidden."""
    pipelined = run(
        PipeSGD(depth=2, compression="truncate16"), 2, 10, cluster=machines(latency=0.4)
    )
    assert pipelined.simulation.clock.now == pytest.approx(10 + 0.8)
    in_turn = run(PipeSGD(depth=1, compression="truncate16"), 2, 10, cluster=machines(latency=0.4))
    assert in_turn.simulation.clock.now == pytest.approx(10 * 1.8)


def test_clipping_comes_after_averaging() -> None:
    """Opposite gradients cancel; clipped before averaging they would not."""
    clipped = run(PipeSGD(depth=1, clip=1e-3), 2, 1, sgd(lr=1.0)).x[0]
    start = run(PipeSGD(depth=1, clip=1e-9), 2, 1, sgd(lr=1.0)).x[0]
    assert np.linalg.norm(clipped - start) == pytest.approx(1e-3, rel=1e-2)
    loose = run(PipeSGD(depth=1, clip=1e6), 2, 3, sgd(lr=0.1)).x
    assert np.array_equal(loose, run(PipeSGD(depth=1), 2, 3, sgd(lr=0.1)).x)

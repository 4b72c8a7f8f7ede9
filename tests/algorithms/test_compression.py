"""Codecs by literal values, and the ring that carries them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny import START, gradient, machines, run, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.pipe_sgd import CODECS, PipeSGD
from sgp_runner.core.codecs.casts import Truncate16
from sgp_runner.core.codecs.quantised import Quantize8


def quantize8(values: torch.Tensor) -> torch.Tensor:
    return Quantize8().to_message(values, [], 0)


def dequantize8(message: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return Quantize8().from_message(message, [], like, 0)


def test_truncation_drops_bits_towards_zero() -> None:
    values = torch.tensor([1.0, -1.0, 1.0078124, -1.0078124, 3.1415927, 0.0])
    # bfloat16 has steps of 2^-7 between 1 and 2; rounding would give +-1.0078125 for the third and
    # fourth
    assert Truncate16().to_message(values, [], 0).tolist() == [1.0, -1.0, 1.0, -1.0, 3.140625, 0.0]


def test_quantisation_is_linear_in_the_largest_magnitude() -> None:
    values = torch.tensor([2.54, -2.54, 0.02, 0.011, 0.009, 0.0])
    message = quantize8(values)
    assert message.dtype == torch.int8
    assert message[:-4].tolist() == [127, -127, 1, 1, 0, 0]
    assert dequantize8(message, values).tolist() == pytest.approx(
        [2.54, -2.54, 0.02, 0.02, 0.0, 0.0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_and_nothing_survive_quantisation(dtype: torch.dtype) -> None:
    for length in (0, 3):
        values = torch.zeros(length, dtype=dtype)
        assert torch.equal(dequantize8(quantize8(values), values), values)


def test_the_smallest_numbers_survive_quantisation() -> None:
    assert quantize8(torch.tensor([1e-37, -5e-38, 0.0]))[:-4].tolist() == [127, -64, 0]


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


def test_every_codec_decodes_to_the_type_it_is_told() -> None:
    for codec in CODECS.values():
        like = torch.linspace(-1, 1, 7, dtype=torch.float64)
        decoded = codec.from_message(codec.to_message(like, [(7,)], 0), [(7,)], like, 0)
        assert decoded.dtype == torch.float64
        assert torch.allclose(decoded, like, atol=1 / 127)

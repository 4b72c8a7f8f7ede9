"""Codecs: literal values, bits on the wire, and what each of them preserves."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch

from sgp_runner.algorithms.pipe_sgd import CODECS
from sgp_runner.config.choices import groups
from sgp_runner.core.codecs.casts import BF16, Identity, Truncate16
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.codecs.packing import pack, unpack
from sgp_runner.core.codecs.quantised import FP4, Int8, Quantize8, Sign, TwoBit
from sgp_runner.core.codecs.top_k import TopK
from sgp_runner.core.optim import Shapes
from sgp_runner.utils.errors import NotFinite

SHAPES = {"a": (70, 130), "b": (50,), "c": (3, 4, 5), "d": (1,)}
COUNT = 70 * 130 + 50 + 60 + 1


def coded(codec: Codec, values: list[float], shapes: Shapes | None = None) -> list[float]:
    x, shapes = torch.tensor(values).float(), shapes or {"a": (len(values),)}
    decoded: list[float] = codec.decode(codec.encode(x, shapes, 0), shapes, x, 0).tolist()
    return decoded


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 12])
def test_numbers_are_packed_without_gaps(bits: int) -> None:
    values = torch.randint(2**bits, (53,), generator=torch.Generator().manual_seed(bits))
    packed = pack(values, bits)
    assert packed.dtype == torch.uint8 and len(packed) == -(-53 * bits // 8)
    assert unpack(packed, bits, 53).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Int8(), "0000f0406f12833b0000104108eb3300007fde02119a0d0520c010007f81"),
        (FP4(), "000080400000803b00000041d407702ef535e504f7"),
        (
            TwoBit(),
            "7877a73e000000007877cac0852dc8be88889d403680373a000000007cf230bb1cb751b9d044583b"
            "000010c100000000000000000000000000000000baaea6a60b",
        ),
        (Sign(), "3333ef3fa69bc43a00001041bddd01"),
        (Sign("l2"), "faa540401e1b073b00001041bddd01"),
        (Sign("l1", "vector"), "1e85df3fbddd01"),
        (
            TopK(2, 2),
            "0000a0bf0000f04000004040000000c00000803f0000c0c00000403f9a99993e6f12833a6f1203bb"
            "6f12833b000010c18d4404",
        ),
        (
            TopK(2, 2, 2),
            "3333d33e000000003333cdc06366e6bdcdcce2406f12833a00000000a69b44bb00000000a69b443b"
            "000010c100000000000000000000000000000000aea6b68d4404",
        ),
    ],
    ids=str,
)
def test_the_bytes_of_messages(codec: Codec, message: str) -> None:
    """They are those of earlier versions, whose runs repeat to the byte."""
    first = [0.5, -1.25, 3.0, 0.0, -0.0, 7.5, -2.0, 0.125, 1.0, -6.0, 0.75, 0.3]
    x = torch.tensor([*first, 1e-3, -2e-3, 5e-4, 0.0, 4e-3, -9.0])
    assert bytes(codec.encode(x, {"a": (3, 4), "b": (5,), "c": (1,)}, 1).tolist()).hex() == message


@pytest.mark.parametrize(
    ("codec", "num_bytes"),
    [
        (Identity(), 4 * COUNT),
        (BF16(), 2 * COUNT),
        (Int8(), COUNT + 4 * 4),
        (FP4(), -(-COUNT // 2) + 4 * 4),
        (TwoBit(), -(-COUNT // 4) + 4 * 20),
        (Sign(), -(-COUNT // 8) + 4 * 4),
        (Sign(per="vector"), -(-COUNT // 8) + 4),
        (LowRank(2), 4 * (2 * (70 + 130) + 50 + 2 * (3 + 20) + 1)),
        # The matrix has 2 x 3 blocks, the smallest of 6 x 2; the others are one chunk each.
        (TopK(k=10, side=64), 4 * 81 + -(-81 * 12 // 8)),
        (TopK(k=10, side=64, bits=2), 4 * 20 + -(-81 * 2 // 8) + -(-81 * 12 // 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_message_has_the_bits_that_it_counts_for(
    codec: Any, num_bytes: int, dtype: torch.dtype
) -> None:
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0)).to(dtype)
    message = codec.encode(x, SHAPES, 3)
    raw = codec.name in ("none", "low_rank") and dtype == torch.float64
    assert message.numel() * message.element_size() == num_bytes * (2 if raw else 1)
    decoded = codec.decode(message, SHAPES, x, 3)
    assert decoded.shape == x.shape and decoded.dtype == dtype
    # Without values, as in a timing study.
    x = x.to("meta")
    empty = codec.encode(x, SHAPES, 0)
    assert empty.is_meta and empty.dtype == message.dtype and len(empty) == len(message)
    assert codec.decode(empty, SHAPES, x, 0).shape == x.shape


@pytest.mark.parametrize(
    ("codec", "values", "decoded"),
    [
        (Identity(), [1.1, -2.0], pytest.approx([1.1, -2.0])),
        (BF16(), [1.0, 1.001, -3.02], [1.0, 1.0, -3.015625]),
        (Int8(), [1.27, 0.512, -0.004, 0.0], pytest.approx([1.27, 0.51, 0.0, 0.0])),
        # s = 4; halfway goes away from zero; 7 is cut off; below half of 2^-6 s is zero.
        (
            FP4(),
            [7.0, 4.0, 3.0, 2.9, -1.4, 0.0625, 0.03125, 0.031, 0.0],
            [4.0, 4.0, 4.0, 2.0, -1.0, 0.0625, 0.0625, 0.0, 0.0],
        ),
        (TopK(k=2, side=2), [1.0, -5.0, 2.0, 0.0, 3.0], [0.0, -5.0, 2.0, 0.0, 3.0]),
        # Mean 0.1, deviation 2.7019; width 4.0528: codes 2, 1, 3, 2, 2.
        (
            TwoBit(),
            [0.5, -3.5, 3.5, 0.0, 0.0],
            pytest.approx([1 / 6, -3.5, 3.5, 1 / 6, 1 / 6], abs=1e-6),
        ),
        # Only the error of l1 is never larger than the numbers, of which a few may be large.
        (Sign(), [1.0, -3.0, 0.0, -0.0], [1.0, -1.0, 1.0, 1.0]),
        (Sign("l2"), [1.0, -7.0], [5.0, -5.0]),
        (Sign("l1"), [9.0, *[0.0] * 8], [1.0] * 9),  # an error of sqrt(72)
        (Sign("l2"), [9.0, *[0.0] * 8], [3.0] * 9),  # of sqrt(108)
    ],
    ids=str,
)
def test_literal_values(codec: Codec, values: list[float], decoded: Any) -> None:
    assert coded(codec, values) == decoded


@pytest.mark.parametrize(
    ("codec", "decoded"), [(Sign(), [1.5, -1.5, 6.0]), (Sign(per="vector"), [3.0, -3.0, 3.0])]
)
def test_signs_have_a_scale_for_each_tensor_or_for_all(codec: Codec, decoded: list[float]) -> None:
    assert coded(codec, [1.0, -2.0, 6.0], {"a": (2,), "b": (1,)}) == decoded


@pytest.mark.parametrize(
    ("side", "shape", "kept"),
    [(2, (4, 4), [5, 7, 13, 15]), (16, (300,), [255, 299])],
    ids=["blocks of a matrix", "indices of one byte"],
)
def test_the_largest_number_of_each_chunk_is_kept(
    side: int, shape: tuple[int, ...], kept: list[int]
) -> None:
    decoded = coded(TopK(k=1, side=side), list(range(prod(shape))), {"a": shape})
    assert [i for i, value in enumerate(decoded) if value] == kept


def test_equal_chunks_of_all_tensors_are_in_the_order_of_the_vector() -> None:
    x = torch.tensor([0.0, 9.0, 1.0, 0.0, 5.0, 0.0, 7.0, 2.0, 8.0, 3.0, 4.0, 0.0, 6.0])
    codec, shapes = TopK(k=1, side=2), {"a": (2, 3), "b": (5,), "c": (1, 2)}
    message = codec.encode(x, shapes, 0)
    # Blocks 0 9 / 0 5 and 1 / 0 of a; 7 2 8 3 and 4 of b; 0 6 of c. Two bits per index.
    assert message[:20].view(torch.float32).tolist() == [9.0, 1.0, 8.0, 4.0, 6.0]
    assert unpack(message[20:], 2, 5).tolist() == [1, 0, 2, 0, 1]
    decoded = [0.0, 9.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0, 4.0, 0.0, 6.0]
    assert codec.decode(message, shapes, x, 0).tolist() == decoded


@pytest.mark.parametrize("codec", [Int8(), FP4(), TwoBit(), Sign(), TopK(k=3), TopK(k=3, bits=2)])
def test_zeros_stay_zeros(codec: Any) -> None:
    assert coded(codec, [0.0] * 5) == [0.0] * 5


@pytest.mark.parametrize("codec", [TwoBit(), TopK(k=10, bits=2)])
def test_two_bits_keep_the_sum_of_each_tensor(codec: Codec) -> None:
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
    decoded = codec.decode(codec.encode(x, SHAPES, 0), SHAPES, x, 0)
    sizes = [70 * 130, 50, 60, 1]
    kept = x if codec.name == "two_bit" else torch.where(decoded != 0, x, 0.0)
    for a, b in zip(decoded.split(sizes), kept.split(sizes), strict=True):
        assert float(a.sum()) == pytest.approx(float(b.sum()), abs=1e-3)


@pytest.mark.parametrize(
    "codec",
    [Identity(), BF16(), Int8(), FP4(), TwoBit(), Sign(), TopK(k=10), LowRank(1)],
    ids=lambda codec: codec.name,
)
def test_what_is_sent_later_is_less_than_there_was(codec: Any) -> None:
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
    lost = x - codec.decode(codec.encode(x, SHAPES, 1), SHAPES, x, 1)
    assert float(lost.norm()) < float(x.norm())


@pytest.mark.parametrize(("rank", "kept"), [(2, True), (1, False)])
def test_a_matrix_of_low_rank_is_kept(rank: int, kept: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, v = (torch.randn(*n, generator=generator).double() for n in ((9, 2), (2, 7), (5,)))
    x, shapes = torch.cat([(a @ b).reshape(-1), v]), {"a": (9, 7), "b": (5,)}
    codec = LowRank(rank)
    decoded = codec.decode(codec.encode(x, shapes, 4), shapes, x, 4)
    assert torch.allclose(decoded[:63], x[:63], atol=1e-12) == kept
    assert torch.equal(decoded[63:], v)


EVERY = [BF16(), FP4(), Identity(), Int8(), LowRank(), Sign(), TopK(k=10), TwoBit()]


@pytest.mark.parametrize("codec", [*EVERY, TopK(k=10, bits=2)], ids=str)
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "-3e+20"])
def test_a_number_that_is_not_finite_is_an_error_that_names_its_tensor(
    codec: Any, bad: str
) -> None:
    """So is one whose square is beyond float32, as in the standard deviation of two_bit."""
    for place, name in ((0, "a"), (70 * 130, "b"), (70 * 130 + 109, "c"), (COUNT - 1, "d")):
        x = torch.ones(COUNT)
        x[place] = float(bad)
        with pytest.raises(
            NotFinite, match=rf"^its message has {re.escape(bad)} in the tensor {name}$"
        ):
            codec.encode(x, SHAPES, 3)
    x[-1] = 1e18
    codec.encode(x, SHAPES, 3)


def test_every_codec_is_tried() -> None:
    assert {codec.name for codec in EVERY} == {*groups()["codec"]} - {"sign_l2", "top_k_2bit"}


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


@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_and_nothing_survive_quantisation(length: int, dtype: torch.dtype) -> None:
    values = torch.zeros(length, dtype=dtype)
    assert torch.equal(dequantize8(quantize8(values), values), values)


def test_the_smallest_numbers_survive_quantisation() -> None:
    assert quantize8(torch.tensor([1e-37, -5e-38, 0.0]))[:-4].tolist() == [127, -64, 0]


def test_every_codec_decodes_to_the_type_it_is_told() -> None:
    for codec in CODECS.values():
        like = torch.linspace(-1, 1, 7, dtype=torch.float64)
        decoded = codec.from_message(codec.to_message(like, [(7,)], 0), [(7,)], like, 0)
        assert decoded.dtype == torch.float64
        assert torch.allclose(decoded, like, atol=1 / 127)

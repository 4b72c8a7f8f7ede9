"""All codecs whose computation takes time, by name, with their default settings."""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.core.codecs.casts import BF16, Truncate16
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.cosine import CosineTopK
from sgp_runner.core.codecs.low_rank import LowRank
from sgp_runner.core.codecs.quantised import FP4, Int8, Quantize8, Sign, TwoBit
from sgp_runner.core.codecs.top_k import TopK

CODECS: Mapping[str, Codec] = {
    codec.name: codec
    for codec in (
        BF16(),
        CosineTopK(32, 64),
        FP4(),
        Int8(),
        LowRank(),
        Quantize8(),
        Sign(),
        TopK(),
        Truncate16(),
        TwoBit(),
    )
}

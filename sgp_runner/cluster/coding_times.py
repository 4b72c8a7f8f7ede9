"""Encoding and decoding times on a simulated node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sgp_runner.cluster.checks import check_not_negative
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.units import Seconds

Coding = Literal["encode", "decode"]
#: When a node waits for its own coding: in any case, unless coding overlaps, or in no case.
Waits = Literal["always", "serial", "never"]


@dataclass(frozen=True)
class CodingTimes:
    """Encoding and decoding times, 0 by default.

    A node codes one message at a time. A message of n numbers takes n times its codec's seconds per
    number, multiplied by the node's slow-down. ``low_rank`` counts every number of a matrix once
    for each column of its factors, because a product with r columns has r multiplications per
    number. PowerSGD and ACP-SGD also take this time: half of encode_seconds for a factor, and
    decode_seconds for a product of factors. The means of 1-bit Adam and 0/1 Adam encode a vector
    and a chunk of it as ``sign``, and decode three vectors and a chunk; a majority vote encodes a
    vector and decodes one per node.

    If coding does not overlap, gradients and coding of a node take turns, in the order in which
    they are requested, and a node waits until its coding has ended. If it overlaps, a node computes
    while it encodes and while it decodes its own message for error feedback. In both cases messages
    and collectives leave once all earlier coding of the node has ended, and a node waits until it
    has decoded received messages. Inside Pipe-SGD's ring no node waits, but messages do.

    encode_seconds: seconds to encode one number, by codec, e.g. ``{int8: 2ns}``; 0 for codecs that
        are not listed
    decode_seconds: seconds to decode one number, by codec
    overlap: whether a node codes and computes gradients at the same time
    """

    encode_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    decode_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    overlap: bool = False

    def __post_init__(self) -> None:
        for key in ("encode_seconds", "decode_seconds"):
            for name, value in getattr(self, key).items():
                check_not_negative(f"cluster.codecs.{key}.{name}", value)

    def check(self, codecs: Iterable[str]) -> None:
        """Raise ConfigError for a codec that is not in ``codecs``."""
        for key in ("encode_seconds", "decode_seconds"):
            for name in getattr(self, key):
                if name not in codecs:
                    raise ConfigError(
                        f"cluster.codecs.{key}.{name}",
                        "there is no such codec; remove it, or use one of "
                        f"{', '.join(sorted(codecs))}."
                        f"{nearest(name, sorted(codecs))}",
                    )

    def seconds(self, what: Coding, codec: str, numbers: float) -> float:
        """Return the time to encode or decode ``numbers`` on a node of normal speed."""
        seconds = self.encode_seconds if what == "encode" else self.decode_seconds
        return seconds.get(codec, 0.0) * numbers

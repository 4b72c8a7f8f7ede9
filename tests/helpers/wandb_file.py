"""Reads the file of an offline W&B run: after a header of 7 bytes, records in the log format of
LevelDB.

The file is cut into blocks of 32 KiB. Within a block follow chunks: checksum (4 bytes), length (2),
type (1), data; the type says whether the chunk is a whole record or its first, middle or last part.
Fewer than 7 bytes at the end of a block are padding. Checksums are not verified.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when protobuf loads it

BLOCK = 32 * 1024
HEADER = struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Record]:
    """Every record of the file, in order."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", data[:7]
    at, parts = 7, b""
    while at + HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        parts += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            yield Record.FromString(parts)
            parts = b""


def find_file(run_dir: Path) -> Path:
    """The one offline file below ``run_dir/wandb``."""
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    return path


def history(records: list[Record]) -> list[dict[str, object]]:
    """The logged rows, W&B's own columns (``_step``, ``_runtime`` ...) included."""
    return [
        {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def x_axes(records: list[Record]) -> dict[str, str]:
    """The x-axis of each metric or pattern of metrics that has one."""
    metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    return {
        metric.name or metric.glob_name: metric.step_metric
        for metric in metrics
        if metric.step_metric
    }

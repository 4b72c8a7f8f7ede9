#!/usr/bin/env python
"""Convert ImageNet's folders to shards for ``data.shards=``, in the order of the folders.

    scripts/make_shards.py [--root data/imagenet] [--out data/imagenet-shards] [--samples 1000]

Shards are tar archives in webdataset's layout. Existing shards are not written again, so run an
interrupted command again to resume it.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch

from sgp_runner.data.imagenet import ImageNet
from sgp_runner.utils.errors import ConfigError


def write(shard: Path, samples: Sequence[tuple[str, int]]) -> None:
    if shard.exists():
        return
    part = shard.with_name(f".{shard.name}.part")
    with tarfile.open(part, "w") as archive:
        for name, number in samples:
            path = Path(name)
            key = f"{path.parent.name}/{path.stem.replace('.', '_')}"  # a key ends at the first dot
            extension = path.suffix.lower().replace("jpeg", "jpg")
            for member, data in (
                (key + extension, path.read_bytes()),
                (f"{key}.cls", str(number).encode()),
            ):
                header = tarfile.TarInfo(member)
                header.size = len(data)
                archive.addfile(header, io.BytesIO(data))
    part.replace(shard)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Convert ImageNet's folders to shards for data.shards=."
    )
    parser.add_argument(
        "--root",
        default="data/imagenet",
        help="folder with train/<class>/ and val/<class>/ (%(default)s)",
    )
    parser.add_argument(
        "--out",
        default="data/imagenet-shards",
        help="folder for train-*.tar and val-*.tar (%(default)s)",
    )
    parser.add_argument("--samples", type=int, default=1000, help="samples per shard (%(default)s)")
    options = parser.parse_args(arguments)
    if options.samples < 1:
        parser.error(f"--samples must be at least 1, not {options.samples}")
    out = Path(options.out)
    try:
        folders = ImageNet(root=options.root, workers=0).load(torch.float32)
        out.mkdir(parents=True, exist_ok=True)
        for part, split in (("train", folders.train), ("val", folders.valid)):
            samples = list(zip(split.files, split.labels.tolist(), strict=True))
            for number, start in enumerate(range(0, len(samples), options.samples)):
                write(out / f"{part}-{number:06d}.tar", samples[start : start + options.samples])
        shards = ImageNet(shards=options.out, workers=0).load(torch.float32)
    except ConfigError as error:
        print(f"make_shards.py: {error}", file=sys.stderr)
        return 2
    for asked, written in ((folders.train, shards.train), (folders.valid, shards.valid)):
        if not torch.equal(asked.labels, written.labels):
            print(
                f"make_shards.py: {out} has other shards too, or with another --samples; remove "
                "them.",
                file=sys.stderr,
            )
            return 2
    print(
        f"{out}: {len(shards.train)} training images (complete: 1281167), {len(shards.valid)} "
        "validation images (complete: 50000)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Excerpts of published data sets, of a few kB, in the formats of their packages."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

IMAGES = 30  # that train; 20 validate


def idx(sizes: tuple[int, ...], content: bytes) -> bytes:
    """A file of bytes in the format of MNIST."""
    header = bytes([0, 0, 8, len(sizes)])
    return header + b"".join(size.to_bytes(4, "big") for size in sizes) + content


def images() -> dict[str, bytes]:
    """The four files; image i has 28 x 28 pixels of the value i, and the class i % 10."""
    files = {}
    for part, count in (("train", IMAGES), ("t10k", 20)):
        pixels = b"".join(bytes([i]) * 784 for i in range(count))
        files[f"{part}-images-idx3-ubyte"] = idx((count, 28, 28), pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx((count,), bytes(i % 10 for i in range(count)))
    return files


def tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def deb(path: Path, files: Mapping[str, bytes]) -> Path:
    """A Debian package of ``files``, of which the second member has an odd number of bytes."""
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": lzma.compress(tar(files)),
    }
    members = (
        f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        + content
        + b"\n" * (len(content) % 2)
        for name, content in parts.items()
    )
    path.write_bytes(b"!<arch>\n" + b"".join(members))
    return path


def tgz(path: Path, files: Mapping[str, bytes]) -> Path:
    """An npm package of ``files``."""
    path.write_bytes(gzip.compress(tar({f"package/{name}": files[name] for name in files})))
    return path

"""Files are read only if they are regular, and only up to a size and a depth."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sgp_runner.utils.reading import (
    MAX_DEPTH,
    MAX_LINE,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_lines,
    read_yaml,
)

NOT_REGULAR: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "Not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "Not a regular file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a link to itself": (lambda path: path.symlink_to(path), "Too many levels"),
    "a large file": (lambda path: path.touch() or os.truncate(path, 2**40), "Larger than"),
}


@pytest.mark.parametrize(
    "read", [read_bytes, read_json, read_yaml, lambda path: [*read_lines(path)]]
)
@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_only_regular_files_of_some_size_are_read(
    kind: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    make, reason = NOT_REGULAR[kind]
    make(tmp_path / "file")
    with pytest.raises(OSError, match=reason):
        read(tmp_path / "file")


def test_a_file_may_have_just_as_many_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    assert read_bytes(tmp_path / "file", 3) == b"123"
    with pytest.raises(OSError, match="Larger than 0 MiB"):
        read_bytes(tmp_path / "file", 2)
    with pytest.raises(OSError, match="Larger than 0 MiB"):
        read_bytes("/proc/self/stat", 10)


def test_lines_keep_their_ends(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\n\nb")
    assert [*read_lines(tmp_path / "file")] == [b"a\n", b"\n", b"b"]
    (tmp_path / "file").write_bytes(b"a\n" + b"x" * (MAX_LINE + 1))
    lines = read_lines(tmp_path / "file")
    assert next(lines) == b"a\n"
    with pytest.raises(ValueError, match="file, line 2: longer than 1048576 bytes"):
        next(lines)


def test_json_is_of_bounded_depth_and_finite() -> None:
    assert parse_json('{"a": [1, -2.5e300, null, 12345678901234567890]}') == {
        "a": [1, -2.5e300, None, 12345678901234567890]
    }
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert len(parse_json(f"[{'{},' * 1000}1]")) == 1001
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 100_000):
        with pytest.raises(ValueError, match="nested more than 40 deep"):
            parse_json(text)
    for text in ("NaN", "-Infinity", "1e999", "-1e999"):
        with pytest.raises(ValueError, match="is not finite"):
            parse_json(f"[{text}]")
    with pytest.raises(ValueError, match="more than 20 digits"):
        parse_json("1" * 21)


def test_yaml_with_aliases_is_data() -> None:
    assert parse_yaml("a: &one [1, 2]\nb: *one\nc: {<<: {x: 1}, y: 2026}\nd: &two {e: *one}\n") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"x": 1, "y": 2026},
        "d": {"e": [1, 2]},
    }
    assert parse_yaml("") is None
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a [*a]", "contains itself"),
        ("a: &a {b: {c: *a}}", "contains itself"),
        ("[" * 100_000, "nested more than 40 deep"),
        ("- " * 100_000, "nested more than 40 deep"),
        (
            "a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30,
            "more than 40 deep",
        ),
        ("a: " + "x" * 10_001, "more than 10000 characters"),
        ("a: " + "1:" * 100 + "1", "more than 20 digits"),
        (f"1{'0' * 30}: a", "more than 20 digits"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 1\nb: [2", "^line 3, column 1: while parsing a flow sequence, did not find expected"),
        ("a: 1\n  b: 2", "^line 2, column 4: mapping values are not allowed in this context$"),
        ("a: é\nb: \0", r"^line 2, column 4: the character '\\x00' is not allowed$"),
    ],
)
def test_yaml_that_is_no_data_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_yaml(text)


@pytest.mark.parametrize("alias", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merges"])
def test_a_yaml_bomb_is_refused(alias: str) -> None:
    lines = ["a0: &a0 {x: y}"]
    for number in range(1, 12):
        lines.append(f"a{number}: &a{number} " + alias.format(", ".join([f"*a{number - 1}"] * 9)))
    with pytest.raises(ValueError, match="more than 1000000 values"):
        parse_yaml("\n".join(lines))

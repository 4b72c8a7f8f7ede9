"""Reading of files that may be damaged or forged: regular files of bounded size, depth and numbers.

Every function raises OSError, with a reason in ``strerror``, if a file cannot be read, is too large
or is not a regular file (reading a pipe or a device might never end). It raises ValueError if the
contents are invalid.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

MIB = 2**20
MAX_BYTES = 64 * MIB  # of a JSON document
MAX_LINE = MIB  # bytes of a line
MAX_LINES = 2048 * MIB  # bytes of a file that is read line by line
MAX_YAML = 2 * MIB
MAX_DEPTH = 40
MAX_DIGITS = 20
MAX_SCALAR = 10_000  # characters of a YAML scalar
MAX_VALUES = 1_000_000  # of a YAML document whose aliases are written out


class Unbounded(ValueError):
    """The contents of a file are nested too deeply, or too large once aliases are expanded."""


def open_regular(path: Path | str, most: int | None = None) -> BufferedReader:
    """Open a regular file of at most ``most`` bytes for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(descriptor, path, most)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(descriptor: int, path: Path | str, most: int | None = None) -> None:
    """Raise OSError unless ``descriptor`` is a regular file of at most ``most`` bytes."""
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if most is not None and status.st_size > most:
        raise too_large(path, most)


def too_large(path: Path | str, most: int) -> OSError:
    return OSError(errno.EFBIG, f"Larger than {most // MIB} MiB", str(path))


def read_bytes(path: Path | str, most: int = MAX_BYTES) -> bytes:
    with open_regular(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:  # files of /proc have no size
        raise too_large(path, most)
    return data


def read_text(path: Path | str, most: int = MAX_BYTES) -> str:
    """Return the text of a UTF-8 file."""
    return read_bytes(path, most).decode("utf-8")


def read_lines(path: Path | str) -> Iterator[bytes]:
    """Yield the lines of a file, each with its newline; the last line may have none."""
    with open_regular(path, MAX_LINES) as file:
        for number in range(1, MAX_LINES):
            line = file.readline(MAX_LINE + 1)
            if len(line) > MAX_LINE:
                raise ValueError(f"{path}, line {number}: longer than {MAX_LINE} bytes")
            if not line:
                return
            yield line


def read_json(path: Path | str) -> Any:
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError for numbers that are not finite."""
    try:
        value = DECODER.decode(text)
    except RecursionError:
        raise too_deep() from None
    brackets = text.count("{") + text.count("[")
    if brackets > MAX_DEPTH and next(islice(levels(value), MAX_DEPTH, None), None) is not None:
        raise too_deep()
    return value


def levels(value: object) -> Iterator[list[object]]:
    """Yield the levels of a nested value: ``value`` itself, its keys and values, theirs, ..."""
    level = [value]
    while level:
        yield level
        level = [inner for container in level for inner in inner_values(container)]


def inner_values(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list) else ()


def too_deep() -> Unbounded:
    return Unbounded(f"nested more than {MAX_DEPTH} deep")


def finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def bounded(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


# NaN and Infinity, which are not JSON, are not finite.
DECODER = json.JSONDecoder(parse_float=finite, parse_int=bounded, parse_constant=finite)


def read_yaml(path: Path | str) -> Any:
    return parse_yaml(read_text(path, MAX_YAML))


def parse_yaml(text: str, loader: Any = None) -> Any:
    """Return the value of a YAML document of plain data.

    Raises Unbounded for contents that are too large or too deep, ValueError for other invalid
    contents, with line and column if the parser knows them.
    """
    import yaml

    loader = loader or safe_loader()
    try:
        check_events(yaml.parse(text, loader))
        value = yaml.load(text, loader)
        check_numbers(value)
    except Unbounded:
        raise
    except Exception as error:  # scalars raise errors of many types
        raise ValueError(placed(error, text)) from error
    return value


def placed(error: Exception, text: str) -> str:
    """Return the line, column and reason of an error of PyYAML in ``text``."""
    import yaml

    if isinstance(error, yaml.reader.ReaderError):  # a character that YAML does not allow
        *lines, last = text.encode()[: error.position].decode(errors="replace").split("\n")
        line, column = len(lines), len(last)
        reason = f"the character {chr(error.character)!a} is not allowed"
    elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, column = error.problem_mark.line, error.problem_mark.column
        reason = ", ".join(filter(None, (error.context, error.problem)))
    else:
        return str(error)
    return f"line {line + 1}, column {column + 1}: {reason}"


def parse_settings(text: str) -> Any:
    """Return the value of a YAML document that a user wrote, with scalars parsed as by Hydra.

    Unlike in YAML 1.1, 1e9 is a number and a date is text. Use `parse_yaml` for files that this
    package wrote, which are YAML 1.1.
    """
    return parse_yaml(text, settings_loader())


def safe_loader() -> Any:
    """Return PyYAML's safe loader, in C if available, which is ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def settings_loader() -> Any:
    date, number = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
    loader: Any = type("SettingsLoader", (safe_loader(),), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != date]
        for first, resolvers in loader.yaml_implicit_resolvers.items()
    }
    pattern = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
    loader.add_implicit_resolver(number, pattern, list("-+.0123456789"))
    return loader


def check_numbers(value: object) -> None:
    """Raise ValueError for integers with more than `MAX_DIGITS` digits."""
    for level in levels(value):
        if any(map(is_too_long, level)):
            raise ValueError(f"a number has more than {MAX_DIGITS} digits")


def is_too_long(value: object) -> bool:
    """Return whether ``value`` is an integer with more than `MAX_DIGITS` digits."""
    return isinstance(value, int) and abs(value) >= 10**MAX_DIGITS


def check_events(events: Iterable[Any]) -> None:
    """Raise Unbounded for a document that is too large or deep once aliases are expanded.

    Constructing such a document (with merge keys) or traversing it might never finish.
    """
    import yaml

    open_nodes = [(0, 0, "")]  # values, depth, anchor
    anchored: dict[str, tuple[int, int]] = {}

    def add(values: int, depth: int, anchor: str | None) -> None:
        if anchor:
            anchored[anchor] = values, depth
        above, deepest, name = open_nodes[-1]
        open_nodes[-1] = above + values, max(deepest, depth + 1), name
        if above + values > MAX_VALUES:
            raise Unbounded(f"more than {MAX_VALUES} values")
        if len(open_nodes) - 1 + depth > MAX_DEPTH:
            raise too_deep()

    for event in events:
        if isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MAX_SCALAR:
                raise Unbounded(f"a value has more than {MAX_SCALAR} characters")
            add(1, 0, event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchored:
                raise Unbounded(f"*{event.anchor} contains itself or is not defined")
            add(*anchored[event.anchor], None)
        elif isinstance(event, yaml.CollectionStartEvent):
            anchored.pop(event.anchor, None)
            open_nodes.append((1, 1, event.anchor or ""))
            if len(open_nodes) - 1 > MAX_DEPTH:
                raise too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            add(*open_nodes.pop())

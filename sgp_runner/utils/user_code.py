"""Location of the user's own code, such as a plug-in, that led to an error."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from sgp_runner.utils.errors import printable

#: The files of the plug-ins that are loaded.
FILES: set[str] = set()


def format_error(error: BaseException) -> str:
    """Describe an error on one line, with its type: ``KeyError: 'half' (my_algorithm.py:31)``."""
    name, text = type(error).__name__, printable(" ".join(str(error).split()))
    return f"{name}: {text}{user_code_line(error)}" if text else f"{name}{user_code_line(error)}"


def user_code_line(error: BaseException) -> str:
    """Return the last line of the user's code that led to ``error``: `` (my_algorithm.py:31)``.

    Empty if no user code is involved.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return place_of(error.filename, error.lineno or 0)
    frames = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in FILES
    ]
    return place_of(*frames[-1]) if frames else ""


def place_of(file: str, line: int) -> str:
    return f" ({nearby(file)}:{line}; SGP_RUN_TRACEBACK=1 shows all)"


def nearby(file: str | Path) -> str:
    """Return the path of a file, relative if the file is below the current folder."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative

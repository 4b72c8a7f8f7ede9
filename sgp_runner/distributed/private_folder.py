"""Private folders in ``$TMPDIR``, in which the ranks of one machine meet.

The process that makes a folder locks it, and its ranks inherit the lock. The kernel releases the
lock when the last of these processes has ended. A folder without a lock was therefore left by
killed processes, and the next start removes it. Folders of other users, and of other machines that
share the file system, are kept.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sgp_runner.utils.lock import held, lock

LOCK = "private.lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Create a locked folder with mode 0700, which is removed on exit."""
    remove_abandoned()
    folder, descriptor = new_folder()
    held.append(descriptor)
    try:
        yield folder
    finally:
        held.remove(descriptor)
        remove(folder)
        os.close(descriptor)


def new_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix()))
        with suppress(FileNotFoundError, BlockingIOError):  # another start has just removed it
            return folder, lock(folder / LOCK)


def remove_abandoned() -> None:
    """Remove the folders of this user and machine that no process has locked."""
    name = re.compile(re.escape(prefix()) + r"\w{8}")
    for folder in Path(tempfile.gettempdir()).glob("sgp-run-*"):
        with suppress(OSError):  # locked, or just removed by another start
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if not is_ours or not name.fullmatch(folder.name):
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            finally:
                os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder, its lock last, so that the next start recognises a leftover folder."""
    for path in folder.glob("*"):
        if path.name != LOCK:
            with suppress(OSError):  # a folder, or just removed
                path.unlink()
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def prefix() -> str:
    return f"sgp-run-{socket.gethostname()}-"

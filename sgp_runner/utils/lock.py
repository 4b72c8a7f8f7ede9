"""A lock on the folder of a run, so that only one process at a time writes to it.

The lock is on ``.lock`` in the folder; the kernel releases the lock when all its holders have
ended. Ranks inherit the lock from the process that starts them. If that process is killed, they
hold the lock until the last rank has ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.messages import logger

FILE = ".lock"
CANNOT_LOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)

held: list[int] = []  # descriptors of this process's locks, for the ranks that it starts


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the folder against other processes; create the folder if it does not exist.

    On exit the lock is removed, as is a folder that was created here and is empty. Raises
    ConfigError if another process holds the lock, or the folder is not writable.
    """
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = lock(directory / FILE)
    except BlockingIOError:
        raise ConfigError(
            "name",
            f"another process is at work in {directory}; wait for it, or choose another name.",
        ) from None
    except OSError as error:
        raise ConfigError("results", f"cannot write to {directory}: {error.strerror}.") from error
    held.append(descriptor)
    try:
        yield
    finally:
        held.remove(descriptor)
        with suppress(OSError):
            (directory / FILE).unlink()
        os.close(descriptor)
        with suppress(OSError):  # stops at the first that is not empty
            for path in missing:
                path.rmdir()


def lock(path: Path) -> int:
    """Open and lock the file; raise BlockingIOError if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:  # its holder removed it when it ended
            pass
        except OSError as error:
            if error.errno in CANNOT_LOCK:
                logger.warning(
                    f"{path.parent} is on a file system without locks; "
                    "start no second process there."
                )
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)

"""Rendezvous store for the ranks of one machine: a database in a private folder.

PyTorch's `FileStore` writes a record in several pieces, so a rank killed between two of them blocks
all others, and the file grows with every write. SQLite transactions are atomic.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock

from torch.distributed.distributed_c10d import Store

from sgp_runner.utils.errors import CannotWrite

POLL_SECONDS = 0.002
BUSY_SECONDS = 60.0  # longest wait for the file while others hold it


class LocalStore(Store):
    """A key-value store in the file ``path``, which is created if needed.

    It has the methods of `torch.distributed.Store`.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path, self.lock = str(path), Lock()
        self.seconds = 300.0
        self.file = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self.file.execute("PRAGMA synchronous = OFF")  # need not survive a crash of the machine
        with self.alone():
            self.file.execute(
                "CREATE TABLE IF NOT EXISTS entries "
                "(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID"
            )

    def clone(self) -> LocalStore:
        return LocalStore(self.path)

    def set_timeout(self, timeout: timedelta) -> None:
        self.seconds = timeout.total_seconds()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run a transaction. Raises CannotWrite if the disk is full, for example."""
        with self.lock:
            try:
                self.file.execute("BEGIN IMMEDIATE")
                yield
                self.file.execute("COMMIT")
            except (
                BaseException
            ) as error:  # Ctrl-C too, or the file would stay locked for all others
                with suppress(sqlite3.Error):
                    self.file.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise CannotWrite(self.path, error) from error
                raise

    def read(self, key: str) -> bytes | None:
        row = self.file.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def write(self, key: str, value: bytes) -> None:
        self.file.execute("REPLACE INTO entries VALUES (?, ?)", (key, value))

    def set(self, key: str, value: str | bytes) -> None:
        with self.alone():
            self.write(key, as_bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        with self.lock:
            return self.read(key) or b""

    def add(self, key: str, amount: int) -> int:
        with self.alone():
            total = int(self.read(key) or 0) + amount
            self.write(key, b"%d" % total)
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write ``desired`` if the value equals ``expected``; return the final value.

        An empty ``expected`` means that there is no value.
        """
        wanted, new = as_bytes(expected), as_bytes(desired)
        with self.alone():
            present = self.read(key)
            if present == wanted or (present is None and not wanted):
                self.write(key, new)
                return new
        return wanted if present is None else present

    def check(self, keys: Sequence[str]) -> bool:
        with self.lock:
            return all(self.read(key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        deadline = time.monotonic() + (self.seconds if timeout is None else timeout.total_seconds())
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out waiting for {', '.join(keys)} in {self.path}")
            time.sleep(POLL_SECONDS)


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)

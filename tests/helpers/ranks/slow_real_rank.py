"""`real_rank.py` with a slow disk, which is full on rank ``FULL_ON_RANK`` after its first file."""

from __future__ import annotations

import errno
import os
import sys
import time
from itertools import count

import real_rank

from sgp_runner.recording import draft
from sgp_runner.utils.files import HashingWriter
from sgp_runner.utils.messages import show_messages

SECONDS = 0.02  # for each part of a file; a file has some twenty

FILES = count()


class SlowWriter(HashingWriter):
    """Writes slowly; a file may have no space."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.full = next(FILES) > 0 and os.environ.get("FULL_ON_RANK") == os.environ["RANK"]

    def write(self, data: bytes) -> int:
        time.sleep(SECONDS)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


if __name__ == "__main__":
    draft.HashingWriter = SlowWriter  # type: ignore[misc]
    show_messages()
    code = real_rank.main()
    sys.stdout.flush()
    os._exit(code)

"""The limit on the number of files and connections that this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

ENOUGH = 65_536  # where the system sets no limit, as on macOS, which refuses an infinite number


def allow_many() -> None:
    """Raise the limit as far as the system allows."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if most == resource.RLIM_INFINITY else most
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, wanted), most))

"""The commands."""

import time

STARTED = time.monotonic()  # this process, but for the interpreter's own start

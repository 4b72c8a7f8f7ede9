"""The commands."""

import time

STARTED = time.monotonic()  # start of this process, without the interpreter's startup

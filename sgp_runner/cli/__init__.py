"""The commands."""

import time

STARTED = time.monotonic()  # start of this process, after the interpreter has started

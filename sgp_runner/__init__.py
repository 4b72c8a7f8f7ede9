"""sgp-run: an experiment runner for communication-efficient distributed training."""

import time

STARTED = time.monotonic()  # this process, but for the interpreter's own start
__version__ = "0.1.0"

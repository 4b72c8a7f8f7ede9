"""The commands of the package, one module each, and their parts."""

import time

STARTED = time.monotonic()  # start of this process, without the interpreter's startup

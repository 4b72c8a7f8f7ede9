"""Settings of the process's memory, in a process of its own: they cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, resource
from sgp_runner.memory import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]

def cleared():
    "How many pages the system has to clear for 48 MB that are written to and freed."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    where = library.malloc(48 * 2**20)
    ctypes.memset(where, 1, 48 * 2**20)
    library.free(where)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

cleared()
print(cleared() > 20)
keep_freed_memory()
cleared()
print(cleared() > 20)
"""


def test_what_is_freed_is_not_cleared_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]

"""Settings of the process's memory, in a process of its own: they cannot be taken back."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.experiments import make_experiment

from sgp_runner.assembly.start import execute
from sgp_runner.utils.memory import few_collections

PROGRAM = """
import ctypes, resource
from sgp_runner.utils.memory import keep_freed_memory

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
    assert subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.split() == ["True", "False"]


FREEZE, UNFREEZE = gc.freeze, gc.unfreeze


def test_the_collector_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", FREEZE)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    gc.unfreeze()
    with few_collections(none=True):
        assert not gc.isenabled() and gc.get_freeze_count() > 0
    with few_collections(none=False):
        assert gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.isenabled() and gc.get_freeze_count() == 0
    gc.freeze()


def test_the_steps_of_a_timing_study_leave_no_garbage(tmp_path: Path) -> None:
    left = []
    for number, steps in enumerate((4, 4, 80)):
        experiment = make_experiment(
            tmp_path / str(number), "model=timing_only", f"model.sample_steps={steps}", "nodes=4"
        )
        gc.collect()
        gc.disable()
        try:
            execute(experiment)
            left.append(gc.collect())
        finally:
            gc.enable()
    assert left[2] - left[1] < 76  # objects, of 76 more steps of four nodes each

"""Imported by every Python process that has this folder in PYTHONPATH, and by forked commands: a
process sends a signal at the moment when it calls a function.

SHOTS: JSON list of ``[rank, to, signal, "module:name", count]``: the process of that rank ("": one
that is not a rank) sends itself ("self"), or the process that launched it ("launcher"), the signal
at its count-th call of the function; "stuck": itself, twice, during one long call of a library;
"idle": itself, once all messages of the worker have arrived that is the last argument; its calls
are counted from the moment when there is a file "shoot".
``module:`` alone is the moment when the module is imported.
WRAPPED: any KeyboardInterrupt that follows at once becomes an ImportError, as libraries make it;
"swallowed": it disappears.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import Any


def own_rank() -> str:
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((os.environ[name] for name in names if name in os.environ), "")


SHOTS = [list(shot) for shot in json.loads(os.environ.get("SHOTS", "[]"))]
PLACES = {where for *_, where, _ in SHOTS}
MODULES = {where.partition(":")[0] for where in PLACES}


def shoot(here: str, *args: Any) -> None:
    for shot in SHOTS:
        rank, to, number, where, count = shot
        waits = to == "idle" and not os.path.exists("shoot")
        if where == here and rank == own_rank() and not waits:  # of this process, maybe a fork
            shot[-1] -= 1
            if count == 1:
                fire(to, number, *args)


def fire(to: str, number: int, *args: Any) -> None:
    if to == "stuck":
        be_stuck(number)
    if to == "idle":
        sys.path.append(str(Path(__file__).parents[2]))  # of tests/, for helpers
        from helpers.arrivals import wait_for_arrival

        wait_for_arrival(args[-1].comm)
    try:
        os.kill(int(os.environ["SGP_RUN_PARENT"]) if to == "launcher" else os.getpid(), number)
        time.sleep(0)  # handlers run
    except KeyboardInterrupt:
        if "WRAPPED" not in os.environ:
            raise
        if os.environ["WRAPPED"] != "swallowed":
            raise ImportError("cannot load module more than once per process") from None


def be_stuck(number: int) -> None:
    for seconds in (0.2, 0.7):
        Timer(seconds, os.kill, (os.getpid(), number)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes


def armed(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        shoot(where, *args)
        return function(*args, **kwargs)

    return call


def arm(name: str, module: ModuleType) -> None:
    """Arm the functions of a module, also where others have imported them by name."""
    for where in PLACES:
        if not where.startswith(f"{name}:") or where == f"{name}:":
            continue
        *owners, last = where.partition(":")[2].split(".")
        owner: Any = reduce(getattr, owners, module)
        function = getattr(owner, last)
        call = armed(function, where)
        setattr(owner, last, call)
        for other in [loaded for at, loaded in sys.modules.items() if at.startswith("sgp_runner")]:
            for key in [key for key, value in vars(other).items() if value is function]:
                setattr(other, key, call)


class Finder(importlib.abc.MetaPathFinder):
    """Arms the functions of a module once it has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in MODULES:
            return None
        if f"{name}:" in PLACES:
            shoot(f"{name}:")
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_arm(module: ModuleType) -> None:
            execute(module)
            arm(name, module)

        with contextlib.suppress(AttributeError):
            spec.loader.exec_module = execute_and_arm  # type: ignore[method-assign]
        return spec


if SHOTS:
    sys.meta_path.insert(0, Finder())
    for present in MODULES & sys.modules.keys():
        arm(present, sys.modules[present])

"""The store of the ranks of one machine: what it promises, from several processes, also when one is
killed at any moment.
"""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from torch.distributed.distributed_c10d import PrefixStore

from sgp_runner.distributed.rank import NO_STEP_LEFT, ServerBudget
from sgp_runner.distributed.store import LocalStore

FORKSERVER = get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    ["sgp_runner.distributed.store"]
)  # writers are forks of a process that has imported PyTorch


def write(path: Path, times: int, name: str) -> None:
    store = LocalStore(path)
    inside = PrefixStore("run", store)
    for _ in range(times):
        inside.add("gradients", 1)
        inside.set(f"beat {name}", "x" * 5000)


def writer(path: Path, times: int, name: str) -> ForkServerProcess:
    process = FORKSERVER.Process(target=write, args=(path, times, name), daemon=True)
    process.start()
    return process


def test_a_store_does_what_pytorch_expects_of_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    inside, other = PrefixStore("a", store), PrefixStore("a", clone := store.clone())
    assert not inside.check(["x"])
    inside.set("x", "1")
    assert (
        other.get("x") == b"1"
        and clone.get("a/x") == b"1"
        and other.check(["x"])
        and not other.check(["x", "y"])
    )
    assert [other.add("n", 2), inside.add("n", 3), inside.add("n", 0)] == [2, 5, 5] and inside.get(
        "n"
    ) == b"5"
    assert (
        inside.compare_set("new", "", "first") == b"first"
        and other.compare_set("new", "", "second") == b"first"
    )
    assert other.compare_set("new", "first", "third") == b"third" and inside.get("new") == b"third"
    assert inside.compare_set("none", "expected", "new") == b"expected" and not inside.check(
        ["none"]
    )
    inside.set("bytes", bytes(range(256)).decode("latin-1"))
    assert inside.get("bytes") == bytes(range(256)).decode("latin-1").encode()
    with pytest.raises(RuntimeError, match="timed out waiting for a/never in "):
        inside.wait(["never"], timedelta(milliseconds=20))


def test_an_interrupted_transaction_leaves_nothing_and_releases_the_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    other = store.clone()
    with pytest.raises(KeyboardInterrupt), store.alone():
        store.write("half", b"done")
        raise KeyboardInterrupt
    other.set("x", "1")
    store.set("y", "2")
    assert not other.check(["half"]) and store.check(["x", "y"])


def test_processes_count_together(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LocalStore(path)
    writers = [writer(path, 300, str(number)) for number in range(3)]
    PrefixStore("run", store).wait(["beat 0", "beat 1", "beat 2"], timedelta(seconds=600))
    for process in writers:
        process.join(600)
    assert [process.exitcode for process in writers] == [0, 0, 0]
    assert PrefixStore("run", store).add("gradients", 0) == 900
    assert path.stat().st_size < 100_000  # it does not grow with every write


def test_a_process_that_is_killed_while_it_writes_leaves_the_store_in_order(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LocalStore(path)
    inside = PrefixStore("run", store)
    for attempt in range(8):
        victim = writer(path, 10**9, str(attempt))
        inside.wait([f"beat {attempt}"], timedelta(seconds=600))
        time.sleep(0.013 * attempt)
        victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
        count = inside.add("gradients", 0)
        assert inside.get(f"beat {attempt}") == b"x" * 5000
        assert inside.add("gradients", 1) == count + 1


def test_a_server_that_has_taken_its_last_step_says_so(tmp_path: Path) -> None:
    """Its workers, between steps, then save no checkpoint, for which they would wait for it."""
    store = LocalStore(tmp_path / "store")
    budget = ServerBudget(2, store=store)
    budget.taken = 1
    assert (budget.next_step(), budget.taken, budget.spent) == (1, 2, True)
    assert not store.check([NO_STEP_LEFT])
    budget.saving = True
    assert budget.next_step() is None
    assert not store.check([NO_STEP_LEFT])
    budget.saving = False
    budget.write_end()
    assert store.check([NO_STEP_LEFT])

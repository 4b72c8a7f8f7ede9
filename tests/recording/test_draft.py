"""Checkpoints that are written by a thread: the same bytes, errors in time, nothing left behind."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, current_thread
from types import SimpleNamespace

import pytest
import torch

from sgp_runner.cli.main import main
from sgp_runner.recording import draft as drafts
from sgp_runner.recording.draft import BackgroundWriter, Draft, num_bytes, on_host
from sgp_runner.utils.errors import CannotWrite, LostConnection
from sgp_runner.utils.files import HashingWriter, checksum


def saved(state: dict[str, object]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_copy_has_the_bytes_of_the_state_and_keeps_its_values() -> None:
    push_sum = torch.arange(5.0)
    twice, pair = torch.ones(2, 3).t(), (1, [2.5])
    state: dict[str, object] = {
        "push_sum": push_sum,
        "view": push_sum[1:4],
        "worker": {"state": [twice, twice], "none": None},
        "pairs": [pair, pair],
        "loss": torch.tensor(2.0, requires_grad=True) * 3,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    before, copied = saved(state), on_host(state)
    push_sum.zero_()
    pair[1].append(0.0)
    assert saved(copied) == before != saved(state)
    assert num_bytes(state) == 5 * 4 + 6 * 4 + 4 + 2


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    draft = Draft(tmp_path, 3)
    draft.clear()
    return draft


def test_only_the_thread_waits_for_the_copies_of_a_gpu(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, may_end, waited = torch.zeros(3), Event(), []

    class LateCopy:
        """An event that completes once the caller of `add` has continued."""

        def synchronize(self) -> None:
            assert may_end.wait(60)
            waited.append(current_thread().name)
            copy.fill_(7.0)

    gpu = SimpleNamespace(is_cuda=True, device="cuda:0")
    streams = {"cuda:0": SimpleNamespace(record_event=LateCopy)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.get)
    monkeypatch.setattr(drafts, "tensors_in", lambda state: [gpu])
    monkeypatch.setattr(drafts, "num_bytes", lambda state: 12)
    monkeypatch.setattr(drafts, "on_host", lambda state: {"x": copy})
    with BackgroundWriter(None) as writer:
        writer.add(draft, "rank0.pt", {})
        may_end.set()
    assert waited == ["checkpoint_0"]
    assert torch.load(draft.path / "rank0.pt")["x"].tolist() == [7.0, 7.0, 7.0]


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Event:
    """An event that every part of a file waits for."""
    released = Event()

    class Waiting(HashingWriter):
        """Writes after the event."""

        def write(self, data: bytes) -> int:
            released.wait()
            return super().write(data)

    monkeypatch.setattr(drafts, "HashingWriter", Waiting)
    return released


def test_the_caller_goes_on_while_a_state_is_written(draft: Draft, released: Event) -> None:
    waited: list[float] = []
    with BackgroundWriter(draft.folder, waited.append) as writer:
        params = torch.zeros(3)
        writer.add(draft, "rank0.pt", {"params": params})
        writer.submit(lambda: draft.finish("run", keep=1))
        params += 1
        writer.check()
        assert [path.name for path in draft.folder.iterdir()] == [".part-3"]
        released.set()
    assert [path.name for path in draft.folder.iterdir()] == ["step-3"]
    path = draft.final / "rank0.pt"
    assert torch.load(path, weights_only=True)["params"].tolist() == [0.0, 0.0, 0.0]
    assert draft.files == {"rank0.pt": checksum(path)}
    assert len(waited) == 1 and waited[0] > 0


def test_a_copy_waits_for_room(
    draft: Draft, released: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "free_bytes", lambda: 79)
    with BackgroundWriter(draft.folder) as writer:
        for name, present in (("a.pt", False), ("b.pt", True)):  # 40 bytes, twice
            writer.add(draft, name, {"params": torch.zeros(10)})
            assert ("a.pt" in draft.files) is present
            released.set()
    assert list(draft.files) == ["a.pt", "b.pt"]


def test_an_error_is_raised_by_the_next_call_and_nothing_is_written_after_it(draft: Draft) -> None:
    sentence = f"^cannot write the checkpoint {draft.final}: No such file or directory; earlier "
    with pytest.raises(CannotWrite, match=sentence), BackgroundWriter(draft.folder) as writer:
        writer.add(draft, "missing/rank0.pt", {})
        writer.tasks[0].exception()  # waits for it
        writer.thread.submit(writer.run, lambda: draft.finish("run", keep=1))
        writer.check()
    assert not list(draft.folder.iterdir())


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ZeroDivisionError, []),
        (LostConnection, [".part-3/rank0.pt", ".part-3/rank1.pt"]),
        (KeyboardInterrupt, [".part-3/rank0.pt"]),
    ],
)
def test_what_an_error_leaves(
    error: type[BaseException], kept: list[str], draft: Draft, released: Event
) -> None:
    """A file that is being written is completed; what follows it is not after Ctrl-C."""
    with pytest.raises(error), BackgroundWriter(draft.folder) as writer:
        writer.add(draft, "rank0.pt", {})
        while not list(draft.path.iterdir()):
            time.sleep(0.001)
        writer.add(draft, "rank1.pt", {})
        released.set()
        raise error
    there = sorted(str(path.relative_to(draft.folder)) for path in draft.folder.rglob("*.pt"))
    assert there == kept


KILLED = """
import os, signal, sys
from sgp_runner.cli.main import main
from sgp_runner.recording import draft

class Writer(draft.HashingWriter):
    left = int(sys.argv[1])

    def write(self, data):
        Writer.left -= 1
        if not Writer.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(data)

draft.HashingWriter = Writer
sys.exit(main(sys.argv[2:]))
"""


def test_a_simulation_killed_while_it_writes_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first checkpoint, and in the third one after it; each has about 260 writes."""
    overrides = [
        *("algo=osgp", "model=mlp", "nodes=4", "epochs=3", "logger=jsonl", "log_every=1"),
        *("checkpoint.every_steps=3", "name=run", "network.engine=loop"),
    ]
    texts = []
    for name, writes in (("whole", []), ("cut", ["100", "700"])):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        for number in writes:
            killed = subprocess.run([sys.executable, "-c", KILLED, number, *overrides], check=False)
            assert killed.returncode == -signal.SIGKILL
        assert list(folder.glob("results/runs/run/checkpoints/.part-*")) or not writes
        assert main(overrides) == 0
        assert ("resumes from step 6" in capsys.readouterr().out) == (name == "cut")
        text = (folder / "results/runs/run/metrics.jsonl").read_text()
        texts.append([line.partition('"real_s"')[0] for line in text.splitlines()])
    assert texts[0] == texts[1] and len(texts[0]) > 100
    assert not list(tmp_path.glob("*/results/runs/run/checkpoints"))

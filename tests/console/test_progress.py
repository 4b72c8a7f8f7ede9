from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from helpers.experiments import make_experiment
from test_console import SUMMARY

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.opening import oversubscribed, replaced_records
from sgp_runner.console import progress
from sgp_runner.console.estimate import Work, disk_bytes
from sgp_runner.console.progress import ConsoleListener
from sgp_runner.console.summary import throughput_text
from sgp_runner.recording import evaluation_meter
from sgp_runner.recording.evaluation_meter import EvaluationMeter


@contextlib.contextmanager
def showing(
    title: str, clock: str, epochs: float, work: Callable[[], Work]
) -> Iterator[ConsoleListener]:
    listener = ConsoleListener(title, clock, epochs, work)
    listener.start()
    try:
        yield listener
    finally:
        listener.finish(None)


def follow(listener: ConsoleListener, done: list[int]) -> None:
    """Two workers, four steps and two epochs, one evaluation in each."""
    for step in (1, 2, 3, 4):
        done[0] = step
        for rank in (0, 1):
            stamp = {"step": step, "epoch": step / 2, "time_s": 0.25 * step}
            listener.write({"kind": "train", "rank": rank, **stamp, "loss": 1 / step})
        if step % 2 == 0:
            listener.write(
                {
                    "kind": "average",
                    "epoch": step // 2,
                    "time_s": 0.25 * step,
                    "accuracy": 0.2 * step,
                }
            )


def counting(total: int) -> tuple[list[int], Callable[[], Work]]:
    """Return the number of steps done, in a list, and the function that reads it."""
    done = [0]
    return done, lambda: Work(done[0], total, "step")


def without_real_time(text: str) -> list[str]:
    return [re.sub(r" · real \d+ s", "", line) for line in text.splitlines()]


def test_a_pipe_gets_the_title_and_a_plain_line_per_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done, work = counting(4)
    with showing("SGP · mlp", "simulated", 2, work) as listener:
        follow(listener, done)
        listener.finish(SUMMARY)
    assert without_real_time(capsys.readouterr().out) == [
        "SGP · mlp",
        "  step 2/4 · epoch 1.0 · loss 0.7500 · accuracy 40.0 % · simulated 500 ms",
        "  step 4/4 · epoch 2.0 · loss 0.5208 · accuracy 80.0 % · simulated 1 s",
    ]


def test_without_an_evaluation_a_line_comes_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 3 s, of which 40 were done before; each look takes 1 s. A line comes after 30 s."""
    now, over = [0], Event()

    def work() -> Work:
        now[0] = min(now[0] + 1, 100)
        if now[0] == 100:
            over.set()
        return Work(40 + now[0] // 3, 1000, "step")

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr("rich.console.monotonic", lambda: float(now[0]))
    with showing("t", "simulated", 10, work):
        assert over.wait(600)
    assert capsys.readouterr().out.splitlines() == [
        "t",
        "  step    50/1,000 · about 47 min 30 s left · epoch 0.5 · simulated 0 s · real 31 s",
        "  step    61/1,000 · about 46 min 57 s left · epoch 0.6 · simulated 0 s · real 1 min 03 s",
        "  step    72/1,000 · about 46 min 24 s left · epoch 0.7 · simulated 0 s · real 1 min 35 s",
    ]


def test_a_real_run_shows_the_accuracy_of_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    done, work = counting(10)
    done[0] = 5
    with showing("t", "wall", 2, work) as listener:
        for rank in (0, 1):
            listener.write(
                {"kind": "eval", "rank": rank, "epoch": 1, "time_s": 1.0, "accuracy": 0.9 + rank}
            )
    assert without_real_time(capsys.readouterr().out) == [
        "t",
        "  step  5/10 · epoch 1.0 · accuracy 90.0 % (rank 0)",
    ]


def test_the_disk_space_of_a_run(tmp_path: Path) -> None:
    """ResNet-50's parameters on 32 nodes, with momentum; a checkpoint holds both of each node."""
    run = make_experiment(
        tmp_path, "algo=osgp", "model=resnet50", "nodes=32", "epochs=10", "batch_size=8"
    ).run
    problem = build_problem(run)
    parameters = sum(problem.flat.layers)
    assert parameters == 23_519_690
    records = 32 * (50 // 10 + 2 * 10 // 5) * 300
    assert disk_bytes(run, problem, 60) == 4 * parameters * 64 + records
    assert disk_bytes(run, problem, 8000) == 3 * 4 * parameters * 64 + records


@pytest.mark.parametrize(
    ("there", "resume", "says"),
    [
        (None, "auto", None),
        ("", "auto", None),
        (
            '{"kind": "train", "time_s": 1, "epoch": 13.96}\n',
            "auto",
            "run (14 epochs) are",
        ),
        ('{"kind": "tr', "auto", "an interrupted run are"),
        ('{"kind": "train", "time_s": 1, "epoch": 1}\n', "never", "an earlier run are"),
    ],
)
def test_records_that_are_replaced_are_announced(
    there: str | None, resume: str, says: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    if there is not None:
        path.write_text(there)
    sentence = replaced_records(path, resume)
    assert (sentence is None) == (says is None) and (says or "") in (sentence or "")


def test_ranks_that_share_cores_are_warned_about(tmp_path: Path) -> None:
    cores = os.cpu_count()
    assert cores is not None
    for nodes in (cores, cores + 1):
        notes = oversubscribed(
            make_experiment(
                tmp_path, "model=mlp", "network=gloo", f"nodes={nodes}", f"name=n{nodes}"
            ).run
        )
        assert bool(notes) == (nodes > cores)
    assert notes[0].startswith(f"{nodes} ranks share {cores} core")


def test_a_terminal_of_80_columns_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = """
from test_console import SUMMARY
from test_progress import counting, follow, showing
from sgp_runner.console.summary import show, summary_table
from sgp_runner.utils.messages import show_messages
show_messages()
done, work = counting(4)
with showing("SGP · mlp", "simulated", 2, work) as listener:
    follow(listener, done)
    listener.finish(SUMMARY)
show(summary_table(SUMMARY))
"""
    settings = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR")
        },
        "TERM": "xterm",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONIOENCODING": "utf-8",
    }
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=settings
    )
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while data := os.read(ours, 65536):
            output += data
    os.close(ours)
    text = output.decode()
    assert child.wait() == 0, text

    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex(
        "\x1b[?25l"
    )  # the cursor is given back
    parts = re.split(r"\n|\x1b\[2K", text)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part).strip("\r ") for part in parts]
    assert max(map(len, lines)) <= 80
    title = lines.index("SGP · resnet8 · digits · 8 nodes · sim")
    assert lines[title - 3 : title] == [
        "━" * 69 + " step 4/4",
        "epoch 2.0 · loss 0.5208 · accuracy 80.0 % · simulated 1 s · real 0 s",
        "",
    ]


def test_a_real_run_shows_the_throughput_of_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    done, work = counting(4)
    train = {"kind": "train", "time_s": 0.0, "loss": None, "step": 1, "waiting_share": 0.25}
    with showing("t", "wall", 2, work) as listener:
        done[0] = 1
        for rank in (0, 1):
            listener.write({**train, "rank": rank, "samples_per_s": 1000.0 * (rank + 1)})
        listener.write({"kind": "eval", "time_s": 0.0, "rank": 0, "accuracy": 0.25})
    assert without_real_time(capsys.readouterr().out)[1:] == [
        "  step 1/4 · epoch 0.5 · accuracy 25.0 % (rank 0) · 1,000 samples/s, waiting 25 % (rank 0)"
    ]


def test_the_line_of_throughput_fits() -> None:
    rates = {"samples_per_s": 1.0, "tokens_per_s": 1e8, "flops_per_s": 1.23e14, "mfu": 0.4}
    text = throughput_text({**rates, "waiting_share": 1.0})
    assert text == "100,000,000 tokens/s, 123 TFLOP/s, MFU 40 %, waiting 100 %"
    assert len(f"  {text} (rank 0)") < 80


def test_a_large_share_of_evaluation_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short run, then 19 %, 29 % and 50 % of the time."""
    now, meter = [0.0], EvaluationMeter()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    listener = ConsoleListener("", "simulated", 2, lambda: Work(1, 2), meter)
    for now[0], meter.seconds in [(30, 20), (100, 19), (100, 29), (100, 50)]:
        listener.write({"kind": "eval", "rank": 0, "time_s": 0.0, "accuracy": 0.5})
        listener.write({"kind": "average", "time_s": 0.0, "accuracy": 0.5})
    assert [line for line in capsys.readouterr().out.splitlines() if "·" not in line] == [
        "  Evaluation takes about 29 % of the real time: a larger eval_every, or "
        "eval_workers=false, is faster."
    ]


def test_evaluations_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((1.0, 4.0, 10.0, 12.5))
    monkeypatch.setattr(evaluation_meter, "time", SimpleNamespace(monotonic=lambda: next(now)))
    meter = EvaluationMeter()
    for seconds in (3.0, 5.5):
        with meter.timed():
            pass
        assert meter.seconds == seconds

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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from helpers.experiments import make_experiment
from test_console import SUMMARY

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.opening import oversubscribed, replaced_records
from sgp_runner.console.estimate import Estimate, Work, disk_bytes, estimate, memory_bytes
from sgp_runner.console.progress import ConsoleListener, Pace
from sgp_runner.console.summary import throughput_text
from sgp_runner.recording.evaluation_meter import EvaluationMeter, number_of_evaluations


@contextlib.contextmanager
def showing(
    title: str, clock: str, epochs: float, work: Callable[[], Work], estimate: Estimate
) -> Iterator[ConsoleListener]:
    listener = ConsoleListener(title, clock, epochs, work, estimate)
    listener.start()
    try:
        yield listener
    finally:
        listener.stop()


def follow(listener: ConsoleListener, done: list[int]) -> None:
    """Two workers, four steps and two epochs, one evaluation in each."""
    for step in (1, 2, 3, 4):
        done[0] = step
        for rank in (0, 1):
            train = {
                "kind": "train",
                "rank": rank,
                "step": step,
                "epoch": step / 2,
                "loss": 1 / step,
            }
            listener.write({**train, "time_s": 0.25 * step})
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


def nothing(seconds: float, each: float, work: Work, untimed: int) -> list[str]:
    return []


def without_real_time(text: str) -> list[str]:
    return [re.sub(r"  real \d+ s$", "", line) for line in text.splitlines()]


def test_a_pipe_gets_the_title_and_a_plain_line_per_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done, work = counting(4)
    with showing("SGP · mlp", "simulated", 2, work, nothing) as listener:
        follow(listener, done)
        listener.finish(SUMMARY)
    assert without_real_time(capsys.readouterr().out) == [
        "SGP · mlp",
        "  step 2/4  epoch  1.0  loss 0.7500  accuracy 40.0 %  simulated 500 ms",
        "  step 4/4  epoch  2.0  loss 0.5208  accuracy 80.0 %  simulated 1 s",
    ]


def test_without_evaluations_a_line_comes_for_each_epoch_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done, work = counting(100)
    with showing("t", "wall", 5, work, nothing) as listener:
        for step in range(1, 101):
            done[0] = step
            listener.write(
                {
                    "kind": "train",
                    "rank": 0,
                    "step": step,
                    "epoch": step / 20,
                    "time_s": 0.0,
                    "loss": None,
                }
            )
    lines = without_real_time(capsys.readouterr().out)
    assert lines[1:] == [f"  step {20 * epoch:3d}/100  epoch  {epoch}.0" for epoch in (2, 3, 4, 5)]


def test_the_pace_is_measured_after_the_first_unit() -> None:
    pace = Pace()
    for now, done, left in [(1, 0, None), (9, 2, None), (10, 4, None), (13, 10, 45.0)]:
        work = Work(done, 100)
        pace.look(now, work)
        assert pace.left(work) == left


def test_a_warm_run_is_measured_again() -> None:
    """Units of a second at first, of a quarter afterwards; those that are long are believed."""
    pace, long = Pace(), Pace()
    for now, done, left, sure in [
        (0, 1, None, False),
        (10, 11, 89.0, False),
        (11, 15, 85.0, False),
        (12, 19, 20.25, True),
    ]:
        work = Work(done, 100)
        pace.look(now, work)
        assert (pace.left(work), pace.sure) == (left, sure)
    for now, done in [(0, 1), (60, 2)]:
        long.look(now, Work(done, 100))
    assert long.sure and long.seconds_each == 60


def test_a_long_run_is_estimated_and_says_how_long_it_takes_without_any_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Gradients of a second, which the listener counts by itself."""
    started = time.monotonic()
    said = Event()
    arguments = []

    def estimate(seconds: float, each: float, work: Work, untimed: int) -> list[str]:
        arguments.append((seconds, each, work.total))
        said.set()
        return ["This takes long."]

    def work() -> Work:
        return Work(1 + int(time.monotonic() - started), 1000)

    with showing("t", "simulated", 10, work, estimate) as listener:
        assert said.wait(600)
        listener.write({"kind": "average", "epoch": 1, "time_s": 3.0, "accuracy": 0.5})
    title, estimated, line = capsys.readouterr().out.splitlines()
    ((seconds, each, total),) = arguments
    assert (title, estimated, total) == ("t", "  This takes long.", 1000)
    assert seconds > 30 and each > 0
    pattern = r"  gradient +\d+/1,000  epoch  0.\d  accuracy 50.0 %  simulated 3 s  real \d+ s  "
    assert re.fullmatch(pattern + r"about \d.* left", line)


def test_a_real_run_shows_the_accuracy_of_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    done, work = counting(10)
    done[0] = 5
    with showing("t", "wall", 2, work, nothing) as listener:
        for rank in (0, 1):
            listener.write(
                {"kind": "eval", "rank": rank, "epoch": 1, "time_s": 1.0, "accuracy": 0.9 + rank}
            )
    assert without_real_time(capsys.readouterr().out) == [
        "t",
        "  step  5/10  epoch  1.0  accuracy 90.0 % (rank 0)",
    ]


def test_what_a_run_takes(tmp_path: Path) -> None:
    """ResNet-50's parameters on 32 nodes, with momentum; a checkpoint holds both of each node."""
    words = ("algo=osgp", "model=resnet50", "nodes=32", "epochs=10", "batch_size=8")
    run = make_experiment(tmp_path, *words).run
    problem = build_problem(run)
    parameters = sum(problem.flat.layers)
    assert parameters == 23_519_690
    assert memory_bytes(run, problem) == 4 * parameters * (2 + 32 * 3 + 64)
    records = 32 * (50 // 10 + 2 * 10 // 5) * 300
    assert disk_bytes(run, problem, 60) == 4 * parameters * 64 + records
    assert disk_bytes(run, problem, 8000) == 3 * 4 * parameters * 64 + records
    first, second = estimate(run, problem, 8064, 4.2, Work(2, 1920))
    assert first == (
        "This takes about 2 h 14 min (1,920 gradients of 4.2 s), 15.2 GB of memory and up to "
        "18.1 GB of disk."
    )
    assert second.startswith("Quicker: model=timing_only ")
    (partial,) = estimate(run, problem, 60, 0.1, Work(2, 600), untimed=33)
    assert partial.startswith(
        "This takes more than 1 min 00 s (600 gradients of 100 ms, without 33 evaluations), "
    )


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
        words = ("model=mlp", "network=gloo", f"nodes={nodes}", f"name=n{nodes}")
        notes = oversubscribed(make_experiment(tmp_path, *words).run)
        assert bool(notes) == (nodes > cores)
    assert notes[0].startswith(f"{nodes} ranks share {cores} core")


def test_a_terminal_of_80_columns_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = """
from test_console import SUMMARY
from test_progress import counting, follow, nothing, showing
from sgp_runner.console.summary import show, summary_table
from sgp_runner.utils.messages import show_messages
show_messages()
done, work = counting(4)
with showing("SGP · mlp", "simulated", 2, work, nothing) as listener:
    follow(listener, done)
    listener.finish(SUMMARY)
show(summary_table(SUMMARY))
"""
    settings = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    settings |= {
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
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\r ") for line in text.split("\n")]
    assert max(map(len, lines)) <= 80
    title = lines.index("SGP · resnet8 · digits · 8 nodes · sim")
    bar, numbers, empty = lines[title - 3 : title]
    assert bar == "━" * 58 + "  step 4/4  epoch  2.0"
    assert numbers.startswith("loss 0.5208 · accuracy 80.0 % · simulated 1 s · real ")
    assert empty == ""


def test_the_throughput_of_a_real_run_is_shown_every_half_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done, work = counting(4)
    train = {"kind": "train", "time_s": 0.0, "loss": None, "step": 1, "waiting_share": 0.25}
    with showing("t", "wall", 2, work, nothing) as listener:
        for step, seconds in ((1, 0), (2, 31), (3, 0)):
            done[0] = step
            listener._throughput_said_at -= seconds
            for rank in (0, 1):
                listener.write({**train, "rank": rank, "samples_per_s": 1000.0 * (rank + 1)})
            listener.write({"kind": "eval", "time_s": 0.0, "rank": 0, "accuracy": 0.25})
    lines = without_real_time(capsys.readouterr().out)
    assert lines[1:] == [
        "  step 1/4  epoch  0.5  accuracy 25.0 % (rank 0)",
        "  step 2/4  epoch  1.0  accuracy 25.0 % (rank 0)",
        "  1,000 samples/s, waiting 25 % (rank 0)",
        "  step 3/4  epoch  1.5  accuracy 25.0 % (rank 0)",
    ]


def test_the_line_of_throughput_fits() -> None:
    rates = {"samples_per_s": 1.0, "tokens_per_s": 1e8, "flops_per_s": 1.23e14, "mfu": 0.4}
    text = throughput_text({**rates, "waiting_share": 1.0})
    assert text == "100,000,000 tokens/s, 123 TFLOP/s, MFU 40 %, waiting 100 %"
    assert len(f"  {text} (rank 0)") < 80


@pytest.mark.parametrize("every", [20, 50])
def test_the_forecast_of_an_even_run_is_its_length(
    every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """200 steps of 1 s, and an evaluation of 20 s after every 20 or 50: 400 s, or 280 s."""
    number, now, done = 200 // every, 0.0, [0]
    meter, whole = EvaluationMeter(total=number), 200 + 20 * number
    arguments: list[tuple[float, float, int, int]] = []

    def costs(seconds: float, each: float, work: Work, untimed: int) -> list[str]:
        arguments.append((seconds, each, work.total, untimed))
        return []

    def work() -> Work:
        return Work(done[0], 200, "step")

    listener = ConsoleListener("", "wall", 2, work, costs, meter)
    listener._started = 0.0
    for step in range(1, 201):
        now, done[0] = now + 1, step
        if step % every == 0:
            now, meter.ended, meter.count = now + 20, meter.ended + 20, meter.count + 1
        listener._forecast(now)
        if meter.count:
            left = listener._left(work())
            assert left is not None and now + left == pytest.approx(whole)
    # The costs are printed after 30 s at the latest, and again with the first evaluation.
    timed = every == 20
    assert arguments == [(pytest.approx(400 if timed else 200), 1, 200, 0 if timed else 4)]
    share = (
        "  Evaluation takes about {} % of the real time: a larger eval_every, or "
        "eval_workers=false, is faster.\n"
    )
    length = "  With evaluations, this takes about 4 min 40 s.\n"
    assert capsys.readouterr().out == (share.format(50) if timed else length + share.format(29))


def test_an_evaluation_in_progress_counts_as_one() -> None:
    meter = EvaluationMeter(total=8)
    assert (meter.left, meter.untimed, meter.seconds(7.0)) == (0.0, 8, 0.0)
    with meter.timed():
        assert meter.begun is not None and meter.seconds(meter.begun + 3) == 3
    meter.count, meter.ended = 4, 60.0
    assert (meter.left, meter.untimed, meter.seconds(7.0)) == (60.0, 0, 60.0)


def test_numbers_of_evaluations(tmp_path: Path) -> None:
    def number(*words: str) -> int:
        return number_of_evaluations(make_experiment(tmp_path, *words).run)

    words = ("nodes=4", "epochs=2", "eval_every=0.5", "model=mlp")
    assert number(*words) == 4 * (4 + 1)
    assert number(*words, "eval_workers=false") == 4
    assert number(*words, "network=gloo") == 4
    assert number("model=timing_only") == 0

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

import pytest
from test_console import SUMMARY

from sgp_runner.recording.progress import ConsoleListener


def follow(listener: ConsoleListener) -> None:
    """Two workers, four steps and two epochs, one evaluation in each."""
    for step in (1, 2, 3, 4):
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


def without_real_time(text: str) -> list[str]:
    return [re.sub(r"  real \d+ s$", "", line) for line in text.splitlines()]


def test_a_pipe_gets_the_title_and_a_plain_line_per_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ConsoleListener("SGP · mlp", 4, "simulated") as listener:
        follow(listener)
        listener.finish(SUMMARY)
    assert without_real_time(capsys.readouterr().out) == [
        "SGP · mlp",
        "  step 2/4  epoch  1.0  loss 0.7500  accuracy 40.0 %  simulated 500 ms",
        "  step 4/4  epoch  2.0  loss 0.5208  accuracy 80.0 %  simulated 1 s",
    ]


def test_without_evaluations_a_line_comes_for_each_epoch_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ConsoleListener("t", 100, "wall") as listener:
        for step in range(1, 101):
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


def test_a_terminal_of_80_columns_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = """
from test_console import SUMMARY
from test_progress import follow
from sgp_runner.recording.console import show, summary_table
from sgp_runner.recording.progress import ConsoleListener
with ConsoleListener("SGP · mlp", 4, "simulated") as listener:
    follow(listener)
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

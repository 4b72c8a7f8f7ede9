from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console
from rich.table import Table

from sgp_runner.recording.console import ConsoleListener, show, summary_table

SUMMARY: dict[str, object] = {
    "name": "sgp-resnet8-digits",
    "algorithm": "SGP",
    "model": "resnet8",
    "data": "digits",
    "nodes": 8,
    "network": "sim",
    "label": "rehearsal on digits; time simulated",
    "metric": "accuracy",
    "worker_mean": 0.971,
    "worker_min": 0.961,
    "worker_max": 0.98,
    "average": 0.979,
    "server": False,
    "clock": "simulated",
    "time_s": 3.4567,
    "real_s": 41.2,
    "steps": 450,
    "epochs": 10,
    "bytes_per_node": 34_500_000,
    "consensus_distance": 0.01234,
    "run_dir": "results/runs/sgp-resnet8-digits",
}


def plain(table: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


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
from test_console import *
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


def test_the_table_of_a_run() -> None:
    assert plain(summary_table(SUMMARY)) == [
        "SGP · resnet8 · digits · 8 nodes · sim",
        "╭────────────────────────────────┬─────────────────────────────────────╮",
        "│ accuracy per worker            │ 97.1 % mean, 96.1 % min, 98.0 % max │",
        "│ accuracy of the averaged model │ 97.9 %                              │",
        "│ simulated time                 │ 3.46 s                              │",
        "│ real time, all included        │ 41.2 s                              │",
        "│ sent per node                  │ 34.5 MB                             │",
        "│ consensus distance             │ 0.0123                              │",
        "│ trained for                    │ 10 epochs, 450 steps                │",
        "╰────────────────────────────────┴─────────────────────────────────────╯",
        "rehearsal on digits; time simulated",
        "results in results/runs/sgp-resnet8-digits",
    ]


def test_a_translation_shows_exact_match_and_bleu_and_a_server_is_called_so() -> None:
    lines = plain(summary_table({**SUMMARY, "bleu": 93.21, "server": True, "clock": "wall"}))
    assert lines[2].startswith("│ exact match per worker ")
    assert lines[3].startswith("│ exact match of the server model │ 97.9 %")
    assert lines[4].startswith("│ BLEU of the server model        │ 93.2 ")
    assert lines[5].startswith("│ wall-clock time ")


def test_a_loss_is_no_percentage_and_what_is_unknown_is_left_out() -> None:
    loss = {
        **SUMMARY,
        "metric": "loss",
        "average": 0.123456,
        "worker_mean": None,
        "consensus_distance": None,
    }
    text = "\n".join(plain(summary_table(loss)))
    assert "loss of the averaged model │ 0.1235 " in text
    assert "per worker" not in text and "consensus" not in text and "None" not in text


def test_a_path_longer_than_the_terminal_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    show(summary_table({**SUMMARY, "run_dir": "/" + "r" * 200}))
    assert capsys.readouterr().out.splitlines()[-1].rstrip() == "results in /" + "r" * 200

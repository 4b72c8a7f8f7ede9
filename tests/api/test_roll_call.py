"""Ranks of a training loop that hang end the others with one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.paths import RANKS, ROOT
from helpers.ranks.hanging_rank import CASES
from helpers.refusals import refusal
from torch import nn

from sgp_runner import Averager
from sgp_runner.api.roll_call import SILENT, Answer, sentence

AT = r"is at hang \(hanging_rank\.py, line \d+\); rank 0 has begun 6 steps and waits for "
WAITS = {
    "sgp": r"has begun 5 steps and " + AT + "a message from rank 1",
    "ar_sgd": r"has begun 5 steps and " + AT + "all-reduce 5",
    "osgp": r"has begun 5 steps and " + AT + "all ranks to finish",
    "slowmo": r"does not answer; rank 0 has begun 6 steps and waits for a message from rank 1",
    "diloco": r"does not answer; rank 0 has begun 0 steps and waits for all ranks to make their "
    "Averager",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the output of the script, and the folder where its ranks leave their messages."""
    folder = tmp_path_factory.mktemp("hanging")
    command = [sys.executable, str(RANKS / "hanging_rank.py"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout, folder


def messages(folder: Path, algo: str, rank: int) -> list[str]:
    text = (folder / f"{algo}.{rank}").read_text()
    return re.findall(r"^\[rank\d\]: sgp_runner\.utils\.errors\.StallTimeout: (.+)$", text, re.M)


@pytest.mark.parametrize("algo", CASES)
def test_the_other_rank_ends_with_a_sentence_about_the_one_that_hangs(
    algo: str, ended: tuple[str, Path]
) -> None:
    printed, folder = ended
    assert f"{algo} 1\n" in printed  # its exit code
    (found,) = messages(folder, algo, 0)
    expected = (
        r"rank 1 did not arrive within 10 ms \(timeout_seconds\), so fix the cause or allow more: "
        rf"rank 1 {WAITS[algo]} for \d+\.\d s\."
    )
    assert re.fullmatch(expected, found), found


@pytest.mark.parametrize(
    "algo", [algo for algo, case in CASES.items() if case in ("hangs", "ahead")]
)
def test_a_rank_that_comes_too_late_ends_with_the_same_sentence(
    algo: str, ended: tuple[str, Path]
) -> None:
    _, folder = ended
    assert messages(folder, algo, 1) == messages(folder, algo, 0)


# Rank 3 is in a collective of the script, which waits for rank 1 too.
MISSING = {
    0: (6, True, "waits for a message from rank 2 for 60.1 s"),
    1: (5, False, "is at load (train.py, line 31)"),
    2: (6, True, "waits for a message from rank 1 for 60.1 s"),
    3: (6, False, "is at log (train.py, line 40)"),
    4: (5, False, "is at load (train.py, line 32)"),
}
ALL_WAIT = {
    0: (6, True, "waits for a message from rank 1 for 9.1 s"),
    1: (5, True, "waits for the average of all models for 9.0 s"),
}
SENTENCES = [
    (
        MISSING,
        "ranks 1, 4 did not arrive within 9 s (timeout_seconds), so fix the cause or allow "
        "more: rank 1 has begun 5 steps and is at load (train.py, line 31); rank 4 has begun 5 "
        "steps and is at load (train.py, line 32); rank 0 has begun 6 steps and waits for a "
        "message from rank 2 for 60.1 s.",
    ),
    (
        ALL_WAIT,
        "all ranks have waited for each other for 9 s (timeout_seconds), so call step, average, "
        "finish and state_dict on all of them together: rank 0 has begun 6 steps and waits for a "
        "message from rank 1 for 9.1 s; rank 1 has begun 5 steps and waits for the average of all "
        "models for 9.0 s.",
    ),
]


@pytest.mark.parametrize(("answers", "text"), SENTENCES, ids=["missing", "all wait"])
def test_of_the_ranks_that_do_not_wait_those_with_the_fewest_steps_are_missing(
    answers: dict[int, Answer], text: str
) -> None:
    assert sentence(answers, "9 s") == text


def test_a_rank_that_does_not_answer_is_the_missing_one() -> None:
    assert sentence({**MISSING, 2: SILENT}, "9 s").startswith("rank 2 did not arrive within 9 s")


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_limit_is_positive(seconds: float, alone: None) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    error = refusal(Averager, "sgp", model, optimizer, timeout_seconds=seconds)
    assert str(error) == f"timeout_seconds: {seconds} must be positive."

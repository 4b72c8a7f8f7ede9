"""Messages: where they go, what hides them, and that secrets in them are masked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgp_runner.utils.messages import QUIET, is_quiet, logger, showing_messages


def test_each_level_has_its_stream_and_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info("100 % done")
    logger.warning("a file is missing")
    logger.error("rank 1 failed")
    assert capsys.readouterr() == (
        "100 % done\n",
        "warning: a file is missing\nsgp-run: rank 1 failed\n",
    )


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info("logs in at https://me:hunter2@example.org")
    assert "hunter2" not in capsys.readouterr().out


def test_warnings_alone_are_shown_if_not_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_messages(verbose=False):
        assert is_quiet() and os.environ[QUIET] == "1"
        logger.info("starting 4 ranks")
        logger.warning("a file is missing")
    logger.info("afterwards")
    assert not is_quiet() and QUIET not in os.environ
    assert capsys.readouterr() == ("afterwards\n", "warning: a file is missing\n")


def test_a_program_that_imports_the_package_handles_its_messages_itself(tmp_path: Path) -> None:
    program = (
        "import logging; logging.basicConfig(format='%(name)s %(message)s', level='INFO')\n"
        "from sgp_runner.utils.messages import logger\n"
        "logger.info('starting')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "sgp_runner starting\n")


def test_the_logger_is_as_before_after_a_call_from_python() -> None:
    before = logger.handlers[:], logger.propagate, logger.level
    with showing_messages(verbose=False):
        logger.addHandler(logging.NullHandler())
    assert (logger.handlers, logger.propagate, logger.level) == before

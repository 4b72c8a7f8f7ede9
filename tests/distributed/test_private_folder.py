"""The private folder of a real run: removed at its end, or by the next start if it was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.processes import wait_for_ranks, wait_until
from helpers.shooting import COMMAND

from sgp_runner.distributed.private_folder import LOCK, prefix, private_folder

WORDS = ("network=gloo", "nodes=2", "model=mlp", "logger=jsonl", "results=.", "epochs=1000")


def test_the_next_start_removes_the_folder_of_a_killed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, *WORDS], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
    ) as command:
        ranks = wait_for_ranks(tmp_path, 2)
        os.kill(ranks[1], signal.SIGSTOP)  # it outlives its launcher
        command.kill()
    (killed,) = tmp_path.glob("sgp-run-*")
    assert left_by_the_next_start(tmp_path) == {killed}
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    # The kernel releases the lock a little after the ranks have ended.
    wait_until(lambda: not left_by_the_next_start(tmp_path), "the removal of the folder")


def test_a_removal_that_was_killed_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it removed first of the folder that it was asked to remove."""

    def killed(folder: Path, **options: object) -> None:
        (folder / LOCK).unlink(missing_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
        private_folder() as private,
    ):
        (private / "studies").mkdir()
        patch.setattr(shutil, "rmtree", killed)
    assert private.exists()
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # which a killed process has not
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(private / LOCK):
                os.close(descriptor)
    assert left_by_the_next_start(tmp_path) == set()


def left_by_the_next_start(temporary: Path) -> set[Path]:
    with private_folder() as folder:
        return set(temporary.glob("sgp-run-*")) - {folder}


def test_folders_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / f"{prefix()}abandon0"
    elsewhere = tmp_path / "sgp-run-another_machine-abcdefgh"
    longer = tmp_path / f"{prefix()}notes_of_mine"
    link, target = tmp_path / f"{prefix()}linklink", tmp_path / "target"
    for folder in (abandoned, elsewhere, longer, target):
        folder.mkdir()
        (folder / LOCK).touch()
    unlocked = tmp_path / f"{prefix()}unlocked"
    unlocked.mkdir()
    link.symlink_to(target)
    stay = {elsewhere, longer, link, target, unlocked}
    with private_folder() as one, private_folder() as other:
        assert one.stat().st_mode & 0o777 == 0o700
        assert set(tmp_path.iterdir()) == {one, other, *stay}
    assert set(tmp_path.iterdir()) == stay


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"{prefix()}stranger"
    folder.mkdir()
    (folder / LOCK).touch()
    os.chown(folder, 65534, 65534)
    with private_folder():
        pass
    assert list(tmp_path.iterdir()) == [folder]

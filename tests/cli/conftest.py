"""Commands are tested in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder, without variables of launchers."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SGP_RUN_TRACEBACK", "HYDRA_FULL_ERROR", "NOWHERE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path

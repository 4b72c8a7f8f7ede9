"""Tests that look for processes read ``/proc``, which only Linux has; elsewhere their modules are
left out.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import compositions, rank_server

from sgp_runner.assembly.real import launch
from sgp_runner.config import composed
from sgp_runner.config.plugins import loading as plugins
from sgp_runner.utils.messages import show_messages

show_messages()

HERE = Path(__file__).parent
MODULES = HERE.rglob("test_*.py")
collect_ignore = [
    str(path.relative_to(HERE))
    for path in MODULES
    if sys.platform != "linux" and re.search("/proc|ranks_of", path.read_text(encoding="utf-8"))
]


# Folders with files that take long: begun last, one of them would keep the others waiting.
LONG = ("tests", "distributed", "utils", "gpu_rig", "simulator", "studies", "models", "replay")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files by folder, those of ``LONG`` first."""
    place = {folder: number for number, folder in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(place)))


@pytest.fixture(autouse=True, scope="session")
def collected_tests_are_no_garbage() -> Iterator[None]:
    """A run looks for garbage at its end: 0.4 s among the objects of all tests, and hardly any
    among those that are new. A simulation's freeze and unfreeze would end that.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("freeze", "unfreeze"):
            patch.setattr(gc, name, lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def compositions_are_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    folder /= "compositions"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compositions.FOLDER, str(folder))
        patch.setattr(composed, "compose", composed.compose)
        compositions.share(folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def ranks_are_forked(compositions_are_shared: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(launch, "start", rank_server.start)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by playwright; one for the tests of a file."""
    names = ("chromium", "chromium-browser", "google-chrome")
    if (program := next(filter(None, map(shutil.which, names)), None)) is None:
        pytest.skip("needs a browser (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without PNG and SVG, for which matplotlib takes a second per plot."""
    monkeypatch.setattr("sgp_runner.report.render.pictures.save_all", lambda plots, folder: None)


@pytest.fixture(autouse=True)
def no_plug_in_outlives_its_test() -> Iterator[None]:
    """The choices of plug-ins belong to a process, and a process runs many tests."""
    yield
    plugins.forget()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

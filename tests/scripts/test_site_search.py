"""The search of the site works in a folder. Skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

PAGE = """<title></title>SHIM<script>
const worker = new Worker("worker.js");
worker.addEventListener("message", event => document.title += event.data);
worker.postMessage("a"); worker.postMessage("b");
</script>"""
WORKER = 'addEventListener("message", async event => postMessage(await `<${event.data}>`));'


@pytest.mark.parametrize(
    ("shim", "title"), [("", ""), ('<script src="shim.js"></script>', "<a><b>")]
)
def test_a_worker_answers_in_a_page_that_is_a_file(
    browser: Any, shim: str, title: str, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "docs/pictures/iframe-worker.js", tmp_path / "shim.js")
    (tmp_path / "worker.js").write_text(WORKER)
    (tmp_path / "page.html").write_text(PAGE.replace("SHIM", shim))
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/page.html")
    if title:
        page.wait_for_function("document.title")
    assert page.title() == title
    page.close()

"""The parts of the documentation's site that come from the code."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.paths import ROOT

from pages import algorithms, animation, api, cells, features, figures, links, llms, settings
from pages.fill import DOCS, PARTS, filled, generated
from sgp_runner.config.choices import groups


def test_every_marker_names_a_part() -> None:
    used = [
        found
        for page in (ROOT / "docs").rglob("*.md")
        for found in re.findall(r"^<!-- (\w+):", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert set(used) == {*PARTS, "commands"}


def test_links_leave_the_repository_for_the_site() -> None:
    for page, text, on_site in (
        (
            "plugins.md",
            "[a](../SECURITY.md#top) [b](../configs) [c](../docs/faults.md) [d](https://x.org)",
            "[a](security.md#top) b [c](faults.md) [d](https://x.org)",
        ),
        (
            "contributing.md",
            "[a](docs/plugins.md)\n\n```\n[b](nowhere)\n```\n",
            "[a](plugins.md)\n\n```\n[b](nowhere)\n```\n",
        ),
        ("algorithms/sgp.md", "[a](../settings.md)", "[a](../settings.md)"),
        ("index.md", "[a](course/a.ipynb)", "[a](course/a.md)"),
    ):
        assert links.on_site(text, page) == on_site
    with pytest.raises(FileNotFoundError, match="docs/plugins.md: there is no nothing.md"):
        links.on_site("[a](../nothing.md)", "plugins.md")


def test_a_choice_has_its_settings_with_type_default_and_description() -> None:
    assert settings.of_choice("algo=local_sgd").splitlines() == [
        "| key | default | description | type |",
        "| --- | --- | --- | --- |",
        "| `algo.tau` | `12` | steps between exact averages, the last one at the end; null: never, "
        "as the base of SlowMo; algo.period is the same setting | a whole number or null |",
    ]


def test_the_reference_has_every_choice_and_every_key_of_a_run() -> None:
    text = (DOCS / "reference/index.md").read_text(encoding="utf-8")
    for group, choices in groups().items():
        section = text[text.index(f"## `{settings.key_of(group)}=`") :]
        assert all(f"| {settings.label(group, choice)} |" in section for choice in choices)
    for key in ("nodes", "checkpoint.keep", "timed_as.model", "data.alpha", "cluster.links.duplex"):
        assert f"| `{key}` | " in text, key


def test_published_figures_stand_beside_simulated_times() -> None:
    text = algorithms.published_figures("osgp")
    assert "| `sgp_osgp_270` | hours | 2.7 h | 2.699 (-0.0 %, fitted to it) |" in text
    assert "| `slowmo_cifar10_osgp` | val top1 | 93.17 % |  |" in text and "_slowmo`" not in text


def test_tests_are_told_as_sentences() -> None:
    assert algorithms.sentence("sgp_on_two_nodes_is_d_psgd") == "SGP on two nodes is D-PSGD"
    assert "- OSGP without delay is SGP" in algorithms.identities("osgp").splitlines()


def test_the_features_of_an_algorithm_are_what_the_checks_say() -> None:
    told = {
        ("osgp", "re-timing"): (
            "`--retime`: the run cannot be re-timed: OSGP with these settings polls for messages, "
            "so its decisions depend on time; train it on that cluster."
        ),
        ("osgp", "`on_failure=continue`"): "yes",
        ("ar_sgd", "`on_failure=continue`"): (
            "`on_failure`: AR-SGD needs all of its ranks in its all-reduce: use on_failure=stop "
            "and resume with the same command, or use a gossip algorithm."
        ),
        ("ar_sgd", "re-timing"): "yes",
        ("gap_aware", "MPI"): "yes",
    }
    assert {cell: features.answer(*cell) for cell in told} == told


def test_features_of_all_algorithms_need_no_column() -> None:
    text = (DOCS / "algorithms/index.md").read_text(encoding="utf-8")
    assert "All algorithms: resume, faults, `gpus_per_node`, gloo, NCCL, MPI." in text
    assert "| `algo=` | record and replay | `on_failure=continue` | re-timing |" in text
    assert "| [`a2cid2`](a2cid2.md) | no | no | no |" in text


def test_the_reference_describes_a_shared_setting_once() -> None:
    text = (DOCS / "reference/index.md").read_text(encoding="utf-8")
    assert "| `model.layers` | `2 / 12 / 12 / 24 / 4` | blocks of attention" in text
    assert "As for `cifar10`: `data.partition`, `data.alpha`, `data.label_smoothing`." in text
    assert "`algo.tau`" not in text and "`optim.schedule.milestones` | `[30, 60, 80]` |" in text


def test_a_figure_shows_a_simulated_run() -> None:
    """Gradients of 0.23 s, 1.4 times as long on node 3, and a ring of messages of 102.2 MB."""
    trace = figures.traced("sgp", nodes=4)
    assert trace.gradients[:4] == [(0, 0, 0.23), (1, 0, 0.23), (2, 0, 0.23), (3, 0, 0.322)]
    assert sorted(
        (i, j, begin, size) for i, j, begin, _, size in trace.messages if begin < 0.4
    ) == [
        (0, 1, 0.23, 102228132),
        (1, 2, 0.23, 102228132),
        (2, 3, 0.23, 102228132),
        (3, 0, 0.322, 102228132),
    ]
    assert "simulated time in seconds" in figures.draw(trace)
    assert figures.traced("ar_sgd", nodes=4).messages == []


def test_an_animation_moves_each_message_during_its_time() -> None:
    messages = [(0, 1, 0.35, 0.7, 4e6), (1, 8, 0.7, 2.1, 1e6)]
    trace = figures.Trace(8, 9, "Test", [(0, 0.0, 0.35)], messages, [(0.7, 1.4), (0.8, 1.0)])
    root = ElementTree.fromstring(animation.draw(trace))
    svg = "{http://www.w3.org/2000/svg}"
    # Node 0 is at the top, the server in the centre; the second message is half way at the end.
    assert [
        (motion.get("keyTimes"), motion.get("path")) for motion in root.iter(f"{svg}animateMotion")
    ] == [
        ("0;0.250;0.500;1", "M210 40L293 75"),
        ("0;0.500;1.000;1", "M293 75L252 116"),
    ]
    circles = root.iter(f"{svg}circle")
    assert [circle.get("r") for circle in circles if circle.get("cx") is None] == [
        *("9.0", "4.5")  # areas 4 to 1
    ]
    shown = [
        (fade.get("values"), fade.get("keyTimes"))
        for fade in root.iter(f"{svg}animate")
        if fade.get("attributeName") == "opacity"
    ]
    assert shown[:2] == [("0;1;0", "0.000;0.500;1.000"), ("0;1;0", "0.000;0.000;0.250")]


def test_an_unknown_marker_ends_the_build() -> None:
    with pytest.raises(KeyError, match="nothing"):
        filled("<!-- nothing: x -->")


def test_generated_parts_are_replaced_and_nothing_else() -> None:
    once = filled(
        "# T\n\n<!-- settings: algo=local_sgd -->\n\nText\n\n<!-- commands: run -->\n\n    x\n"
    )
    assert "| `algo.tau` |" in once and once.endswith(
        "<!-- end -->\n\nText\n\n<!-- commands: run -->\n\n    x\n"
    )
    assert filled(once) == once


@pytest.mark.parametrize(
    "names", ["sgp", "api", "explorer", pytest.param("*", marks=pytest.mark.slow)]
)
def test_generated_files_are_current(names: str) -> None:
    """`make docs` writes them; a change of a setting or a docstring needs it."""
    stale = [
        str(path.relative_to(DOCS))
        for path, text in generated(names)
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: make docs"


def test_annotations_have_no_quotes() -> None:
    def example(at: Tensor | None = None, *, tag: int = 0) -> list[Tensor]:  # type: ignore[name-defined] # noqa: F821
        """Nothing."""

    assert api.parameters(example) == "(at: Tensor | None = None, *, tag: int = 0) -> list[Tensor]"


def test_the_api_has_no_methods_of_the_run() -> None:
    text = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    names = ("increment(self, name: str) -> int`**", "side_effects", "next_collective")
    assert [f"**`{name}" in text for name in names] == [True, False, False]


def test_a_notebook_becomes_a_page_with_pictures(tmp_path: Path) -> None:
    outputs = [
        {"data": {"text/plain": ["\x1b[1mbold\x1b[0m\n"]}},
        {"data": {"text/html": ["<table border='1'>\n", "\n<tr></tr></table>"], "text/plain": "x"}},
        {"data": {"image/png": base64.b64encode(b"png").decode()}},
    ]
    notebook = tmp_path / "a.ipynb"
    described = {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]}
    computed = {"cell_type": "code", "source": ["f()"], "outputs": outputs}
    notebook.write_text(json.dumps({"cells": [described, computed]}))
    assert dict(cells.pages(notebook, "course/a")) == {
        "course/a-1.png": b"png",
        "course/a.md": "# Title\n\nText.\n\n[The notebook](a.ipynb), to run it.\n\n"
        "```python\nf()\n```\n\n```text\nbold\n```\n\n<table>\n<tr></tr></table>\n\n"
        "![Figure of the cell above](a-1.png)",
    }
    address = "https://colab.research.google.com/github/us/runner/blob/main/docs/course/a.ipynb"
    assert f"to run it. [Open it in Colab]({address}).\n" in str(
        dict(cells.pages(notebook, "course/a", "us/runner"))["course/a.md"]
    )


def test_language_models_get_an_index_and_the_whole_text() -> None:
    texts = {
        "index.md": "# Home\n\n![p](x.svg)\n\nOne [link](a.md). Two.\n",
        "a.md": "# A\n\n<!-- commands: run -->\n\n    x\n\nThis is `a`, v1.2. More.",
    }
    nav = [{"Start": "index.md"}, {"Guides": [{"Runs": [{"A": "a.md"}]}]}]
    files = dict(llms.files("sgp-run", "About it", nav, texts))
    assert files["llms.txt"] == (
        "# sgp-run\n\n> About it\n\n## Start\n\n- [Home](index.md): One link.\n\n"
        "## Guides\n\n- [A](a.md): This is `a`, v1.2.\n"
    )
    assert files["llms-full.txt"].startswith("<!-- index.md -->\n\n# Home\n")
    assert {path: files[path] for path in texts} == texts

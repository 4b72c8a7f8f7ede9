"""The parts of the documentation's site that come from the code."""

from __future__ import annotations

import re

import pytest
from helpers.paths import ROOT

from pages import algorithms, features, figures, links, settings
from pages.hooks import PARTS, on_page_markdown
from sgp_runner.config.choices import groups


def test_every_marker_names_a_part() -> None:
    used = [
        found
        for page in (ROOT / "docs").rglob("*.md")
        for found in re.findall(r"^<!-- (\w+):", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert set(used) == set(PARTS)


def test_links_leave_the_repository_for_the_site() -> None:
    text = "[a](../SECURITY.md#top) [b](../configs) [c](../docs/faults.md) [d](https://x.org)"
    on_site = "[a](security.md#top) b [c](faults.md) [d](https://x.org)"
    assert links.on_site(text, "plugins.md") == on_site
    text = "[a](docs/plugins.md)\n\n```\n[b](nowhere)\n```\n"
    assert links.on_site(text, "contributing.md") == text.replace("docs/", "")
    assert links.on_site("[a](../settings.md)", "algorithms/sgp.md") == "[a](../settings.md)"
    with pytest.raises(FileNotFoundError, match="docs/plugins.md: there is no nothing.md"):
        links.on_site("[a](../nothing.md)", "plugins.md")


def test_a_choice_has_its_settings_with_type_default_and_description() -> None:
    lines = settings.of_choice("algo=local_sgd").splitlines()
    said = (
        "steps between exact averages, the last one at the end; null: never, as the base of SlowMo"
    )
    assert lines == [
        "| key | default | description | type |",
        "| --- | --- | --- | --- |",
        f"| `algo.tau` | `12` | {said} | a whole number or null |",
    ]


def test_the_reference_has_every_choice_and_every_key_of_a_run() -> None:
    text = settings.reference("all")
    for group, choices in groups().items():
        section = text[text.index(f"## `{settings.key_of(group)}=`") :]
        assert all(f"| `{choice}` |" in section for choice in choices)
    for key in (
        "nodes",
        "checkpoint.keep",
        "timed_as.model",
        "algo.order",
        "cluster.links.bandwidth",
    ):
        assert f"| `{key}` | " in text, key


def test_published_figures_stand_beside_simulated_times() -> None:
    text = algorithms.published_figures("osgp")
    assert "| `sgp_osgp_270` | hours | 2.7 h | 2.699 (-0.0 %, fitted to it) |" in text
    assert "| `slowmo_cifar10_osgp` | val top1 | 93.17 % |  |" in text
    assert "_slowmo`" not in text  # those run slowmo


def test_tests_are_told_as_sentences() -> None:
    assert algorithms.sentence("sgp_on_two_nodes_is_d_psgd", "") == "SGP on two nodes is D-PSGD"
    assert "- OSGP without delay is SGP" in algorithms.identities("osgp").splitlines()


def test_the_features_of_an_algorithm_are_what_the_checks_say() -> None:
    polls = (
        "`--retime`: the run cannot be re-timed: OSGP with these settings polls for messages, so "
        "its decisions depend on time; train it on that cluster."
    )
    needs_all = (
        "`on_failure`: AR-SGD needs all of its ranks in its all-reduce: use on_failure=stop and "
        "resume with the same command, or use a gossip algorithm."
    )
    told = {
        ("osgp", "re-timing"): polls,
        ("osgp", "`on_failure=continue`"): "yes",
        ("ar_sgd", "`on_failure=continue`"): needs_all,
        ("ar_sgd", "re-timing"): "yes",
        ("gap_aware", "MPI"): "yes",
    }
    assert {cell: features.answer(*cell) for cell in told} == told


def test_a_figure_shows_a_simulated_run() -> None:
    """Gradients of 0.23 s, 1.4 times as long on node 3, and a ring of messages of 102.2 MB."""
    trace = figures.traced("sgp")
    assert trace.gradients[:4] == [(0, 0, 0.23), (1, 0, 0.23), (2, 0, 0.23), (3, 0, 0.322)]
    sent = sorted((src, dst, begin) for src, dst, begin, _ in trace.messages if begin < 0.4)
    assert sent == [(0, 1, 0.23), (1, 2, 0.23), (2, 3, 0.23), (3, 0, 0.322)]
    assert "simulated time in seconds" in figures.draw(trace)
    assert figures.traced("ar_sgd").messages == []


def test_an_unknown_marker_ends_the_build() -> None:
    class File:
        src_uri = "settings.md"

    class Page:
        file = File()

    with pytest.raises(KeyError, match="nothing"):
        on_page_markdown("<!-- nothing: x -->", Page())

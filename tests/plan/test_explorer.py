"""``sgp-run plan --html``: the grid of timing studies, and the page in a real browser."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import explorer as documentation
from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.plan import grid
from sgp_runner.plan.comparison import compare
from sgp_runner.plan.explorer import explorer_page
from sgp_runner.plan.grid import Axes, axes_of, including, simulated_grid
from sgp_runner.plan.request import read_request
from sgp_runner.plan.table import entries, table, text_of
from sgp_runner.plan.timing import Timing, at_rate, time_steps

# A billion parameters of 4 bytes: a step of 1 s, and 32e9 / rate seconds for 2 nodes.
WORDS = [
    *("parameters=1e9", "step=1s", "nodes=2", "bandwidth=8Gbit/s", "latency=0", "steps=3600"),
    "cluster.collectives.overlap=0",
]
AXES = Axes((8e9, 3.2e10), (0.0,), (2,), (10, 100))


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return simulated_grid([*WORDS, "methods=ar_sgd,diloco,osgp"], axes=AXES)


def test_own_values_replace_the_nearest_ones_of_an_axis() -> None:
    for axis, own, values in (
        ((1e8, 1e9, 1e10), 2e9, [1e8, 2e9, 1e10]),
        ((1e8, 1e9), 1e9, [1e8, 1e9]),
        ((50e-6, 1e-3), 0.0, [0.0, 1e-3]),
    ):
        assert including(axis, own) == values


def test_times_of_the_grid_are_those_of_timing_studies(small: dict[str, Any]) -> None:
    assert {method["title"]: method["seconds"] for method in small["methods"]} == {
        "Data parallel": [5.0, 2.0],
        "DiLoCo": [1.4, 1.04, 1.1, 1.01],
        "OSGP, tau 1": [4.0, 1.0],
    }
    assert [method["near"] for method in small["methods"]] == [True, 30, False]
    assert small["start"] == {"rate": 8e9, "latency": 0.0, "nodes": 2, "period": 100}
    assert small["budget"]["steps"] == 3600 and not small["budget"]["divided"]


def test_what_is_hidden_on_worse_links_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []

    def record(run: Run) -> Timing:
        simulated.append((type(run.algo).__name__, run.cluster.links.rate))
        return time_steps(run)

    monkeypatch.setattr(grid, "time_steps", record)
    drawn = simulated_grid([*WORDS, "methods=osgp"], axes=Axes((1e13, 1e14), (0.0,), (2,), (10,)))
    assert drawn["methods"][1]["seconds"] == [1.0, 1.0]
    assert simulated == [("ARSGD", 1e13), ("ARSGD", 1e14), ("OSGP", 1e13)]


def test_a_plan_has_960_points_with_its_own_machines() -> None:
    axes = axes_of(WORDS, (), read_request(WORDS))
    assert 8e9 in axes.rates and 0.0 in axes.latencies and 2 in axes.nodes
    assert [*map(len, (axes.rates, axes.latencies, axes.nodes, axes.periods))] == [8, 4, 5, 6]


def test_a_profile_with_regions_has_one_number_of_nodes() -> None:
    arguments = ["cluster=regions_2x4", "model=llama_1b", "nodes=8"]
    assert axes_of(arguments, (), read_request(arguments)).nodes == [8]


def test_the_command_writes_a_page_that_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "RATES", (8e9,))
    monkeypatch.setattr(grid, "LATENCIES", (0.0,))
    monkeypatch.setattr(grid, "NODES", (2,))
    path = tmp_path / "plan.html"
    assert main(["plan", *WORDS, "methods=ar_sgd", "--html", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"explorer in {path}\n")
    text = path.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert '"seconds": [5.0]' in text
    assert "explorer: Data parallel (1 of 1 methods)" in out
    assert (
        main(["plan", *WORDS, "methods=ar_sgd", "--html", str(tmp_path / "none" / "plan.html")])
        == 2
    )
    assert "--html: cannot write" in capsys.readouterr().err


def test_points_of_the_documentations_explorer_are_simulated_again() -> None:
    stored = documentation.stored_grids()
    assert [entry["title"] for entry in stored] == list(documentation.REQUESTS)
    for entry, arguments in zip(stored, documentation.REQUESTS.values(), strict=True):
        nodes, rate = entry["nodes"][1], entry["rates"][3]
        times = documentation.times_at(entry, nodes, rate)
        request = read_request([*arguments.split(), f"nodes={nodes}"])
        for title, *method in (
            ("Data parallel", "algo=ar_sgd"),
            ("DiLoCo", "algo=diloco", "algo.period=100"),
            ("OSGP, tau 1", "algo=osgp", "algo.tau=1"),
        ):
            run = at_rate(experiment_of([*request.overrides, *method]).run, rate)
            assert times[title] == pytest.approx(time_steps(run).seconds, rel=1e-5)


def test_the_picture_shows_the_winners_of_the_documentations_explorer(tmp_path: Path) -> None:
    grid = documentation.stored_grids()[0]
    assert documentation.winner(grid, 2, 1e9) == (
        "Streaming DiLoCo, FP4",
        pytest.approx(16.0 / 0.126519, rel=1e-3),
    )
    assert documentation.winner(grid, 2, 3e11) == ("Data parallel", 1.0)
    documentation.draw(grid, tmp_path / "explorer.svg")
    drawn, shown = (
        re.findall(r"<!-- *(.*?) *-->", path.read_text(encoding="utf-8"))
        for path in (tmp_path / "explorer.svg", documentation.PICTURE)
    )
    assert drawn == shown and "126×" in shown


def test_page_and_text_have_the_same_answer(browser: Any, tmp_path: Path) -> None:
    arguments = [*WORDS, "methods=ar_sgd,diloco", "periods=30"]
    plan = compare(read_request(arguments), rates=False)
    assert plan.answer.startswith("DiLoCo, H 30: 1.13 h instead of 5 h;")
    drawn = simulated_grid(arguments, axes=Axes((8e9, 3.2e10), (0.0,), (2,), (10, 30)), plan=plan)
    assert drawn["answer"] == plan.answer and drawn["start"]["period"] == 30
    path = tmp_path / "plan.html"
    path.write_text(explorer_page([{**drawn, "title": "two nodes"}], "Which method?"))
    page = browser.new_page(viewport={"width": 1280, "height": 800}, offline=True)
    page.goto(path.as_uri())
    assert page.inner_text("#answer") == plan.answer
    # Computed by the page, from another value and back, the method is the same.
    page.locator("#methods tr", has_text="DiLoCo").locator("input").uncheck()
    assert page.inner_text("#answer b") == "Data parallel: 5 h"
    page.locator("#methods tr", has_text="DiLoCo").locator("input").check()
    assert page.inner_text("#answer b") == "DiLoCo, H 30: 1.13 h"
    page.close()


def test_page_and_text_have_the_same_rows() -> None:
    """With sites, also one replica per site, and the memory of a device."""
    arguments = [
        *("parameters=1e9", "step=1s", "nodes=4", "sites=2", "bandwidth=80Gbit/s", "latency=0"),
        *("site_bandwidth=8Gbit/s", "site_latency=0"),
    ]
    plan = compare(read_request([*arguments, "methods=ar_sgd,diloco", "periods=30"]), rates=False)
    head, *body = (
        [html.unescape(text) for text in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)]
        for row in rows(explorer_page([], "Which method?", plan))
    )
    assert [tuple(texts) for texts in (head, *body)] == entries(plan.shown())
    assert [texts[0] for texts in body] == [row.title for row in plan.rows]
    assert "DiLoCo, H 30, per site" in [texts[0] for texts in body] and "memory" in head
    assert all(line in text_of(plan) for line in table(plan.shown()))


def rows(page: str) -> list[str]:
    """Return the rows of the table of the plan, with its head."""
    part = page.partition("The plan of these machines")[2].partition("</table>")[0]
    return re.findall(r"<tr>(.*?)</tr>", part)


def test_what_does_not_fit_is_no_answer_of_the_page() -> None:
    arguments = [*WORDS, "methods=ar_sgd,diloco", "periods=30", "device_memory=20GB"]
    drawn = simulated_grid(arguments, axes=AXES, plan=compare(read_request(arguments), rates=False))
    assert [method["near"] for method in drawn["methods"]] == [True, 0]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(
    browser: Any, tmp_path: Path, small: dict[str, Any], width: int
) -> None:
    """At 16 Gbit/s between two points, data parallel takes 1 + 32 / 16 s, as in the simulator."""
    path = tmp_path / "plan.html"
    path.write_text(explorer_page([{**small, "title": "two nodes"}], "Which method?"))
    page = browser.new_page(viewport={"width": width, "height": 800}, offline=True)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())

    def cells() -> dict[str, list[str]]:
        found = [row.locator("td").all_inner_texts() for row in page.locator("#methods tr").all()]
        return {first.strip(): rest for first, *rest in found}

    assert page.inner_text("#answer") == (
        "Data parallel: 5 h, 20 % of it computing. Below 32 Gbit/s, data parallel computes less "
        "than half of the time."
    )
    # Its quality is known up to H = 30.
    assert "Faster, but not chosen: DiLoCo, H 100, 1.04 h." in page.inner_text("#faster")
    assert page.inner_text("#source") == "Simulated at this point."
    assert cells()["OSGP, tau 1"][:3] == ["4", "25 %", "4"]
    page.locator("#rate").fill("500")
    assert page.inner_text("#rate-value") == "16 Gbit/s"
    assert page.inner_text("#source") == "Interpolated between simulated points."
    assert cells()["Data parallel"][:3] == ["3", "33 %", "3"]
    assert cells()["DiLoCo, H 100"][:3] == ["1.02", "98 %", "1.02"]
    page.locator("#period").fill("0")
    assert cells()["DiLoCo, H 10"][0] == "1.2"
    assert page.inner_text("#answer b") == "DiLoCo, H 10: 1.2 h"
    page.locator("#rate").fill("1000")
    page.locator("#methods tr", has_text="OSGP").locator("input").check()
    assert page.inner_text("#answer b") == "OSGP, tau 1: 1 h"
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert complaints == []
    page.close()

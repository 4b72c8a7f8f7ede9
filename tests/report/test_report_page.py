"""The report's page in a real browser, without a network. Skipped where there is no Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.report_runs import write_run

from sgp_runner.report.render.write import write_report

CURVE = [[0.50, 0.60], [0.80, 0.90], [0.90, 1.00]]
LOOK = """() => ({
    overlaps: [...document.querySelectorAll('.plot')].flatMap(box =>
        ['.annotation-text', '.xtick', '.ytick'].flatMap(kind => {
            const texts = [...box.querySelectorAll(kind)].map(text => text.getBoundingClientRect());
            return texts.flatMap((one, place) => texts.slice(place + 1).filter(other =>
                Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
                Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1
            ).map(() => box.id + kind));
        })
    ),
    plots: document.querySelectorAll('.plot').length,
    drawn: [...document.querySelectorAll('.plot')].filter(
        box => box.querySelector('.main-svg .trace')
    ).length,
    width: document.documentElement.scrollWidth,
    cut: [...document.querySelectorAll('.plot .main-svg')].filter(
        svg => svg.getBoundingClientRect().right > innerWidth
    ).length + [...document.querySelectorAll('.annotation-text')].filter(
        text => text.getBoundingClientRect().right > innerWidth
    ).length,
    invalid: [...document.querySelectorAll('.plot')].flatMap(box =>
        (Plotly.validate(box.data, box.layout) || []).map(each => each.msg)
    ),
})"""
UNFOLD = """() => Promise.all([...document.querySelectorAll('details.plots-aside')].map(part => {
    part.open = true;
    return new Promise(done => part.addEventListener('toggle', done, {once: true}));
}))"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    for algorithm in ("SGP", "AR-SGD", "SlowMo(Local SGD)"):
        for nodes in (2, 4, 8):
            for seed in (1, 2):
                write_run(
                    root / "runs",
                    f"{algorithm[:2]}-{nodes}-{seed}",
                    [[point[0]] * nodes for point in CURVE],
                    algorithm=algorithm,
                    nodes=nodes,
                    seed=seed,
                    early=5,
                )
        wall = {"algorithm": algorithm, "clock": "wall"}
        write_run(root / "runs", f"{algorithm[:2]}-wall", CURVE, early=5, **wall)
    write_run(
        root / "runs",
        "row",
        nodes=32,
        row="slowmo_imagenet_local_sgd_slowmo",
        ms_per_iteration=300.0,
    )
    return write_report([root / "runs"], root / "report").page


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (390, "dark")])
def test_the_page_shows_every_plot_without_a_network(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
    )
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate(UNFOLD)
    seen = page.evaluate(LOOK)
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert complaints == [] and seen["invalid"] == []
    assert (
        seen["plots"]
        == seen["drawn"]
        == len(list((page_file.parent / "plots").glob("*.svg")))
        == 12
    )
    assert seen["overlaps"] == []
    assert seen["width"] == width and seen["cut"] == 0
    page.close()


def test_plots_follow_the_width_of_the_window_and_the_colour_scheme(
    browser: Any, page_file: Path
) -> None:
    page = browser.new_page(
        viewport={"width": 1280, "height": 800}, color_scheme="light", offline=True
    )
    page.goto(page_file.as_uri())
    ink = "() => getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert page.evaluate(ink) == "rgb(28, 33, 39)"
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "() => document.querySelector('.plot .main-svg').getBoundingClientRect().right <= 390"
    )
    page.wait_for_function(f"() => ({ink})() === 'rgb(230, 233, 237)'")
    assert page.evaluate(LOOK)["width"] == 390
    page.close()


def test_the_page_fits_on_paper_and_is_printed_in_black_on_white(
    browser: Any, page_file: Path
) -> None:
    page = browser.new_page(
        viewport={"width": 718, "height": 1000}, color_scheme="dark", offline=True
    )
    page.goto(page_file.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    ink = "() => getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert page.evaluate(ink) == "rgb(28, 33, 39)"
    seen = page.evaluate(LOOK)
    assert (seen["width"], seen["cut"], seen["overlaps"]) == (718, 0, [])
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(ink) == "rgb(230, 233, 237)"
    page.close()

"""Results from Python: data frames, tables and figures of runs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import sgp_runner as sgp

TINY = "model=quadratic data.samples=64 data.dimension=4 epochs=2 dtype=float64 logger=jsonl"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> sgp.Results:
    results = tmp_path_factory.mktemp("results")
    return sgp.sweep(TINY, "algo=sgp,ar_sgd", nodes=[2, 4], seed=range(1, 3), results=results)


def test_a_table_ranks_settings_and_joins_seeds(sweep: sgp.Results) -> None:
    table = sweep.table
    assert sorted(zip(table["method"], table["nodes"], table["seeds"], strict=True)) == [
        *(("AR-SGD", 2, 2), ("AR-SGD", 4, 2), ("SGP", 2, 2), ("SGP", 4, 2))
    ]
    assert table["quality"].is_monotonic_increasing and set(table["ranked_by"]) == {"loss"}
    assert table["target"].nunique() == 1
    assert repr(sweep) == "<8 runs>" and sweep._repr_html_().count("<tr") == 5


def test_frames_hold_every_record(sweep: sgp.Results) -> None:
    lines = [
        line
        for folder in sweep.folders
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(sweep.records) == len(lines)
    assert set(sweep.records["run"]) == {folder.name for folder in sweep.folders}
    assert len(sweep.runs) == 8 and len(sweep.curves) == 8 * 2
    assert sweep.skipped == ()


@pytest.mark.parametrize("against", ["time", "epochs", "bytes", "nodes"])
def test_a_plot_is_a_figure_that_notebooks_show(sweep: sgp.Results, against: str) -> None:
    figure = sweep.plot(against)  # type: ignore[arg-type]
    assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    labels = [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]
    nodes = [""] if against == "nodes" else [" · 2 nodes", " · 4 nodes"]
    assert {f"{algorithm}{on}" for algorithm in ("SGP", "AR-SGD") for on in nodes} <= {*labels}


def test_what_cannot_be_drawn_is_said(sweep: sgp.Results, tmp_path: Path) -> None:
    with pytest.raises(
        sgp.ConfigError, match="^against: 'steps' is not one of time, epochs, bytes"
    ):
        sweep.plot("steps")  # type: ignore[arg-type]
    with pytest.raises(
        sgp.ConfigError, match=r"^plot: these runs need 2 plots \(.*\): load the runs"
    ):
        other = sgp.run("model=mlp nodes=2 epochs=0.1 logger=jsonl", results=tmp_path)
        sgp.Results([*sweep.folders, other.folder]).plot()
    timed = sgp.run("model=timing_only nodes=2 epochs=0.1 logger=jsonl", results=tmp_path)
    with pytest.raises(sgp.ConfigError, match="^plot: no run was evaluated, so there is nothing"):
        sgp.Results([timed.folder]).plot()
    both = sgp.Results([*sweep.folders, Path("missing")])
    with pytest.raises(sgp.ConfigError, match="^missing: there is no such folder."):
        both.plot()
    with pytest.raises(sgp.ConfigError, match="^results: no run has results; failed has their"):
        _ = sgp.Results([]).runs


def test_runs_are_loaded_from_folders_and_patterns(sweep: sgp.Results) -> None:
    folder = sweep.folders[0].parent
    assert len(sgp.load(folder)) == 8
    assert len(sgp.load(folder / "sgp-*-n2-*", str(sweep.folders[0]))) == len(
        {*folder.glob("sgp-*-n2-*"), sweep.folders[0]}
    )
    with pytest.raises(sgp.ConfigError, match=r"nothing\*: no folder matches."):
        sgp.load(folder / "nothing*")
    with pytest.raises(sgp.ConfigError, match="there is no such folder."):
        sgp.load(folder / "nothing")


def test_a_run_shows_the_table_of_the_command(sweep: sgp.Results) -> None:
    folder = sweep.folders[0]
    settings = {"nodes": 2, "seed": 1, "results": folder.parent.parent}
    result = sgp.run(TINY, "algo=sgp", **settings)  # type: ignore[arg-type]
    assert result.folder == folder and repr(result) == f"<run {folder.name}>"
    html = result._repr_html_()
    assert html.startswith("<pre") and "2 epochs, " in html and f"{result.folder.name}" in html
    assert list(result.runs["run"]) == [folder.name]

#!/usr/bin/env python
"""The explorer of the documentation, docs/explorer.html, and the picture of its first grid.

``make explorer`` runs this script, which simulates plans for the clusters of papers in minutes. The
page contains the grids. If the explorer has changed, ``make docs`` rewrites the page with the same
grids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sgp_runner.plan.explorer import explorer_page
from sgp_runner.plan.grid import simulated_grid
from sgp_runner.plan.methods import simplest
from sgp_runner.utils.units import with_prefix

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURE = DOCS / "explorer.html", DOCS / "pictures" / "explorer.svg"
# Tints of the explorer's colours.
TINTS = {
    "Data parallel": "#add0f9",
    "DiLoCo": "#eeb993",
    "Streaming DiLoCo, FP4": "#c3ade6",
}
TITLE = "Which method fits the machines of these papers?"
FIGURES = re.compile(r'<script type="application/json" id="figures">(.*?)</script>', re.DOTALL)
# Titles and requests, see `sgp_runner.plan.request.read_request`.
REQUESTS = {
    "1B parameters at 1 Gbit/s (Douillard et al. 2025)": (
        "cluster=streaming_diloco model=llama_1b parameters=1e9 bytes_per_parameter=2 "
        "batch_tokens=524288 tokens=100e9 nodes=2"
    ),
    "BERT-Large at 40 Gbit/s (Tang et al. 2021)": (
        "cluster=bert_40g model=bert_large bytes_per_parameter=2 nodes=8"
    ),
    "ResNet-50 at 10 Gbit/s (Assran et al. 2019)": (
        "cluster=sgp_ethernet model=resnet50 optim=sgd batch=256 samples=1281167 epochs=90 nodes=16"
    ),
}


def main() -> None:
    grids = [
        {**simulated_grid(request.split()), "title": title} for title, request in REQUESTS.items()
    ]
    PAGE.write_text(explorer_page(grids, TITLE), encoding="utf-8")
    draw(grids[0], PICTURE)


def stored_grids() -> list[dict[str, Any]]:
    """Return the grids in the page."""
    match = FIGURES.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None
    grids: list[dict[str, Any]] = json.loads(match[1])
    return grids


def times_at(grid: Mapping[str, Any], nodes: int, rate: float) -> dict[str, float]:
    """Return the seconds per step by method, at the explorer's initial latency and H."""
    start = grid["start"]
    at = {"nodes": nodes, "latencies": start["latency"], "rates": rate, "periods": start["period"]}
    times = {}
    for method in grid["methods"]:
        axes = list(at)[: 4 if method["periodic"] else 3]
        places = [grid[axis].index(at[axis]) for axis in axes]
        number = np.ravel_multi_index(places, [len(grid[axis]) for axis in axes])
        times[method["title"]] = method["seconds"][number]
    return times


def winner(grid: Mapping[str, Any], nodes: int, rate: float) -> tuple[str, float]:
    """Return the fastest method and its speed-up over data parallel.

    Only methods with published figures that show a quality near that of data parallel are
    considered. Among the methods that are nearly as fast as the fastest, the simplest wins.
    """
    times = times_at(grid, nodes, rate)
    period = grid["start"]["period"]
    near = [
        method["title"]
        for method in grid["methods"]
        if (period <= method["near"] if method["periodic"] else method["near"])
    ]
    best = near[simplest([times[title] for title in near])]
    return best, times["Data parallel"] / times[best]


def draw(grid: Mapping[str, Any], path: Path) -> None:
    """Draw the fastest method by rate and number of nodes; every cell is a simulated point."""
    rates, nodes, named = grid["rates"], grid["nodes"], list(TINTS)
    cells = [[winner(grid, count, rate) for rate in rates] for count in nodes]
    with rc_context({"font.size": 11.5, "svg.hashsalt": path.name, "text.color": "#222222"}):
        figure = Figure(figsize=(5.4, 3.9), layout="constrained", facecolor="white")
        heading = (
            "Training 1B parameters: the fastest method, and how many\n"
            f"times faster than data parallel it is (simulated, H = {grid['start']['period']})"
        )
        figure.suptitle(heading, fontsize=11.5, x=0.01, ha="left")
        axes = figure.subplots()
        axes.pcolormesh(
            [[named.index(best) for best, _ in row] for row in cells],
            cmap=ListedColormap(list(TINTS.values())),
            vmin=0,
            vmax=len(named) - 1,
            edgecolors="white",
        )
        for y, x in product(range(len(nodes)), range(len(rates))):
            gain = cells[y][x][1]
            text = f"{gain:.1f}×" if gain < 10 else f"{gain:.0f}×"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=11)
        axes.set_xticks(
            [x + 0.5 for x in range(len(rates))], [with_prefix(rate, "") for rate in rates]
        )
        axes.set_yticks([y + 0.5 for y in range(len(nodes))], list(map(str, nodes)))
        axes.set_xlabel("bandwidth of a node in bit/s")
        axes.set_ylabel("nodes")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        patches = [Patch(color=tint, label=name) for name, tint in TINTS.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Picture of ``sgp-run experiment=compare`` for README and docs: docs/pictures/compare.svg.

``make picture`` runs this script. The picture is byte-identical if the runs are the same.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgp_runner.report.plots.style import look_of
from sgp_runner.report.rank.ranking import Ranking, Row, rankings
from sgp_runner.report.read.naming import title
from sgp_runner.report.read.run_groups import settings_in
from sgp_runner.report.read.runs import read_runs
from sgp_runner.utils.units import duration

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "compare.svg"
# On a phone, the picture is 390 px wide instead of 518 px (5.4 in), so letters shrink by a quarter.
SIZE = (5.4, 6.4)  # inches
FONT = 11.5
INK, PALE = "#222222", "#8a8a8a"
ACCURACIES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
SECONDS = {2: "2 s", 5: "5 s", 15: "15 s", 60: "1 min", 180: "3 min", 600: "10 min"}


def main() -> None:
    with TemporaryDirectory() as results:
        words = ["experiment=compare", f"results={results}"]
        subprocess.run([sys.executable, "-m", "sgp_runner", *words], cwd=ROOT, check=True)
        (ranking,) = rankings(settings_in(read_runs([Path(results) / "runs"])))
        draw(ranking, PICTURE)
    print(f"picture in {PICTURE}")


def draw(ranking: Ranking, path: Path) -> None:
    """Draw the curves and, below, the times to the target; the names there label the curves too."""
    assert ranking.target is not None
    rows = [row for row in ranking.rows if row.times]
    fonts = {"font.size": FONT, "svg.hashsalt": path.name, "axes.spines.top": False}
    with rc_context({**fonts, "axes.spines.right": False, "text.color": INK}):
        figure = Figure(figsize=SIZE, layout="constrained", facecolor="white")
        curves, bars = figure.subplots(2, height_ratios=(5, 4))
        trained, _, clock = title(ranking.settings).partition(", ")
        model = trained.removesuffix(" trained")
        heading = f"Small model ({model}) trained,\n{clock}"
        figure.suptitle(heading, fontsize=FONT, x=0.01, ha="left")
        draw_curves(curves, rows, ranking.target.value)
        draw_times(bars, rows, f"{100 * ranking.target.value:g} %")
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def draw_curves(axes: Axes, rows: list[Row], target: float) -> None:
    for row in reversed(rows):
        curve = row.setting.curve
        colour, _ = look_of(row.setting.algorithm)
        axes.plot(curve["time_s"], curve["quality"].map(height), color=colour, linewidth=2)
        axes.plot(row.time, height(target), "o", color=colour, markeredgecolor="white")
    axes.axhline(height(target), color=PALE, linestyle=":", zorder=0)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(list(SECONDS), list(SECONDS.values()))
    axes.set_yticks(
        [height(each) for each in ACCURACIES], [f"{100 * each:g} %" for each in ACCURACIES]
    )
    axes.set_ylim(bottom=height(0.45))
    axes.set_ylabel("validation accuracy")
    axes.set_xlabel("simulated time", labelpad=1)


def height(accuracy: float) -> float:
    """Return the height of an accuracy on an axis that stretches the range near 100 %.

    The distance from 98 % to 99 % is the same as from 0 % to 50 %.
    """
    return -math.log(1 - accuracy)


def draw_times(axes: Axes, rows: list[Row], target: str) -> None:
    names = [row.name for row in rows]
    colours = [look_of(row.setting.algorithm)[0] for row in rows]
    axes.barh(names, [row.time for row in rows], color=colours)
    axes.invert_yaxis()
    for place, row in enumerate(rows):
        text = f" {duration(round(row.time))}  {row.speed_up:.1f}×"
        axes.text(row.time, place, text, va="center", fontsize=FONT - 1)
    axes.set_xlim(right=1.35 * max(row.time for row in rows))
    axes.set_xticks([])
    axes.tick_params(left=False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"time to {target}, speed-up over {rows[0].over}", fontsize=FONT, loc="left")


if __name__ == "__main__":
    main()

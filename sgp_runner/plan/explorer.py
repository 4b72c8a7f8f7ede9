"""The explorer: a page with sliders and a map of the fastest method, from a simulated grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgp_runner.plan.comparison import PlannedMethods
from sgp_runner.plan.methods import SAVES
from sgp_runner.plan.table import entries, legend
from sgp_runner.report.render.write import asset, filled

SLIDERS = {
    "rate": "bandwidth",
    "latency": "latency, one way",
    "nodes": "nodes",
    "period": "H, steps between exchanges",
}
LEGEND = (
    "Check the methods that are compared. comp.: share of time computing. pays <: rate below which "
    f"a method saves {100 * SAVES:.0f} % of the time of data parallel. The map shows the "
    f"first method of those within {100 * SAVES:.0f} % of the fastest, in the order data parallel, "
    "DiLoCo, Streaming DiLoCo, PowerSGD, SGP, OSGP."
)


def explorer_page(
    grids: Sequence[Mapping[str, Any]],
    title: str,
    plan: PlannedMethods | None = None,
    *,
    every: bool = False,
) -> str:
    """Return a self-contained HTML page for grids (`simulated_grid`), each with a ``title``.

    plan: plan of the only grid's request; the page then includes the same table as `text_of`
    every: as for `text_of`
    """
    rows = () if plan is None else plan.shown(every)
    return filled(
        "explorer.html",
        grids,
        asset("explorer.js"),
        title=title,
        style=asset("explorer.css"),
        legend=LEGEND,
        sliders=SLIDERS.items(),
        rows=entries(rows),
        columns="" if plan is None else " ".join(legend(plan, rows)),
    )

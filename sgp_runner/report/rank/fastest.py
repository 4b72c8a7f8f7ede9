"""The table of the fastest methods on many clusters and numbers of nodes, for timing studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from sgp_runner.report.rank.ranking import Ranking, Row
from sgp_runner.report.rank.tables import Cell, ReportTable, text
from sgp_runner.report.read.naming import CLOCK, file_name, group_by, short_key, three_digits
from sgp_runner.report.read.run_groups import CLUSTER_NAME, LINKS
from sgp_runner.utils.units import counted, number

MIN_CELLS = 9  # clusters times numbers of nodes; the ranked tables show fewer at a glance
CLOSE = 1.01  # factor between the times of equally fast methods
BANDWIDTH = f"{LINKS}bandwidth"


def fastest_tables(rankings: Sequence[Ranking]) -> Iterator[ReportTable]:
    """Yield a table for each task timed on many clusters and numbers of nodes."""
    studies = [ranking for ranking in rankings if ranking.target is None]
    tasks = group_by(studies, lambda ranking: (ranking.task, ranking.timed, ranking.clock))
    for task, members in tasks.items():
        nodes = sorted({int(row.setting.nodes) for ranking in members for row in ranking.rows})
        if min(len(members), len(nodes)) > 1 and len(members) * len(nodes) >= MIN_CELLS:
            yield of_task(
                "fastest" if len(tasks) == 1 else file_name("fastest", *task), members, nodes
            )


def of_task(name: str, rankings: Sequence[Ranking], nodes: Sequence[int]) -> ReportTable:
    first, raw, lines = rankings[0], [], []
    for ranking in sorted(rankings, key=rate):
        timed = [row for row in ranking.rows if row.times]
        peers = group_by(timed, lambda row: int(row.setting.nodes))
        lines.append([text(ranking.cluster), *(cell_of(peers.get(count, ())) for count in nodes)])
        raw += [raw_line(ranking, peers[count]) for count in nodes if count in peers]
    overs = {row.over for ranking in rankings for row in ranking.rows if row.over}
    over = f" over {max(overs)}" if len(overs) == 1 else ""
    note = (
        f"{first.task}{', clock of ' if first.timed else ''}{first.timed}. Below each method: its "
        f"{CLOCK[first.clock]} per iteration and its speed-up{over} on as many nodes. "
        f"+1: another method takes less than {100 * (CLOSE - 1):g} % longer."
    )
    heads = [counted(count, "node") for count in nodes]
    title = "Fastest methods by cluster and number of nodes"
    return ReportTable(
        name, title, note, pd.DataFrame(raw), ["cluster", *heads], lines, ["cluster", *heads]
    )


def rate(ranking: Ranking) -> tuple[str, float]:
    """Return the sort key of a cluster: its name and the bandwidth of its links."""
    settings = ranking.settings[0].settings
    return str(settings.get(CLUSTER_NAME)), number(settings.get(BANDWIDTH)) or 0.0


def cell_of(rows: Sequence[Row]) -> Cell:
    """Return the cell for ``rows``, which have one number of nodes and are sorted by time."""
    if not rows:
        return text("")
    best, close = rows[0], as_fast(rows)
    speed_up = "" if best.speed_up is None else f", {three_digits(best.speed_up)}×"
    ties = f", +{close}" if close else ""
    label = " ".join([best.setting.algorithm, *map(short_key, best.overrides)])
    return text(label, f"{three_digits(1000 * best.time)} ms{speed_up}{ties}")


def as_fast(rows: Sequence[Row]) -> int:
    """Return the number of rows that are about as fast as the first one."""
    return sum(row.time < CLOSE * rows[0].time for row in rows[1:])


def raw_line(ranking: Ranking, rows: Sequence[Row]) -> dict[str, object]:
    best = rows[0]
    return {
        "cluster": ranking.cluster,
        "nodes": int(best.setting.nodes),
        "algorithm": best.setting.algorithm,
        "settings": " ".join(best.overrides),
        "iteration_seconds": best.time,
        "speed_up": best.speed_up,
        "over": best.over,
        "close_methods": as_fast(rows),
    }

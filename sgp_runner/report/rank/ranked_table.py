"""The ranked table: one definition for the terminal, the page, CSV and Markdown.

If all rows share the number of nodes or the seeds, the note below the table gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from sgp_runner.report.rank.ranking import Ranking, Row
from sgp_runner.report.rank.tables import (
    Cell,
    ReportTable,
    if_known,
    joined,
    quality_text,
    sent_text,
    text,
)
from sgp_runner.report.rank.throughput_columns import FLOPS, known_rates, rate_columns
from sgp_runner.report.read.naming import CLOCK, file_name, three_digits, time_unit
from sgp_runner.report.read.run_groups import METRIC_NAMES
from sgp_runner.utils.units import counted

RANK, ALGORITHM = "#", "algorithm"
NEVER = "never"


def ranked_tables(rankings: Sequence[Ranking]) -> list[ReportTable]:
    """Return a table for each ranking, named ``ranking`` if it is the only one."""
    alone = len(rankings) == 1
    return [
        of_ranking(ranking, "ranking" if alone else file_name("ranking", *ranking.name_parts))
        for ranking in rankings
    ]


def of_ranking(ranking: Ranking, name: str) -> ReportTable:
    """Return the table of a ranking."""
    rows, target = ranking.rows, ranking.target
    fastest = min((row.time for row in rows if row.times), default=1.0)
    unit, size = ("ms", 0.001) if target is None else time_unit(fastest)
    nodes = {int(row.setting.nodes) for row in rows}
    overs = {row.over for row in rows if row.over}
    metric = ranking.settings[0].metric
    computing = any(setting.utilisation == setting.utilisation for setting in ranking.settings)
    hours = (
        computing
        and target is None
        and any(setting.mean("hours") > 0 for setting in ranking.settings)
    )
    columns: list[tuple[str, Callable[[Row], Cell], bool]] = [
        (RANK, lambda row: text("" if row.rank is None else row.rank), True),
        (ALGORITHM, lambda row: text(row.setting.algorithm, row.note), True),
        ("nodes", lambda row: text(row.setting.nodes), len(nodes) > 1),
        (unit, lambda row: time_cell(row, size), True),
        (
            "over seeds",
            lambda row: text(range_text(row.times, size)),
            any(len(row.times) > 1 for row in rows),
        ),
        ("speed-up", lambda row: speed_cell(row, overs), True),
        (
            "computing",
            lambda row: text(if_known(100 * row.setting.utilisation, "{:.3g} %".format)),
            computing,
        ),
        (
            "hours",
            lambda row: text(if_known(row.setting.mean("hours") or math.nan, three_digits)),
            hours,
        ),
        (
            METRIC_NAMES.get(metric, metric) or "quality",
            lambda row: text(quality_text(row.setting.mean("quality"), metric)),
            target is not None,
        ),
        (
            "sent per iteration" if target is None else "sent per node",
            lambda row: text(sent_text(row.setting, target is None)),
            True,
        ),
    ]
    columns += [
        (head, lambda row, rate=rate: text(rate(row.setting)), head != FLOPS)  # type: ignore[misc]
        for head, rate in rate_columns(ranking.settings)
    ]
    selection = [(head, cell) for head, cell, wanted in columns if wanted]
    raw = pd.DataFrame([raw_row(ranking, row) for row in rows]).astype({"rank": "Int64"})
    if computing:
        raw["compute_utilisation"] = [row.setting.utilisation for row in rows]
    if hours:
        raw["hours"] = [row.setting.mean("hours") for row in rows]
    for name in known_rates(ranking.settings):
        raw[name] = [row.setting.mean(name) for row in rows]
    measure = "per iteration" if target is None else f"to {target.text}"
    return ReportTable(
        name,
        f"{CLOCK[ranking.clock].capitalize()} {measure}",
        note_of(ranking, nodes, overs),
        raw,
        [head for head, _ in selection],
        [[cell(row) for _, cell in selection] for row in rows],
        (ALGORITHM,),
    )


def note_of(ranking: Ranking, nodes: set[int], overs: set[str]) -> str:
    """Describe the shared settings of the rows, the choice of the target, and the baseline."""
    seeds = {tuple(row.setting.seeds) for row in ranking.rows}
    shared = [
        ranking.task,
        f"cluster {ranking.cluster}" if ranking.cluster else "",
        f"clock of {ranking.timed}" if ranking.timed else "",
        counted(max(nodes), "node") if len(nodes) == 1 else "",
        *(
            f"{'seed' if len(same) == 1 else 'seeds'} {joined(same, ', ')}"
            for same in seeds
            if len(seeds) == 1
        ),
    ]
    sentences = [
        f"{', '.join(filter(None, shared))}.",
        f"The target is {ranking.target.rule}; linear between evaluations."
        if ranking.target is not None
        else "",
        ranking.reason,
        f"Speed-up over {max(overs)}." if len(overs) == 1 else "",
    ]
    return " ".join(filter(None, sentences))


def time_cell(row: Row, size: float) -> Cell:
    if not row.times:
        return text(NEVER if row.setting.finished else "")
    some = f"{len(row.times)} of {counted(len(row.setting.seeds), 'seed')}" if row.missing else ""
    return text(three_digits(row.time / size), some)


def range_text(times: Sequence[float], size: float) -> str:
    ends = [three_digits(end / size) for end in (min(times), max(times))] if times else []
    return " – ".join(dict.fromkeys(ends))


def speed_cell(row: Row, overs: set[str]) -> Cell:
    if row.speed_up is None:
        return text("")
    return text(f"{three_digits(row.speed_up)}×", f"over {row.over}" if len(overs) > 1 else "")


def raw_row(ranking: Ranking, row: Row) -> dict[str, object]:
    setting, target = row.setting, ranking.target
    low, high = setting.range("quality")
    times = {
        "seconds": row.time,
        "seconds_min": min(row.times, default=None),
        "seconds_max": max(row.times, default=None),
    }
    what = "iteration" if target is None else "to_target"
    return {
        "rank": row.rank,
        "ranked_by": ranking.ranked_by,
        "algorithm": setting.algorithm,
        "settings": " ".join(row.overrides),
        "state": setting.state,
        "model": setting.model,
        "data": setting.data,
        "cluster": ranking.cluster,
        "clock": ranking.clock,
        "nodes": setting.nodes,
        "seeds": joined(setting.seeds),
        "target": None if target is None else target.value,
        **{f"{what}_{key}": value for key, value in times.items()},
        "seeds_with_time": len(row.times),
        "speed_up": row.speed_up,
        "over": row.over,
        "metric": setting.metric,
        "quality": setting.mean("quality"),
        "quality_min": low,
        "quality_max": high,
        "bytes_per_node": setting.mean("bytes_per_node"),
    }

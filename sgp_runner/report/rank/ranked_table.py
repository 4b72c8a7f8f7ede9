"""The ranked table: one definition for the terminal, the page, CSV and Markdown.

Columns that all rows share are in the note instead: the number of nodes, and seeds without a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from sgp_runner.report.rank.tables import Cell, Table, joined, quality_text, text
from sgp_runner.report.read.names import CLOCK, file_name, three_digits, time_unit
from sgp_runner.utils.units import counted, num_bytes

if TYPE_CHECKING:
    from sgp_runner.report.rank.ranking import Ranking, Row
    from sgp_runner.report.read.settings import RunGroup

RANK, ALGORITHM = "#", "algorithm"
NEVER = "never"


def ranked_tables(rankings: Sequence[Ranking]) -> list[Table]:
    """Return a table for each ranking, named ``ranking`` if it is the only one."""
    out = []
    for each in rankings:
        name = "ranking" if len(rankings) == 1 else file_name("ranking", *each.words)
        out.append(of_ranking(each, name))
    return out


def of_ranking(ranking: Ranking, name: str) -> Table:
    """Return the table of a ranking."""
    fastest = min((row.time for row in ranking.rows if row.times), default=1.0)
    unit, size = ("ms", 0.001) if ranking.target is None else time_unit(fastest)
    several = any(len(row.times) > 1 for row in ranking.rows)
    nodes = {int(row.setting.nodes) for row in ranking.rows}
    overs = {row.over for row in ranking.rows if row.over}
    head = [RANK, ALGORITHM, *(["nodes"] if len(nodes) > 1 else [])]
    head += [unit, *(["over seeds"] if several else []), "speed-up"]
    computing = any(each.utilisation == each.utilisation for each in ranking.settings)
    hours = computing and ranking.target is None and any(map(has_hours, ranking.settings))
    head += ["computing"] if computing else []
    head += ["hours"] if hours else []
    metric = ranking.settings[0].metric
    head += [] if ranking.target is None else [metric or "quality"]
    head += ["sent per iteration" if ranking.target is None else "sent per node"]
    cells = []
    for row in ranking.rows:
        line = [text("" if row.rank is None else row.rank), algorithm_cell(row)]
        line += [text(row.setting.nodes)] if len(nodes) > 1 else []
        line += [time_cell(row, size)]
        line += [text(range_text(row.times, size))] if several else []
        line += [speed_cell(row, overs)]
        line += [text(percent_text(row.setting.utilisation))] if computing else []
        line += [text(hours_text(row.setting))] if hours else []
        if ranking.target is not None:
            line += [text(quality_text(row.setting.mean("quality"), metric))]
        cells.append([*line, text(sent_text(row, per_iteration=ranking.target is None))])
    note = note_of(ranking, nodes, overs)
    raw = pd.DataFrame([raw_row(ranking, row) for row in ranking.rows]).astype({"rank": "Int64"})
    if computing:
        raw["compute_utilisation"] = [row.setting.utilisation for row in ranking.rows]
    if hours:
        raw["hours"] = [row.setting.mean("hours") for row in ranking.rows]
    return Table(name, title_of(ranking), note, raw, head, cells, (ALGORITHM,))


def title_of(ranking: Ranking) -> str:
    clock = CLOCK[ranking.clock].capitalize()
    if ranking.target is None:
        return f"{clock} per iteration"
    return f"{clock} to {ranking.target.words}"


def note_of(ranking: Ranking, nodes: set[int], overs: set[str]) -> str:
    """Say what the rows share, why this target, and over what the speed-up is."""
    seeds = {tuple(row.setting.seeds) for row in ranking.rows}
    shared = [ranking.task]
    shared += [f"cluster {ranking.cluster}"] if ranking.cluster else []
    shared += [f"clock of {ranking.timed}"] if ranking.timed else []
    shared += [counted(nodes.copy().pop(), "node")] if len(nodes) == 1 else []
    if len(seeds) == 1:
        own = seeds.pop()
        shared += [f"{'seed' if len(own) == 1 else 'seeds'} {joined(own, ', ')}"]
    sentences = [f"{', '.join(shared)}."]
    if ranking.target is not None:
        sentences += [f"The target is {ranking.target.rule}; linear between evaluations."]
    if len(overs) == 1:
        sentences += [f"Speed-up over {overs.copy().pop()}."]
    return " ".join(sentences)


def algorithm_cell(row: Row) -> Cell:
    return text(row.setting.algorithm, row.note)


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


def percent_text(share: float) -> str:
    return f"{100 * share:.3g} %" if share == share else ""


def has_hours(setting: RunGroup) -> bool:
    """Whether a setting is a timing study of a schedule of known length."""
    return setting.mean("hours") > 0


def hours_text(setting: RunGroup) -> str:
    return three_digits(setting.mean("hours")) if has_hours(setting) else ""


def sent_text(row: Row, per_iteration: bool) -> str:
    sent = row.setting.mean("bytes_per_node")
    if per_iteration:
        sent /= row.setting.mean("steps")
    return num_bytes(sent) if sent == sent else ""


def raw_row(ranking: Ranking, row: Row) -> dict[str, object]:
    each, target = row.setting, ranking.target
    low, high = each.range("quality")
    times = {
        "seconds": row.time,
        "seconds_min": min(row.times, default=None),
        "seconds_max": max(row.times, default=None),
    }
    what = "iteration" if target is None else "to_target"
    return {
        "rank": row.rank,
        "algorithm": each.algorithm,
        "settings": " ".join(row.words),
        "state": each.state,
        "model": each.model,
        "data": each.data,
        "cluster": ranking.cluster,
        "clock": ranking.clock,
        "nodes": each.nodes,
        "seeds": joined(each.seeds),
        "target": None if target is None else target.value,
        **{f"{what}_{key}": value for key, value in times.items()},
        "seeds_with_time": len(row.times),
        "speed_up": row.speed_up,
        "over": row.over,
        "metric": each.metric,
        "quality": each.mean("quality"),
        "quality_min": low,
        "quality_max": high,
        "bytes_per_node": each.mean("bytes_per_node"),
    }

"""The first lines of a report: the compared runs, and a sentence about the best setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from sgp_runner.report.rank.fastest import as_fast
from sgp_runner.report.rank.ranking import Ranking, Row
from sgp_runner.report.rank.tables import quality_text
from sgp_runner.report.read.naming import CLOCK, short_key
from sgp_runner.report.read.run_groups import METRIC_NAMES, RunGroup
from sgp_runner.utils.units import counted, duration, milliseconds

MAX_NAMED = 4  # algorithms of a title, rankings of a headline


def comparison_title(settings: Sequence[RunGroup]) -> str:
    """Return for example ``AR-SGD, SGP and OSGP on 4, 8 and 16 nodes: mlp on digits``."""
    algorithms = list(dict.fromkeys(str(setting.algorithm) for setting in settings))
    nodes = sorted({int(setting.nodes) for setting in settings})
    tasks = list(dict.fromkeys(f"{setting.model} on {setting.data}" for setting in settings))
    what = some(algorithms, "algorithms")
    if len(algorithms) == 1 and len({setting.method for setting in settings}) > 1:
        what = f"{counted(len(settings), 'setting')} of {what}"
    sizes = (
        in_prose(list(map(str, nodes))) if len(nodes) <= MAX_NAMED else f"{nodes[0]} to {nodes[-1]}"
    )
    return f"{what} on {sizes} {'node' if nodes == [1] else 'nodes'}: {some(tasks, 'tasks')}"


def headline(rankings: Sequence[Ranking]) -> str:
    """Return the best settings of the rankings in a few sentences; empty without results."""
    best = [ranking for ranking in rankings if leaders(ranking)]
    if not best:
        goals = [ranking.target for ranking in rankings if ranking.target is not None]
        return f"No run reached {goals[0].text}." if goals and isfinite(goals[0].value) else ""
    if len(best) <= MAX_NAMED:
        return " ".join(sentence(ranking, len(rankings) > 1) for ranking in best)
    wins = Counter(leaders(ranking)[0].setting.algorithm for ranking in best)
    parts = [f"{name} on {count}" for name, count in wins.most_common(MAX_NAMED)]
    return f"Fastest of {counted(len(best), 'comparison')}: {in_prose(parts)}."


def leaders(ranking: Ranking) -> list[Row]:
    """Return the rows that a sentence compares; empty if the first row has no rank.

    These are all rows or, for a timing study, those on the largest number of nodes.
    """
    nodes = max(int(row.setting.nodes) for row in ranking.rows)
    study = ranking.target is None
    rows = [row for row in ranking.rows if not study or int(row.setting.nodes) == nodes]
    return rows if rows[0].rank is not None else []


def sentence(ranking: Ranking, several: bool) -> str:
    """Return the sentence for a ranking; if ``several``, with the machines or the task."""
    rows = leaders(ranking)
    first = rows[0]
    sizes = {int(row.setting.nodes) for row in ranking.rows}
    where = f"On {ranking.cluster or ranking.task}, " if several else ""
    name = named(first, sizes)
    if ranking.by_quality:
        quality = quality_text(first.setting.mean("quality"), first.setting.metric)
        metric = METRIC_NAMES.get(first.setting.metric, first.setting.metric)
        return f"{where}{name} has the best {metric}: {quality}. {ranking.reason}"
    timed = [row for row in rows if row.times]
    equal = timed[: 1 + as_fast(timed)]
    who = (
        f"{len(equal)} of {counted(len(rows), 'setting')}"
        if len(equal) > MAX_NAMED
        else in_prose([named(row, sizes) for row in equal])
    )
    verb = "are equally fast, and fastest" if len(equal) > 1 else "is fastest"
    over = next((row for row in timed if row.name == first.over), first)
    if over in equal:
        over = timed[len(equal)] if len(equal) < len(timed) else first
    clear = over is not first and first.time > 0
    faster = (
        f", {over.time / first.time:.2g} times faster than {named(over, sizes)}" if clear else ""
    )
    return f"{where}{who} {verb}: {time_text(ranking, first)}{faster}.{doubt(timed, equal)}"


def time_text(ranking: Ranking, row: Row) -> str:
    """Return a row's time, and its clock, as in ``27 s of simulated time to 90 % accuracy``."""
    clock = CLOCK[ranking.clock]
    if ranking.target is None:
        return f"{milliseconds(1000 * row.time)} of {clock} per iteration"
    some = f" (in {len(row.times)} of {counted(len(row.setting.seeds), 'seed')})"
    reached = some if row.missing else ""
    return f"{duration(row.time)} of {clock} to {ranking.target.text}{reached}"


def doubt(timed: Sequence[Row], equal: Sequence[Row]) -> str:
    """Return a sentence on settings whose seeds overlap with the first's; empty if none."""
    first = timed[0]
    close = [row for row in timed[len(equal) :] if min(row.times) <= max(first.times)]
    if len(first.times) == 1 or not close:
        return ""
    who = in_prose([row.name for row in close]) if len(close) <= 2 else f"{len(close)} others"
    return f" Its seeds overlap with those of {who}."


def named(row: Row, sizes: set[int]) -> str:
    """Name a row by its algorithm, its settings and, if it varies, its number of nodes."""
    parts = [row.setting.algorithm, *map(short_key, row.overrides)]
    size = f" on {counted(row.setting.nodes, 'node')}" if len(sizes) > 1 else ""
    return f"{' '.join(parts)}{size}"


def some(names: Sequence[str], kind: str) -> str:
    return in_prose(names) if len(names) <= MAX_NAMED else f"{len(names)} {kind}"


def in_prose(names: Sequence[str]) -> str:
    """Return names as in ``AR-SGD, SGP and OSGP``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

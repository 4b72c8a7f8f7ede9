"""The text of a plan, formatted for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from rich.table import Table

from sgp_runner.console.summary import plain_lines
from sgp_runner.plan.comparison import MethodCost, PlannedMethods
from sgp_runner.plan.fault_costs import AWAY_STEPS, SLOWER
from sgp_runner.plan.known_quality import is_comparable, known_quality
from sgp_runner.plan.methods import SAVES
from sgp_runner.plan.request import machines
from sgp_runner.utils.units import counted, num_bytes, with_prefix

WIDTH = 80


def short_number(value: float | None) -> str:
    """Return a number in at most seven characters; empty for None."""
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.2g}"


def rate(value: float | None) -> str:
    """Return a rate in bit/s with a unit prefix; empty for None."""
    if value is None:
        return ""
    return "any" if value == inf else "never" if not value else with_prefix(value, "").strip()


def amount(value: float | None) -> str:
    """Return an amount, with a unit prefix from one thousand up; empty for None."""
    return "" if value is None else with_prefix(value, "").strip()


COLUMNS: tuple[tuple[str, Callable[[MethodCost], str]], ...] = (
    ("", lambda row: row.title),
    ("s/step", lambda row: short_number(row.timing.seconds)),
    ("comp.", lambda row: f"{100 * row.timing.computing:.0f} %"),
    ("hours", lambda row: short_number(row.hours)),
    ("coding", lambda row: short_number(row.timing.coding or None)),
    ("sent", lambda row: num_bytes(row.timing.num_bytes)),
    ("memory", lambda row: num_bytes(sum(row.memory.values())) + "*" * (not row.fits)),
    ("cost", lambda row: amount(row.cost)),
    ("kWh", lambda row: amount(row.kwh)),
    ("pays <", lambda row: rate(row.pays_below)),
)


def text_of(
    plan: PlannedMethods, other: PlannedMethods | None = None, *, every: bool = False
) -> str:
    """Return a plan's answer, table, known quality and assumptions as text.

    other: the plan at the other end of a rate interval
    every: whether the table has all rows instead of only the first ones
    """
    end = "" if other is None else f"With {machines(other.request)}: {other.answer}"
    answer = [*folded(plan.answer), *folded(end)]
    rows = plan.shown(every)
    return "\n".join(
        [
            *answer,
            *folded(plan.fastest or ""),
            *folded(
                f"Simulated: {machines(plan.request)}, {plan.request.parameters:,} parameters."
            ),
            "",
            *table(rows),
            *folded(hidden(len(plan.rows) - len(rows))),
            "",
            *legend(plan, rows),
            "",
            *quality(plan, rows),
            "",
            *faults(rows),
            *assumptions(plan),
            "",
            *answer,
        ]
    )


def folded(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def hidden(count: int) -> str:
    return f"{counted(count, 'slower method')} more: --all shows them." if count else ""


def entries(rows: Sequence[MethodCost]) -> list[tuple[str, ...]]:
    """Return the header and rows of the table, without empty columns."""
    columns = {name: texts for name, form in COLUMNS if any(texts := [form(row) for row in rows])}
    return [tuple(columns), *zip(*columns.values(), strict=True)]


def table(rows: Sequence[MethodCost]) -> list[str]:
    """Return the lines of the table; long titles are wrapped."""
    (_, *names), *body = entries(rows)
    grid = Table(box=None, pad_edge=False, padding=(0, 0, 0, 1))
    grid.add_column(overflow="fold")
    for name in names:
        grid.add_column(name, justify="right", no_wrap=True)
    for texts in body:
        grid.add_row(*texts)
    return plain_lines(grid)


def legend(plan: PlannedMethods, rows: Sequence[MethodCost]) -> Iterator[str]:
    """Yield the lines that explain the columns."""
    links = "links between sites" if plan.request.sites > 1 else "interfaces"
    never = ""
    if any(row.pays_below == 0 for row in rows):
        never = " never: neither at the current rate nor below it."
    coding = "coding: s of a step. " if any(row.timing.coding for row in rows) else ""
    cost = "" if rows[0].cost is None else "cost: in the currency of the prices. "
    if cost and plan.request.traffic_has_price:
        cost = "cost: in the currency of the prices, with the traffic between sites. "
    site = ""
    if any(row.per_site for row in rows):
        site = " per site: one replica per site, whose nodes are data parallel."
    yield from folded(
        f"comp.: share of time computing. {coding}sent: bytes of a node per step. memory: of a "
        f"device, without activations. {cost}pays <: rate of the {links} in bit/s below which a "
        f"method saves {100 * SAVES:.0f} % of the time of data parallel.{never}{site}"
    )
    yield from memory(plan)


def memory(plan: PlannedMethods) -> Iterator[str]:
    """Yield the memory breakdown of the answer and of data parallel."""
    held = plan.request.memory
    limit = "" if held.limit is None else f" *: does not fit into {num_bytes(held.limit)}."
    yield from folded(
        f"Memory of a device (precision={held.precision}, shard={held.shard}):{limit}"
    )
    base = plan.data_parallel
    for row in (base,) if plan.best in (None, base) else (plan.best, base):
        parts = (f"{name} {num_bytes(count)}" for name, count in row.memory.items())
        yield from folded(f"- {row.title}: {', '.join(parts)}", "  ")


def quality(plan: PlannedMethods, rows: Sequence[MethodCost]) -> Iterator[str]:
    """Yield the lines about the known quality of methods."""
    lines = [f"- {row.title}: {text}" for row in rows for text in figures(plan, row)]
    others = "(nothing is known here about the other methods):"
    yield f"Known quality {others}" if lines else "Nothing is known here about the quality."
    for text in lines:
        yield from folded(text, "  ")
    if (study := plan.request.quality) is not None:
        yield ""
        yield from folded(
            f"Measured in the study {study.name} ({study.setting}), validation loss by the steps H "
            "between exchanges; other sizes of the model were not measured:"
        )
        for loss in study.losses:
            yield from folded(f"- {loss.text}", "  ")


def figures(plan: PlannedMethods, row: MethodCost) -> Iterator[str]:
    """Yield the comparable known figures of a row; if none is, all of them, as extrapolated."""
    for figure in known_quality(row.method):
        if row.extrapolated:
            yield f"extrapolated: {figure.text}"
        elif is_comparable(figure, plan.request.parameters, row.replicas):
            yield figure.text


def faults(rows: Sequence[MethodCost]) -> Iterator[str]:
    """Yield the costs of faults, with methods of about the same cost on one line."""
    costs_of = [(row.title, row.faults) for row in rows if row.faults is not None]
    if not costs_of:
        return
    yield from folded(
        f"If one node computes {SLOWER:g} times as slowly, the run takes this many times as long:"
    )
    yield from by_value((title, f"{costs.slow_node:.1f}") for title, costs in costs_of)
    yield from folded(
        f"If one node is away for the time of {AWAY_STEPS} gradients, the run loses this share of "
        "that time:"
    )
    yield from by_value((title, f"{10 * round(10 * costs.absence)} %") for title, costs in costs_of)
    yield ""


def by_value(values: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each value, with the titles that share it."""
    titles: dict[str, list[str]] = {}
    for title, value in values:
        titles.setdefault(value, []).append(title)
    for value, same in sorted(titles.items(), key=lambda item: float(item[0].split()[0])):
        yield from folded(f"- {value}: {'; '.join(same)}", "  ")


def assumptions(plan: PlannedMethods) -> Iterator[str]:
    """Yield the assumptions of a plan, and the methods that it leaves out."""
    yield "Assumed:"
    times = plan.request.cluster.codecs
    coding = "Coding and decoding of messages take no time (cluster.codecs)."
    if codecs := {*times.encode_seconds, *times.decode_seconds}:
        coding = f"Coding takes the time of cluster.codecs: {', '.join(sorted(codecs))}; else none."
    if plan.request.budget.watts is not None:
        coding += " The power does not depend on the method."
    texts = [*plan.request.assumed, coding]
    if overlap := plan.request.cluster.collectives.overlap:
        texts.append(
            f"An all-reduce can begin {100 * overlap:.0f} % of a gradient's time before its end; "
            f"if none is hidden (cluster.collectives.overlap=0), data parallel takes "
            f"{short_number(plan.without_overlap)} s per step."
        )
    for text in texts:
        yield from folded(f"- {text}", "  ")
    if plan.outside is not None:
        yield from folded(plan.outside)
    for title, reason in plan.left_out.items():
        named = reason if reason.startswith(title) else f"{title}: {reason}"
        yield from folded(f"Left out: {named}.", "  ")

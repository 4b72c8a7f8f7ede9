"""Generated parts of ``docs/validation.md``: cells with their errors, and valid profiles."""

from __future__ import annotations

from collections.abc import Sequence

from pages.settings import table
from sgp_runner.config.run import Run
from sgp_runner.utils.units import bit_rate, num_bytes
from validation.cells import Cell, cells, mean_and_worst, run_of, scored

# Profiles that model machines with known times, and the constants that were fitted.
FITTED = {
    "sgp_ethernet": "gradient, host, duplex",
    "slowmo_ethernet": "gradients, rate, input",
    "slowmo_ethernet_in_memory": "gradients, rate, input",
    "diloco_l40s_5g": "step, rate of each link, first connection",
    "diloco_l40s_1g": "step, rate of each link, first connection",
    "diloco_l40s_200m": "step, rate of each link, first connection",
    "diloco_l40s_50m": "step, rate of each link, first connection",
    "diloco_l40s": "step, rate of each link, first connection",
    "aws_p3_10g": "share, rates, windows",
    "aws_p3_10g_gloo": "share, rates, windows, host",
    "aws_10_regions": "rate, window of each receiver",
    "bert_40g": "rate",
    "p3_16xlarge_25g": "rate",
}
# Cells on a profile with other constants than its own.
CHANGED = ("tcp", "delay", "torchft")
# Heads of the first columns of tables. Further words of a cell are the head of its own column.
HEADS = {
    "delay": ("ranks", "rate", "size", "delay"),
    "diloco": ("rate",),
    "rings": ("nodes", "delay", "rate"),
    "sends": ("delay", "rate"),
    "tcp": ("rate",),
}


def times(names: str) -> str:
    """Return the table of the cells of some tables and a sentence, or the table of profiles."""
    if names == "profiles":
        head = ("`cluster=`", "law", "nodes", "rate", "model", "times", "mean", "worst")
        return table(map(profile, FITTED), (*head, "fitted"))
    listed = [cell for cell in cells() if cell.table in names.split()]
    head = HEADS.get(listed[0].table, ("",))
    if len(head) < len(listed[0].labels):
        text = pivot(listed, head)
    else:
        body = [(*cell.labels, real(cell), f"{cell.simulated:.4g}", error(cell)) for cell in listed]
        text = table(body, (*head, "real", "simulated", "error"))
    return f"{text}\n\n{summary(listed)}"


def profile(name: str) -> tuple[str, ...]:
    """Return a line on the cells of a profile."""
    measured = [
        cell for cell in cells() if cell.table not in CHANGED and of(cell).cluster.name == name
    ]
    cluster, errors = of(measured[0]).cluster, scored(measured)
    limits = cluster.validated
    rate = limits.bandwidth or cluster.links.regions[0].bandwidth_up
    count = f"{len(errors)}" if errors else f"{len(measured)} fitted"
    mean, worst = mean_and_worst(errors or [cell.error for cell in measured])
    return (
        f"`{name}`",
        cluster.collectives.library or "",
        str(limits.nodes or of(measured[0]).nodes),
        bit_rate(rate),
        num_bytes(limits.most_bytes) if limits.most_bytes else "",
        count,
        f"{mean:.1f} %",
        f"{worst:.1f} %",
        FITTED[name],
    )


def of(cell: Cell) -> Run:
    return run_of(*cell.settings.split())


def pivot(listed: Sequence[Cell], head: Sequence[str]) -> str:
    """Return a table of real times and errors, with a column for each value of the last words."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for cell in listed:
        column = ", ".join(cell.labels[len(head) :])
        row = rows.setdefault(cell.labels[: len(head)], {})
        row[column] = f"{real(cell)} ({percent(cell.error)})"
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    body = [(*labels, *(row.get(column, "") for column in columns)) for labels, row in rows.items()]
    return table(body, (*head, *columns))


def real(cell: Cell) -> str:
    return f"{cell.seconds:.4g}"


def percent(error: float) -> str:
    return f"{round(error, 1) + 0.0:+.1f} %"  # no minus zero


def error(cell: Cell) -> str:
    left_out = f"; left out: {percent(cell.error_left_out)}" if cell.left_out else ""
    return percent(cell.error) + (f" (fitted{left_out})" if cell.fitted else "")


def summary(listed: Sequence[Cell]) -> str:
    errors = scored(listed) or [cell.error for cell in listed]
    mean, worst = mean_and_worst(errors)
    kind = "predicted" if scored(listed) else "fitted"
    return f"Errors of {len(errors)} {kind} times: **mean {mean:.1f} %, worst {worst:.1f} %**."

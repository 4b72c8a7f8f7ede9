#!/usr/bin/env python
"""Table of the simulated effect of each fault on each algorithm.

``make faults`` runs this script, which writes ``docs/faults.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent

from sgp_runner.config.choices import groups
from sgp_runner.jobs.job_pool import RunJob, run_all
from sgp_runner.report.render.text_tables import markdown_table

OUT = Path(__file__).resolve().parent.parent / "docs" / "faults.md"
# A timing study of ResNet-50 on eight nodes with 10 Gbit/s, 200 steps per node.
SETTINGS = ("model=timing_only", "nodes=8", "epochs=0.32", "log_every=1000")
SPELL = 10.0  # s
WINDOW = f"start: 20, end: {20 + SPELL:g}"


@dataclass(frozen=True)
class Case:
    """The settings of a fault, and its duration in seconds; None if it never ends."""

    overrides: str
    seconds: float | None = None


CASES = {
    "slow node": Case("faults=slow_node"),
    "slow link": Case("faults=slow_link"),
    "late messages": Case("faults.delay_seconds=0.05"),
    "messages out of order": Case("faults.delay_seconds=0.05 faults.delay_law=uniform"),
    "lost and resent": Case("faults=drop"),
    "pause": Case(f"faults.events=[{{what: pause, ranks: [1], {WINDOW}}}]", SPELL),
    "crash and rejoin": Case(f"faults.events=[{{what: crash, ranks: [1], {WINDOW}}}]", SPELL),
    "partition and heal": Case(
        f"faults.events=[{{what: partition, ranks: [0, 1, 2, 3], {WINDOW}}}]", SPELL
    ),
    "permanent crash": Case("faults.events=[{what: crash, ranks: [1], start: 20}]"),
    "permanent crash, the others continue": Case(
        "on_failure=continue faults.events=[{what: crash, ranks: [1], start: 20}]"
    ),
    "permanent partition": Case(
        "faults.events=[{what: partition, ranks: [0, 1, 2, 3], start: 20}]"
    ),
    "permanent loss of messages": Case("faults=drop faults.resend_seconds=null"),
}
# The errors with which a fault can stop a run begin with these words.
MEANT = ("deadlock: ", "faults.", "on_failure: ")


PAGE = """\
# The effect of faults on each algorithm: simulated

`make faults` writes this page. The runs have ResNet-50's messages and compute times on eight nodes
with 10 Gbit/s, 200 steps of each node and the algorithms' default settings; all times are
simulated. ×2 means that a run takes twice as long, and +10 s that it loses 10 s to a fault that
lasts {seconds:g} s: it waited for the node. *Stops*: the run ends with an error or is refused, as
with all algorithms at a {stopping}.

{results}

{settings}

A run that stops ends with such an error. This is from SGP:

{error}

Synchronous algorithms end later, but with exactly the parameters of the undisturbed run. OSGP,
AD-PSGD and the parameter server without a barrier process messages in the order of arrival, so
their result depends on time. They lose no push-sum mass, no part of the sum of all parameters and
no gradient (`tests/cluster/test_faults.py`).

An all-reduce stalls if any of its ranks stalls, and each of its rounds waits for the latest
message. The runs with a parameter server are limited by the server's link. With
`on_failure=continue`, gossip and asynchronous algorithms detect the loss of a node after 5 s and
continue as a smaller run, in which seven nodes do the work of eight.

With churn (`faults=churn`), every node leaves and comes back repeatedly: `faults.churn_per_hour`
sets how often, and `faults.absence_seconds` the mean length of an absence. The times are
exponential and depend on the seed. Each absence is a *crash and rejoin*: the node resumes from its
state, synchronous algorithms wait for it, and asynchronous algorithms continue without it. A timing
study extrapolates from its sample, so make the sample long enough for many absences. A message,
gradient or collective that more than 10,000 absences would interrupt is refused.

With a trace (`faults=trace faults.trace=FILE`), nodes join and leave at recorded times: a file of
lines `milliseconds,add|remove,node`, such as [Oobleck's
traces](https://github.com/SymbioticLab/Oobleck) of spot machines. A node that joins takes the
lowest free rank; a rank without a node is in a crash, so synchronous algorithms wait for it. Use as
many nodes as the trace has at its most.
"""


def words_of(algo: str, case: Case) -> tuple[str, ...]:
    switch = ("algo.switch_epoch=0.16",) if algo == "hybrid" else ()
    first, events, rest = case.overrides.partition("faults.events=")
    return (
        f"algo={algo}",
        *switch,
        *SETTINGS,
        *first.split(),
        *([events + rest] if events else []),
    )


def main() -> int:
    algos = groups()["algo"]
    with TemporaryDirectory() as folder:
        cases = {"none": Case(""), **CASES}
        jobs = {
            (algo, name): RunJob(
                f"{algo}-{name.replace(',', '').replace(' ', '_')}",
                words_of(algo, cases[name]),
                Path(folder),
            )
            for algo, name in product(algos, cases)
        }
        errors: dict[str, str] = {}
        for done, error in run_all(jobs.values()):
            print(f"{done.name}: {(error or 'done').splitlines()[0]}", flush=True)
            if error is not None:
                errors[done.name] = error
        for name, error in errors.items():
            if not error.startswith(MEANT):
                print(f"scripts/fault_table.py: {name} failed: {error}", file=sys.stderr)
                return 1
        rows = []
        for algo in algos:
            plain = jobs[algo, "none"].summary
            assert plain is not None
            cells = [verdict(case, plain, jobs[algo, name].summary) for name, case in CASES.items()]
            rows.append([str(plain["algorithm"]), f"{seconds(plain):.1f} s", *cells])
        of_sgp = {name: errors.get(jobs["sgp", name].name, "") for name in CASES}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(page(rows, of_sgp), encoding="utf-8")
    return 0


def seconds(summary: Mapping[str, object]) -> float:
    return float(str(summary["time_s"]))


def verdict(case: Case, plain: Mapping[str, object], disturbed: Mapping[str, object] | None) -> str:
    """Return the effect of a fault: a slow-down factor, seconds lost, or ``stops``."""
    if disturbed is None:
        return "stops"
    if case.seconds is None:
        return f"×{seconds(disturbed) / seconds(plain):.2f}"
    return f"{seconds(disturbed) - seconds(plain):+.1f} s"


def page(rows: Sequence[Sequence[str]], errors: Mapping[str, str]) -> str:
    """Return the page with the table of effects, and the errors caused by faults with SGP."""
    columns = list(zip(("algorithm", "undisturbed", *CASES), *rows, strict=True))
    partly = [column for column in columns if {*column[1:]} != {"stops"}]
    stopping = [column[0] for column in columns if column not in partly]
    settings = [(name, f"`{case.overrides}`") for name, case in CASES.items()]
    error = next(
        (f"**{name}**\n\n{indent(text, '    ')}" for name, text in errors.items() if text), ""
    )
    head, *body = zip(*partly, strict=True)
    return PAGE.format(
        seconds=SPELL,
        stopping=" or ".join(stopping),
        results=markdown_table(head, body),
        settings=markdown_table(["fault", "settings"], settings),
        error=error,
    )


if __name__ == "__main__":
    sys.exit(main())

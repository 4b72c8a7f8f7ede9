#!/usr/bin/env python
"""What each fault does to each algorithm: ``make faults`` simulates all of them and writes
``docs/faults.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from sgp_runner.config.choices import groups
from sgp_runner.session.job_pool import Job, run_all

OUT = Path(__file__).resolve().parent.parent / "docs" / "faults.md"
# ResNet-50 on eight nodes and 10 Gbit/s, 200 steps of each: timing only.
SETTINGS = ("model=timing_only", "nodes=8", "epochs=0.32", "log_every=1000")
SPELL = 10.0  # s
WINDOW = f"start: 20, end: {20 + SPELL:g}"


@dataclass(frozen=True)
class Case:
    """A fault, and how long it lasts if it ends; None: all the time."""

    words: str
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
    "crash for good": Case("faults.events=[{what: crash, ranks: [1], start: 20}]"),
    "crash for good, the others go on": Case(
        "on_failure=continue faults.events=[{what: crash, ranks: [1], start: 20}]"
    ),
    "partition for good": Case("faults.events=[{what: partition, ranks: [0, 1, 2, 3], start: 20}]"),
    "messages lost for good": Case("faults=drop faults.resend_seconds=null"),
}
NONE = Case("")


MEANT = (
    "deadlock: ",
    "faults.",
    "on_failure: ",
)  # how the errors of a run begin that stops because of its fault


def words_of(algo: str, case: Case) -> tuple[str, ...]:
    switch = ("algo.switch_epoch=0.16",) if algo == "hybrid" else ()
    first, events, rest = case.words.partition("faults.events=")
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
        cases = {"none": NONE, **CASES}
        jobs = {
            (algo, name): Job(
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
        words = {name: errors.get(jobs["sgp", name].name, "") for name in CASES}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(page(rows, words), encoding="utf-8")
    return 0


def seconds(summary: Mapping[str, object]) -> float:
    return float(str(summary["time_s"]))


def verdict(case: Case, plain: Mapping[str, object], disturbed: Mapping[str, object] | None) -> str:
    """What became of a run. It waits if it lost at least half of the time that the fault lasted."""
    if disturbed is None:
        return "stops"
    if case.seconds is None:
        ratio = seconds(disturbed) / seconds(plain)
        return f"{'slows' if ratio >= 1.02 else 'goes on'}, ×{ratio:.2f}"
    lost = seconds(disturbed) - seconds(plain)
    return f"{'waits' if lost >= case.seconds / 2 else 'goes on'}, {lost:+.1f} s"


def page(rows: Sequence[Sequence[str]], words: Mapping[str, str]) -> str:
    head = ["algorithm", "undisturbed", *CASES]
    lines = [
        "# What faults do to each algorithm: simulated",
        "",
        "`make faults` writes this page. ResNet-50's messages and compute times on eight nodes "
        "with 10 Gbit/s, 200 steps of each node, the",
        "algorithms with their default settings; all times are simulated. *Slows*: the run takes "
        "so many times longer. *Waits*:",
        f"at least half of the {SPELL:g} s that the fault lasts are lost. *Goes on*: less than "
        "half, or less than 2 %. *Stops*: ends with",
        "an error, or is refused.",
        "",
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "| fault | settings |",
        "|---|---|",
        *(f"| {name} | `{case.words}` |" for name, case in CASES.items()),
        "",
        "What a run that stops says, with SGP as the example:",
    ]
    for name, text in words.items():
        if text:
            lines += ["", f"**{name}**", "", *(f"    {line}" for line in text.splitlines())]
    lines += [
        "",
        "Synchronous algorithms end with the parameters of the undisturbed run, to the bit, only "
        "later. OSGP, AD-PSGD and the parameter",
        "server without a barrier take messages as they come, so their result depends on when "
        "that is; they lose no push-sum mass, no part",
        "of the sum of all parameters and no gradient. `tests/test_faults.py` asserts this for "
        "every algorithm under every fault.",
        "",
        "An all-reduce stands still with any of its ranks, and each of its rounds waits for the "
        "latest message. A parameter server's own",
        "link is what its runs wait for here. When a member never comes back, the simulator finds "
        "that nobody can go on and says who waits",
        "for whom; real runs end, and name it. With `on_failure=continue` gossip and asynchronous "
        "algorithms notice after 5 s and go on as",
        "a smaller run; here seven nodes then do the work of eight. Algorithms that need an "
        "all-reduce refuse it.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

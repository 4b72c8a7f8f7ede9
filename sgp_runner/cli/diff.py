"""``sgp-run diff RUN RUN``: list the differences between two runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sgp_runner.cli.argparser import Parser, put
from sgp_runner.utils.errors import ConfigError, printable
from sgp_runner.utils.reading import read_json

EPILOG = """example
  sgp-run diff results/runs/sgp-mlp-digits-n16-* results/runs/osgp-mlp-digits-n16-*

Exit code: 0 if settings, versions and results are the same, 1 if something differs,
2 for a folder that is not a run. Wall-clock times are not compared."""
# What tells where and when a run was made, but not what was run.
INCIDENTAL = frozenset(("results", "run_dir", "name", "real_s", "started", "command"))
REAL_TIMES = frozenset(("time_s", "clock", "samples_per_s", "tokens_per_s", "flops_per_s", "mfu"))
ABSENT = "-"
Values = Mapping[str, object]


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    parser = Parser(
        prog="sgp-run diff",
        description="List what differs between two runs: settings, versions, data and results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="folder of a run")
    first, second = (contents_of(folder) for folder in parser.parse_args(argv).runs)
    parts = {
        part: [*differences(first[part], second[part])]
        for part in ("settings", "versions", "results")
    }
    if not parts["settings"]:  # else the first records differ by design
        parts["results"] += first_difference(first["records"], second["records"])
    if any(parts.values()):
        print_differences(parts)
    same = [part for part, rows in parts.items() if not rows]
    if same:
        put(f"The same in both: {', '.join(same)}.")
    return int(any(parts.values()))


def contents_of(folder: Path) -> Mapping[str, Any]:
    """Return the settings, versions and results of a run by their dotted keys, and its records.

    Raises ConfigError if the folder is not that of a run.
    """
    from sgp_runner.config.experiment import flat
    from sgp_runner.recording.recorder import read_metrics, read_summary
    from sgp_runner.report.read.runs import read_config
    from sgp_runner.report.read.validate import Damaged

    try:
        settings = dict(flat(read_config(folder)))
        records = read_metrics(folder)
        summary = read_summary(folder)
        path = folder / "environment.json"
        environment = read_json(path) if path.is_file() else {}
    except Damaged as error:
        raise ConfigError(str(folder), f"not the folder of a run: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(str(folder), f"its records cannot be read ({error}).") from None
    results = {"state": "unfinished"} if summary is None else summary
    return {
        "settings": settings,
        "versions": dict(flat(environment)),
        # The model, the seed and other facts are settings already.
        "results": {key: value for key, value in results.items() if key not in settings},
        "records": records,
    }


def differences(first: Values, second: Values) -> Iterator[tuple[str, str, str]]:
    """Yield each key whose values differ, and both values as text."""
    for key in dict.fromkeys([*first, *second]):
        values = first.get(key, ABSENT), second.get(key, ABSENT)
        if values[0] != values[1] and key not in INCIDENTAL:
            yield key, *texts(*values)


def first_difference(
    first: Sequence[Values], second: Sequence[Values]
) -> Iterator[tuple[str, str, str]]:
    """Yield the position of the first record that differs, and its differing values in each run."""
    empty: Values = {}
    for one, other in zip_longest(first, second, fillvalue=empty):
        real = "wall" in (one.get("clock"), other.get("clock"))
        hidden = INCIDENTAL | REAL_TIMES if real else INCIDENTAL
        keys = [
            key
            for key in dict.fromkeys([*one, *other])
            if key not in hidden and one.get(key) != other.get(key)
        ]
        if keys:
            place = {**other, **one}
            where = [f"{key} {place[key]}" for key in ("rank", "step") if key in place]
            both = [texts(one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys]
            sides = (
                ", ".join(f"{key} {pair[side]}" for key, pair in zip(keys, both, strict=True))
                for side in (0, 1)
            )
            yield f"first different record: {', '.join(where)}", next(sides), next(sides)
            return


def texts(first: object, second: object) -> tuple[str, str]:
    """Return two values as text, with six digits if these distinguish the numbers."""
    if isinstance(first, float) and isinstance(second, float) and f"{first:.6g}" != f"{second:.6g}":
        return f"{first:.6g}", f"{second:.6g}"
    return printable(str(first)), printable(str(second))


def print_differences(parts: Mapping[str, Sequence[tuple[str, str, str]]]) -> None:
    """Print a table with a section for each part that differs."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sgp_runner.console.summary import show

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for head in ("", "first", "second"):
        table.add_column(head, overflow="fold")
    for part, rows in parts.items():
        if rows:
            table.add_row(Text(part, style="bold"))
        for row in rows:
            table.add_row(*map(Text, row))
    show(table)

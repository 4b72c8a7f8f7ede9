"""``sgp-run plan [KEY=VALUE ...]``: compare methods on the user's machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.cli.argparser import put
from sgp_runner.plan.keys import KEYS
from sgp_runner.plan.words import both_ends, help_lines, split_options
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from sgp_runner.plan.comparison import PlannedMethods

HELP = f"""usage: sgp-run plan [KEY=VALUE ...] [--all] [--json FILE] [--html FILE]
                   [--config-dir FOLDER]

Simulates a step of every method on your machines: its time, cost, bytes and memory,
and the rate below which it pays. The first line is the answer.

  sgp-run plan model=gpt2_xl nodes=4 devices=8 bandwidth=10Gbit/s step=0.4s
  sgp-run plan parameters=7e9 step=2s nodes=8 sites=2 bandwidth=100Gbit/s \\
      site_bandwidth=1Gbit/s site_latency=30ms batch_tokens=1e6 tokens=20e9
  sgp-run plan cluster=aws_p3_10g model=resnet50 step=0.2s steps=450e3

keys
{help_lines(KEYS)}
and cluster=, cluster.KEY=, faults=, optim= as in sgp-run. An interval of a rate,
bandwidth=4..10Gbit/s, gives the answers of both ends and the table of the first.
--all shows every method, not only the ten fastest. --json FILE writes all numbers.
--html FILE also simulates a grid of bandwidths, latencies, nodes and H, in one to two
minutes, and writes a page with sliders and a map of the fastest method."""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    from sgp_runner.config.command_line import search_in
    from sgp_runner.plan.comparison import as_json, compare
    from sgp_runner.plan.request import read_request
    from sgp_runner.plan.table import text_of

    every = "--all" in argv
    arguments = [word for word in argv if word != "--all"]
    overrides, pairs = split_options(arguments, ("--json", "--html", "--config-dir"))
    options = dict(pairs)
    for option in ("--json", "--html"):
        if option in options:
            check_writable(option, Path(options[option]))  # before the minutes that a grid takes
    folder = options.get("--config-dir")
    search = [] if folder is None else [search_in(folder)]
    first, *second = [read_request(request, search) for request in both_ends(overrides)]
    plans = [
        compare(first, every=every or "--json" in options),
        *(compare(request, rates=False) for request in second),
    ]
    put(text_of(*plans, every=every))
    if "--json" in options:
        documents = list(map(as_json, plans))
        values = json.dumps(documents if second else documents[0], indent=2)
        write("--json", options["--json"], values + "\n")
    if "--html" in options:
        write_explorer(options["--html"], both_ends(overrides)[0], search, plans[0], every)
    return 0


def write_explorer(
    path: str, overrides: Sequence[str], search: Sequence[str], plan: PlannedMethods, every: bool
) -> None:
    """Simulate the grid of a plan's request, and write its page."""
    from sgp_runner.plan.explorer import explorer_page
    from sgp_runner.plan.grid import simulated_grid

    grid = simulated_grid(overrides, search, plan=plan)
    title = f"{grid['machines']}, {grid['parameters']:,} parameters"
    page = explorer_page(
        [{**grid, "title": title}], "Which method fits these machines?", plan, every=every
    )
    write("--html", path, page)
    put(f"explorer in {path}")


def check_writable(option: str, path: Path) -> None:
    """Raise ConfigError if the file of an option cannot be written; do not change it."""
    absent = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(option, f"cannot write {path}: {error.strerror}.") from error
    if absent:
        path.unlink()


def write(option: str, path: str, text: str) -> None:
    """Write the file of an option."""
    check_writable(option, Path(path))
    Path(path).write_text(text, encoding="utf-8")

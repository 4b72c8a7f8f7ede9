"""``sgp-run plan [KEY=VALUE ...]``: compare methods on the user's machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sgp_runner.cli.argparser import put
from sgp_runner.plan.keys import KEYS
from sgp_runner.plan.words import both_ends, described, split_options
from sgp_runner.utils.errors import ConfigError

USAGE = """usage: sgp-run plan [KEY=VALUE ...] [--json FILE] [--config-dir FOLDER]

Simulates a step of every method on your machines: its time, cost, bytes and memory,
and the rate below which it pays. The first line is the answer.

  sgp-run plan model=gpt2_xl nodes=4 devices=8 bandwidth=10Gbit/s step=0.4s
  sgp-run plan parameters=7e9 step=2s nodes=8 sites=2 bandwidth=100Gbit/s \\
      site_bandwidth=1Gbit/s site_latency=30ms batch_tokens=1e6 tokens=20e9
  sgp-run plan cluster=aws_p3_10g model=resnet50 step=0.2s steps=450e3

keys
{keys}
and cluster=, cluster.KEY=, faults=, optim= as in sgp-run. An interval of a rate,
bandwidth=4..10Gbit/s, gives the answers of both ends and the table of the first."""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    if "--help" in argv or "-h" in argv:
        put(USAGE.format(keys=described(KEYS)))
        return 0
    from sgp_runner.config.command_line import search_in
    from sgp_runner.plan.comparison import as_json, compare
    from sgp_runner.plan.request import read_request
    from sgp_runner.plan.table import text_of

    words, options = split_options(argv, ("--json", "--config-dir"))
    folder = options.get("--config-dir")
    search = [] if folder is None else [search_in(folder)]
    first, *second = [read_request(each, search) for each in both_ends(words)]
    plans = [compare(first), *(compare(each, rates=False) for each in second)]
    put(text_of(*plans))
    if "--json" in options:
        made = list(map(as_json, plans))
        write_json(Path(options["--json"]), made if second else made[0])
    return 0


def write_json(path: Path, values: object) -> None:
    """Write plain data to a file."""
    try:
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("--json", f"cannot write {path}: {error.strerror}.") from error

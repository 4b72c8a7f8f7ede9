"""The command ``sgp-report``; an invalid request gives one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sgp_runner._version import __version__
from sgp_runner.cli.argparser import Parser, add_plugins
from sgp_runner.cli.exits import print_error, run_command
from sgp_runner.config.plugins.loading import named

EXAMPLES = """examples
  sgp-report results/runs                       all runs
  sgp-report results/sweeps/2026-01-31_12-00-00 the runs of a sweep
  sgp-report results/runs/sgp-* --target 0.9    some runs, and their time to 90 %
  sgp-report results/runs/sgp-* --retime cluster=infiniband_100g,ethernet_10g
                                                also re-timed on these clusters, without training
  sgp-report results/runs/sgp-* --retime cluster.bandwidth=1Gbit/s,10Gbit/s
                                                also re-timed on faster and slower interfaces
  sgp-report results/runs/sgp-* --config-dir results --retime cluster=here
                                                also on machines that sgp-run calibrate measured"""


def parser() -> Parser:
    out = Parser(
        prog="sgp-report",
        description="Compare runs: tables, an offline web page with plots, "
        "and every plot as a picture.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="folder of a run, of a sweep, or of several of them",
    )
    out.add_argument(
        "--out",
        type=Path,
        default=Path("results/report"),
        metavar="FOLDER",
        help="folder of the report (default: %(default)s)",
    )
    out.add_argument(
        "--target",
        type=target,
        help="quality whose time is compared: accuracy (0.95 or 95%%), BLEU, or loss "
        "(default: what all settings reach, or half of them)",
    )
    out.add_argument(
        "--retime",
        action="append",
        metavar="cluster=A,B",
        help="also show what the runs would have recorded on these clusters, named or files, or "
        "with another cluster.bandwidth=1Gbit/s; may be repeated; for algorithms whose decisions "
        "do not depend on time",
    )
    out.add_argument(
        "--config-dir",
        metavar="FOLDER",
        help="folder of your own presets, such as results for clusters of sgp-run calibrate",
    )
    add_plugins(out)
    out.add_argument("--version", action="version", version=f"sgp-report {__version__}")
    return out


def target(word: str) -> float:
    """Return the quality in ``word``, which is a number or a percentage."""
    try:
        value = float(f"{word[:-1]}e-2" if word.endswith("%") else word)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"'{word}' is not a quality: write 0.95, 95% or 27.3.")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    asked = parser().parse_args(argv)
    return run_command("sgp-report", lambda: report(asked))


def report(asked: argparse.Namespace) -> int:
    """Write the report and print its tables."""
    from sgp_runner.console.summary import show
    from sgp_runner.replay.retiming import retime_all
    from sgp_runner.report.render.terminal import published_grid, show_rankings
    from sgp_runner.report.render.write import write_report

    named([], asked.plugin)
    retimed = (
        retime_all(asked.folders, asked.retime, asked.out / "retimed", asked.config_dir)
        if asked.retime is not None
        else []
    )
    result = write_report([*asked.folders, *retimed], asked.out, asked.target)
    show_rankings(result.settings, asked.target)
    if result.pairs:
        show(published_grid(result.pairs))
    for sentence in result.skipped:
        print_error("sgp-report", sentence)
    print(f"\nreport in {result.page}", flush=True)
    return 0

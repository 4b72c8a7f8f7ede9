"""The command ``sgp-replay``; an invalid request gives one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from sgp_runner._version import __version__
from sgp_runner.cli.argparser import Parser, add_plugins
from sgp_runner.cli.exits import print_error, run_command
from sgp_runner.config.plugins.loading import named
from sgp_runner.utils.errors import CannotWrite
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.units import counted, duration

FILE = "replays.jsonl"  # in the folder of the run
EXAMPLES = """examples
  sgp-run algo=ad_psgd network=gloo nodes=4 record=true   a run that can be replayed
  sgp-replay results/runs/NAME                            the same run again, decision by decision
  sgp-replay results/runs/NAME --with algo=osgp           simulated time of OSGP on its machines
  sgp-replay results/runs/NAME --with                     simulated time of the same algorithm"""


def parser() -> Parser:
    out = Parser(
        prog="sgp-replay",
        description="Repeat a recorded run of real processes in one process, bit for bit, "
        "or simulate another algorithm with the recorded times.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument(
        "run", type=Path, metavar="RUN", help="the folder of a run that had record=true"
    )
    out.add_argument(
        "--with",
        nargs="*",
        dest="overrides",
        metavar="SETTING",
        help="simulate these settings, such as algo=osgp algo.tau=2, "
        "with the recorded compute times and message delays",
    )
    add_plugins(out)
    out.add_argument("--version", action="version", version=f"sgp-replay {__version__}")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, which is 1 if the replay differs from the run."""
    asked = parser().parse_args(argv)
    warnings.showwarning = lambda message, *rest: print_error("sgp-replay", f"warning: {message}")
    return run_command("sgp-replay", lambda: replay_command(asked))


def replay_command(asked: argparse.Namespace) -> int:
    """Replay a recorded run, or simulate other settings with the times in its recording."""
    overrides = named(asked.overrides or (), asked.plugin)
    return repeat(asked.run) if asked.overrides is None else time_again(asked.run, overrides)


def repeat(directory: Path) -> int:
    from sgp_runner.replay.exact import replay

    result = replay(directory)
    steps = [worker.steps_taken for worker in result.workers]
    keep(
        directory,
        {
            "kind": "replay",
            "ended": result.ended,
            "same": result.same,
            "all_reduces": result.reduced,
            "steps": steps,
        },
    )
    print(
        f"{directory}: {counted(len(steps), 'rank')} took {', '.join(map(str, steps))} steps",
        flush=True,
    )
    if not result.ended:
        print(
            "The recorded run failed: the replay reached the end of its recording without failing.",
            flush=True,
        )
        return 0
    if all(result.same):
        print("All ranks reproduce the parameters of the real run, bit for bit.", flush=True)
        return 0
    if result.reduced:
        print(
            "Parameters differ by rounding: the summation order of all-reduces is not repeated.",
            flush=True,
        )
        return 0
    different = ", ".join(str(rank) for rank, same in enumerate(result.same) if not same)
    others = "ended with different parameters: the code or the machine computes differently."
    print_error("sgp-replay", f"rank {different} took the recorded decisions but {others}")
    return 1


def time_again(directory: Path, overrides: Sequence[str]) -> int:
    """Print the time of the run under ``overrides``, simulated with its recorded times."""
    for override in overrides:
        refuse_secrets(override.partition("="), override.partition("=")[0])
    from sgp_runner.replay.what_if import retime

    result = retime(directory, overrides)
    keep(directory, {"kind": "retimed", "with": list(overrides), **result.facts})
    name = result.algorithm if overrides else f"{result.algorithm} itself"
    print(
        f"{directory}: {result.recorded_algorithm} took {duration(result.recorded_s)} (measured)",
        flush=True,
    )
    print(
        f"With its compute times and message delays, {name} takes {duration(result.time_s)} "
        f"(simulated), {result.steps} steps of a node.",
        flush=True,
    )
    return 0


def keep(directory: Path, record: Mapping[str, object]) -> None:
    """Append a record to ``replays.jsonl`` in the run's folder."""
    path = directory / FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise CannotWrite(path, error) from error

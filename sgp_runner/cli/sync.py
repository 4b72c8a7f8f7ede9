"""``sgp-sync RUN_DIR...``: copy runs to their loggers again, from their ``metrics.jsonl``.

Use it for runs that had no connection to the destination or lost it. If the logger of a run makes
no copies, W&B is the destination. Each copy is a new, complete run at the destination.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sgp_runner.cli.argparser import Parser, add_plugins
from sgp_runner.cli.exits import run_command
from sgp_runner.config.logger import Copies, Logger, NeedsPackages
from sgp_runner.config.plugins.loading import named
from sgp_runner.utils.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, which is 1 if a copy failed."""
    parser = Parser(prog="sgp-sync", description="Copy recorded runs to their loggers again.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR", help="in results/runs")
    add_plugins(parser)
    asked = parser.parse_args(argv)
    return run_command("sgp-sync", lambda: sync_all(asked.folders, asked.plugin))


def sync_all(folders: Sequence[Path], plugins: Sequence[str]) -> int:
    named([], plugins)
    return 0 if all([sync(folder) for folder in folders]) else 1


def sync(run_dir: Path) -> bool:
    """Copy the records of rank 0 and return whether all of them reached the destination.

    Raises ConfigError if the folder holds no run, or if there is no login.
    """
    from sgp_runner.config.experiment import load_experiment
    from sgp_runner.recording.recorder import metrics_path, read_lines

    experiment = load_experiment(run_dir / "config.yaml", None)
    try:
        records = read_lines(metrics_path(run_dir, 0))
    except (OSError, ValueError) as error:
        raise ConfigError(str(run_dir), f"its metrics cannot be read ({error}).") from error
    if not records:
        raise ConfigError(str(run_dir), "the run has no metrics yet.")
    logger = destination(experiment.run.logger)
    mirror = logger.mirror(run_dir, experiment.name, experiment.config, experiment.tags, None, 0)
    summary = None
    for record in records:
        if record["kind"] == "summary":
            summary = record
        else:
            mirror.write(record)
    mirror.finish(summary, seconds=24 * 3600)
    if not mirror.failed:
        print(f"{run_dir}: {len(records)} records", flush=True)
    return not mirror.failed


def destination(logger: Logger) -> Copies:
    """Return the logger that makes the copy. Raises ConfigError if no copy is possible."""
    from sgp_runner.recording.loggers.wandb import Wandb

    if isinstance(logger, NeedsPackages):
        logger.check_installed()
    if isinstance(logger, Copies) and not isinstance(logger, Wandb):
        return logger
    wandb = replace(logger, mode="auto") if isinstance(logger, Wandb) else Wandb()
    if wandb.actual_mode == "online":
        return replace(wandb, mode="online")
    if os.environ.get("WANDB_MODE") != "offline":
        raise ConfigError(
            "W&B",
            "there is no login, so nothing was sent: run wandb login or set WANDB_API_KEY; "
            "WANDB_MODE=offline sgp-sync makes an offline copy.",
        )
    return wandb


if __name__ == "__main__":
    sys.exit(main())

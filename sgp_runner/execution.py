"""One run, from its validated experiment to its summary on disk."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.environment import environment
from sgp_runner.errors import ConfigError
from sgp_runner.networks import launched_rank
from sgp_runner.recorder import metrics_path, write_summary

if TYPE_CHECKING:
    from sgp_runner.run import Experiment


def perform(experiment: Experiment) -> dict[str, object] | None:
    """The summary of the run, which is executed unless it was before; None on ranks that have nothing to report.

    A launcher's ranks all come here; the first writes and prints. Raises ConfigError, leaving nothing behind, when the
    settings turn out not to fit the data, and whatever the run raises.
    """
    rank = launched_rank()
    done = experiment.finished()
    if done is not None:
        if rank not in (None, 0):
            return None
        print("This run is done already (resume=never repeats it).", flush=True)
        return {**done, "run_dir": str(experiment.directory)}
    made = prepare(experiment, rank)
    try:
        summary = experiment.execute()
    except ConfigError:
        remove(made)
        raise
    if summary is not None:
        write_summary(experiment.directory, summary)
    return summary


def prepare(experiment: Experiment, rank: int | None) -> list[Path]:
    """Make the run directory ready, without what an earlier attempt recorded; what this has created, innermost first."""
    import yaml

    directory = experiment.directory
    made: list[Path] = []
    try:
        forget(directory, rank)
        if rank not in (None, 0):
            return made
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_dump(dict(experiment.config), sort_keys=False, allow_unicode=True)
        for name, text in (("config.yaml", config), ("environment.json", json.dumps(environment(), indent=2) + "\n")):
            if not (directory / name).exists():
                made.insert(0, directory / name)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        remove(made)
        raise ConfigError("results", f"cannot write to {directory}: {error.strerror}.") from error
    return made


def forget(directory: Path, rank: int | None) -> None:
    """Remove the records of an earlier attempt. Launched ranks start at any moment, so each removes only its own."""
    paths = [metrics_path(directory, rank or 0)]
    if rank is None:
        paths += directory.glob("metrics.rank*.jsonl")
    if rank in (None, 0):
        paths += [directory / "summary.json", directory / "wandb_id"]  # a run that starts over is a new one in W&B too
    for path in paths:
        path.unlink(missing_ok=True)


def remove(made: list[Path]) -> None:
    """Undo ``prepare``; folders that something else is in stay."""
    for path in made:
        try:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        except OSError:
            return


def sentence_of(error: BaseException) -> str:
    """What went wrong, for a person. Errors of this package are written for one; others need their type to be understood."""
    text = str(error).strip()
    if type(error).__module__.startswith("sgp_runner."):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def print_traceback_if_wanted(error: BaseException) -> None:
    if "1" in (os.environ.get("SGP_RUN_TRACEBACK"), os.environ.get("HYDRA_FULL_ERROR")):
        traceback.print_exception(error)

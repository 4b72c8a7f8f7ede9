"""Execution of one run, from its validated experiment to its summary on disk."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from sgp_runner.assembly import start
from sgp_runner.assembly.extension import extend, shorter_run
from sgp_runner.assembly.resizing import resize
from sgp_runner.config.experiment import (
    FORMAT,
    Experiment,
    flat,
    identity_of,
    other_version,
    settings_of,
    stored,
)
from sgp_runner.config.logger import NeedsPackages
from sgp_runner.config.plugins.loading import KEY as KEY_OF_PLUGINS
from sgp_runner.config.run import Run
from sgp_runner.config.schema import value_text
from sgp_runner.config.size import check_memory
from sgp_runner.recording.checkpoint import extendable, keep_only
from sgp_runner.recording.divergence import FILE, record_divergence, refuse_to_repeat
from sgp_runner.recording.recorder import finished, write_summary
from sgp_runner.recording.trace import remove_recordings
from sgp_runner.utils.errors import CannotWrite, ConfigError, Diverged, RecordsLost, Stopped
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.launchers import launched, launched_rank
from sgp_runner.utils.lock import locked
from sgp_runner.utils.memory import most_bytes
from sgp_runner.utils.messages import logger
from sgp_runner.utils.provenance import environment
from sgp_runner.utils.reading import read_yaml
from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.signals import cause, signal_state
from sgp_runner.utils.user_code import format_error

KEEP_LAST = "checkpoint.keep_last"


def run_experiment(
    experiment: Experiment, fork: bool = False, verified: bool = False
) -> dict[str, object] | None:
    """Execute the run unless it has finished; return the summary on rank 0, else None.

    fork: whether ranks started here may be forked, because this process runs nothing else
    verified: whether a run with the same `Run.calls` has already been verified

    All ranks of a launcher call this; rank 0 writes and prints. Raises any error of the run. A
    ConfigError, for example for settings that do not fit the data, leaves no new files behind.
    """
    rank = launched_rank()
    if experiment.run.resume == "resize":
        experiment = resize(experiment)
    shorter = shorter_run(experiment)
    if shorter is None and rank in (None, 0) and experiment.run.resume == "auto":
        refuse_other_settings(experiment)
    done = finished(experiment) if shorter is None else None
    if done is not None:
        if rank not in (None, 0):
            return None
        logger.info("This run has finished already (resume=never repeats it).")
        remove_checkpoints_left(experiment)
        copy_finished(experiment, done)
        return {**done, "run_dir": str(experiment.directory)}
    if experiment.run.resume == "auto":
        refuse_to_repeat(experiment.directory)
    if isinstance(experiment.run.logger, NeedsPackages):
        experiment.run.logger.check_installed()
    start.check_launch(experiment.run)
    verify_memory(experiment.run)
    verifies = verifies_itself(experiment)
    if not (verified or verifies):
        from sgp_runner.assembly.dry_run import verify_calls  # imports torch, which takes seconds

        verify_calls(experiment.run)
    if experiment.run.network.name == "sim":
        from sgp_runner.assembly.simulated.backend import verify_times

        verify_times(experiment.run)
    with locked(experiment.directory) if rank in (None, 0) else nullcontext():
        if shorter is not None:
            extend(experiment, shorter)
        try:
            return execute(experiment, rank, fork)
        except Stopped:
            raise
        except RuntimeError:
            if verifies:
                from sgp_runner.assembly.dry_run import verify_calls

                verify_calls(experiment.run)  # names ranks and step if their calls are the cause
            raise


def verifies_itself(experiment: Experiment) -> bool:
    """Return whether a run needs no dry run: a timing study with an algorithm of this package.

    The study makes the same calls itself, and a late error wastes no computation. A range of rates
    needs the dry run, which detects whether the order of calls depends on time.
    """
    run = experiment.run
    return not (run.model.trains or experiment.plugins or len(run.cluster.links.rates) > 1)


def copy_finished(experiment: Experiment, summary: Mapping[str, object]) -> None:
    """Copy the records of a finished run to its logger if the logger lacks them."""
    run, directory = experiment.run, experiment.directory
    copied = getattr(run.logger, "copied", None)
    if copied is None or (directory / copied).exists():
        return
    if isinstance(run.logger, NeedsPackages):
        run.logger.check_installed()
    settings = experiment.name, experiment.config, experiment.tags, experiment.group
    with locked(directory):
        copy = run.logger.open(directory, *settings)
        copy.finish(summary)
    if not getattr(copy, "failed", False):
        logger.info(f"Its records have been copied: {directory / copied} did not exist.")


def verify_memory(run: Run) -> None:
    """Raise ConfigError if the ranks on this machine need more memory than is available."""
    here = 1 if run.network.name == "sim" or launched() is not None else run.ranks
    check_memory(run, here, most_bytes())


def execute(experiment: Experiment, rank: int | None, fork: bool) -> dict[str, object] | None:
    """Execute the run in its folder, which rank 0 has locked."""
    files = prepare(experiment) if rank in (None, 0) else []
    signal_state.asked = None
    try:
        with ExitStack() as exit_stack:
            summary = start.execute(experiment, exit_stack, fork)
            if summary is not None:
                conclude(experiment, summary)
    except ConfigError:
        remove(files)
        raise
    except Diverged as error:
        raise record_divergence(experiment, error) from error
    if (number := signal_state.asked) is not None:
        where = f"the run has ended; its results are in {experiment.directory}"
        raise Stopped(f"{cause(number)}, but {where}", number)
    return summary


def conclude(experiment: Experiment, summary: Mapping[str, object]) -> None:
    """Write the summary, and remove checkpoints that are no longer needed.

    Raises RecordsLost if the stored configuration of the run was changed or removed.
    """
    path = experiment.directory / "config.yaml"
    try:
        what = None if read_yaml(path) == stored(experiment) else "was changed"
    except FileNotFoundError:
        what = "was removed"
    except (OSError, ValueError):
        what = "was changed"
    if what is not None:
        (experiment.directory / "summary.json").unlink(missing_ok=True)  # written by a real rank 0
        raise RecordsLost(path, what)
    write_summary(experiment.directory, summary)
    remove_checkpoints(experiment, experiment.run.checkpoint.keep_last)


def remove_checkpoints(experiment: Experiment, keeps: bool) -> None:
    """Remove the checkpoints of a finished run, except the one needed to extend it.

    keeps: whether the run keeps that checkpoint (`KEEP_LAST`)
    """
    checkpoints = extendable(experiment.checkpoints, experiment.digest)[:1] if keeps else []
    keep_only(checkpoints, experiment.checkpoints)


def remove_checkpoints_left(experiment: Experiment) -> None:
    """Remove leftover checkpoints of a finished run that was killed before removing them."""
    folder, config = experiment.checkpoints, read_yaml(experiment.directory / "config.yaml")
    keeps = experiment.run.checkpoint.keep_last or bool(dict(flat(config)).get(KEEP_LAST))
    if folder.exists() and not (keeps and len([*folder.iterdir()]) == 1):
        with suppress(ConfigError), locked(experiment.directory):  # its holder removes them
            remove_checkpoints(experiment, keeps)


def prepare(experiment: Experiment) -> list[Path]:
    """Prepare the folder of the run and return the created files."""
    import yaml

    directory = experiment.directory
    config = yaml.safe_dump(stored(experiment), sort_keys=False, allow_unicode=True)
    used = {KEY_OF_PLUGINS: {plugin.name: plugin.record for plugin in experiment.plugins}}
    used = used if experiment.plugins else {}
    texts = {
        "config.yaml": config,
        "environment.json": json.dumps(environment(experiment.command) | used, indent=2) + "\n",
    }
    files = [directory / name for name in texts if not (directory / name).exists()]
    try:
        for name in ("summary.json", FILE):
            (directory / name).unlink(missing_ok=True)
        remove_recordings(directory)
        if experiment.run.resume == "never":
            shutil.rmtree(experiment.checkpoints, ignore_errors=True)
            for path in directory.glob("metrics.rank*.jsonl"):
                path.unlink()
        for name, text in texts.items():
            replace_file(directory / name, text)
    except CannotWrite as error:
        remove(files)
        raise ConfigError("results", str(error)) from error
    except OSError as error:
        raise ConfigError("results", f"cannot write to {directory}: {error.strerror}.") from error
    return files


def refuse_other_settings(experiment: Experiment) -> None:
    """Check that the folder does not contain a different run.

    Raises ConfigError, with the first difference, if the folder holds a run with other settings.
    """
    path = experiment.directory / "config.yaml"
    if not os.path.exists(path):  # unlike Path.exists, accepts any name
        return
    way_out = "choose another name, or replace that run with resume=never"
    try:
        config = read_yaml(path)
        there = dict(flat(identity_of(settings_of(config))))
    except (OSError, ValueError, AttributeError):
        raise ConfigError("name", f"{path} cannot be read; {way_out}.") from None
    if config.get("format") != FORMAT:
        raise ConfigError(
            "name", f"{experiment.directory} holds a run {other_version(config)}; {way_out}."
        )
    here = dict(flat(identity_of(experiment.settings)))
    for name in [plugin.name for plugin in experiment.plugins]:
        key = f"{KEY_OF_PLUGINS}.{name}"
        if key in there and there[key] != here[key]:
            raise ConfigError(
                "name",
                f"{experiment.directory} holds a run with another version of the plug-in {name}; "
                f"{way_out}.",
            )
    for key in [*here, *there]:
        if key not in there or key not in here or here[key] != there[key]:
            then, now = (value_text(run[key]) if key in run else "not set" for run in (there, here))
            difference = f"{key} is {then} there and {now} here"
            raise ConfigError(
                "name",
                f"{experiment.directory} holds a run with other settings: {difference}; {way_out}.",
            )


def remove(files: list[Path]) -> None:
    """Remove the files that `prepare` created."""
    for path in files:
        path.unlink(missing_ok=True)


def sentence_of(error: BaseException) -> str:
    """Describe an error without secrets, with its type if it comes from another package."""
    ours = type(error).__module__.startswith("sgp_runner.")
    return redacted(str(error)).strip() if ours else redacted(format_error(error))


def print_traceback_if_wanted(error: BaseException) -> None:
    if "1" in (os.environ.get("SGP_RUN_TRACEBACK"), os.environ.get("HYDRA_FULL_ERROR")):
        sys.stderr.write(redacted("".join(traceback.format_exception(error))))

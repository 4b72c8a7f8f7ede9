"""The runs of a command: a single run, or the jobs of a sweep and their rows of the comparison."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sgp_runner.assembly.execution import perform, print_traceback_if_wanted, sentence_of
from sgp_runner.cli import STARTED
from sgp_runner.config.command_line import Setting
from sgp_runner.config.experiment import Experiment, make_experiment
from sgp_runner.config.overrides import compose
from sgp_runner.utils.errors import Diverged, Stopped
from sgp_runner.utils.signals import signal_state

Row = dict[str, object]


def run_alone(settings: Sequence[Setting]) -> int:
    """Run one experiment, print its summary table and return the exit code."""
    experiment = replace(make_experiment(compose(settings)), started=STARTED)
    try:
        summary = perform(experiment, fork=bool(signal_state.command))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"before the end; what was recorded is in {experiment.directory}"
        ) from error
    if summary is not None:
        from sgp_runner.console.summary import show, summary_table

        show(summary_table(summary))
    return 0


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep.

    title: the settings in which this run differs from the other runs, as a user types them
    """

    title: str
    experiment: Experiment

    def row(self, results: Mapping[str, object]) -> Row:
        """Return the job's row of the comparison, with settings that often differ between runs."""
        run = self.experiment.run
        cluster = run.cluster.name if run.network.clock == "simulated" else ""
        settings = {"cluster": cluster, "batch_size": run.batch_size, "lr": run.optim.lr}
        return {**results, **settings, "job": self.title}

    def failed_row(self, sentence: str) -> Row:
        """Return the row of a job that failed; ``sentence`` is the reason."""
        return {**self.row(self.experiment.facts), "failed": sentence}

    def row_if_done(self) -> Row | None:
        """Return the row if the folder has the results of this job; None otherwise."""
        from sgp_runner.recording.recorder import finished

        summary = finished(self.experiment)
        return None if summary is None else self.row(summary)


def describe_settings(settings: Sequence[Setting], names: Collection[str]) -> str:
    """Return those settings whose names are in ``names``, as a user types them."""
    return " ".join(setting.typed for setting in settings if setting.name in names)


def run_job(job: SweepJob, number: str, verified: bool = False) -> Row:
    """Run a job and return its row of the comparison; after an error the row has the reason.

    verified: whether the calls of its ranks have been verified (`perform`)
    """
    print(f"\n{number} {job.title}", flush=True)
    try:
        summary = perform(replace(job.experiment, started=time.monotonic()), verified=verified)
    except Stopped:
        raise
    except Exception as error:
        if signal_state.interrupted:  # a library has replaced KeyboardInterrupt
            raise
        print_traceback_if_wanted(error)
        sentence = sentence_of(error)
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        failed = job.failed_row(sentence.splitlines()[0])
        return {**failed, "diverged": isinstance(error, Diverged)}
    return job.row(summary or {})

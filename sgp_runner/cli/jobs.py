"""A job of a sweep: one run, and its row of the comparison."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sgp_runner.config.plugins.loading import named
from sgp_runner.config.schema import make_experiment
from sgp_runner.session.execution import perform, print_traceback_if_wanted, sentence_of
from sgp_runner.utils.errors import Diverged, Stopped
from sgp_runner.utils.signals import signal_state

if TYPE_CHECKING:
    from sgp_runner.config.experiment import Experiment

Row = dict[str, object]


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep.

    title: the settings in which this run differs from the others, as typed.
    """

    title: str
    experiment: Experiment

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings: another process loads the plug-ins again."""
        experiment = self.experiment
        places = [plugin.where for plugin in experiment.plugins]
        return job_of, (self.title, dict(experiment.config), experiment.group, places)

    def row(self, results: Mapping[str, object]) -> Row:
        """Its row of the comparison, with the settings that most often tell runs apart."""
        run = self.experiment.run
        cluster = run.cluster.name if run.network.clock == "simulated" else ""
        shown = {"cluster": cluster, "batch_size": run.batch_size, "lr": run.optim.lr}
        return {**results, **shown, "job": self.title}


def job_of(
    title: str, config: Mapping[str, object], group: str | None, places: Sequence[str]
) -> SweepJob:
    """The job of these settings, with the plug-ins in the files and folders ``places``."""
    named([], places)
    return SweepJob(title, make_experiment(config, group))


def run_job(job: SweepJob, number: str) -> Row:
    """Run a job and return its row of the comparison; an error becomes a row as well."""
    print(f"\n{number} {job.title}", flush=True)
    try:
        summary = perform(replace(job.experiment, started=time.monotonic()))
    except Stopped:
        raise
    except Exception as error:
        if signal_state.interrupted:  # a library has made another error of Ctrl-C
            raise
        print_traceback_if_wanted(error)
        print(f"error: {sentence_of(error)}", file=sys.stderr, flush=True)
        failed = sentence_of(error).splitlines()[0]
        return {**failed_row(job, failed), "diverged": isinstance(error, Diverged)}
    return job.row(summary or {})


def failed_row(job: SweepJob, sentence: str) -> Row:
    """The row of a job that has no results, because of ``sentence``."""
    return {**job.row(job.experiment.facts), "failed": sentence}


def row_if_done(job: SweepJob) -> Row | None:
    """The row of a job that has finished before or in another process."""
    from sgp_runner.recording.recorder import finished

    summary = finished(job.experiment)
    return None if summary is None else job.row(summary)

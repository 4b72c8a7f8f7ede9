"""The jobs of a sweep and their rows in the comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sgp_runner.assembly.execution import print_traceback_if_wanted, run_experiment, sentence_of
from sgp_runner.config.experiment import Experiment
from sgp_runner.recording.recorder import finished
from sgp_runner.utils.errors import Diverged, Stopped
from sgp_runner.utils.messages import logger
from sgp_runner.utils.signals import signal_state

Row = dict[str, object]


def attempt(experiment: Experiment, verified: bool = False) -> Row:
    """Execute a run and return its summary or, after an error, its facts and the error message.

    verified: whether the calls of its ranks have been verified (`run_experiment`)
    """
    try:
        return (
            run_experiment(replace(experiment, started=time.monotonic()), verified=verified) or {}
        )
    except Stopped:
        raise
    except Exception as error:
        if signal_state.interrupted:  # a library has replaced KeyboardInterrupt
            raise
        print_traceback_if_wanted(error)
        diverged = isinstance(error, Diverged)
        return {**experiment.facts, "failed": sentence_of(error), "diverged": diverged}


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep.

    title: the settings that differ from the other runs, as typed by a user
    """

    title: str
    experiment: Experiment

    def row(self, results: Mapping[str, object]) -> Row:
        """Return the job's row in the comparison, with settings that often differ between runs."""
        run = self.experiment.run
        cluster = run.cluster.name if run.network.clock == "simulated" else ""
        settings = {"cluster": cluster, "batch_size": run.batch_size, "lr": run.optim.lr}
        return {**results, **settings, "job": self.title}

    def failed_row(self, sentence: str) -> Row:
        """Return the row of a failed job; ``sentence`` is the reason."""
        return self.row({**self.experiment.facts, "failed": sentence})

    def row_if_done(self) -> Row | None:
        """Return the row if the folder has the results of this job; None otherwise."""
        summary = finished(self.experiment)
        return None if summary is None else self.row(summary)

    def perform(self, number: str, verified: bool = False) -> Row:
        """Run the job and return its row; an error is printed, and the row has its first line.

        number: number of the job among all jobs, as text
        verified: as in `attempt`
        """
        logger.info(f"\n{number} {self.title}")
        results = attempt(self.experiment, verified)
        if sentence := results.get("failed"):
            logger.error(sentence)
            results["failed"] = str(sentence).splitlines()[0]
        return self.row(results)

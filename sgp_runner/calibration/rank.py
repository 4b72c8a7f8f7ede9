"""One real rank of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.calibration.probe import Probe
from sgp_runner.recording.recorder import write_summary
from sgp_runner.session.start import execute
from sgp_runner.utils.errors import Aborted, ConfigError, RankFailed, Stopped
from sgp_runner.utils.signals import SAVED

if TYPE_CHECKING:
    from sgp_runner.config.experiment import Experiment


def measuring(experiment: Experiment, **sizes: Any) -> Experiment:
    """Return the same experiment with a `Probe` as its algorithm."""
    probe = Probe(experiment.directory, **sizes)
    return replace(experiment, run=replace(experiment.run, algo=probe))


def main(words: Sequence[str], **sizes: Any) -> int:
    """Measure with the experiment of a file, which options ``--plugin=...`` may follow."""
    from sgp_runner.config.experiment import load_experiment
    from sgp_runner.config.plugins.loading import without_options

    (config,) = without_options(words)
    experiment = measuring(load_experiment(Path(config), None), **sizes)
    try:
        summary = execute(experiment)
    except (RankFailed, Aborted, ConfigError):
        return 1
    except Stopped:
        return SAVED
    if summary is not None:
        write_summary(experiment.directory, summary)
    return 0

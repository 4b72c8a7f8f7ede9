"""Extension of a simulated run: the same settings with a larger ``epochs=``.

The longer run continues from a checkpoint of the shorter one, which is identical to its own
checkpoint at that step. Its results are therefore byte-identical to those of an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.config.experiment import (
    FORMAT,
    Experiment,
    digest_of,
    identity_of,
    settings_of,
)
from sgp_runner.core.optim import ends_with_run
from sgp_runner.recording.checkpoint import adopt, extendable
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.messages import logger
from sgp_runner.utils.reading import read_yaml
from sgp_runner.utils.units import counted, number

Settings = Mapping[str, object]


def shorter_run(experiment: Experiment) -> Settings | None:
    """Return the settings of the run in the folder if it differs only in having fewer ``epochs``.

    Raises ConfigError if that run cannot be extended.
    """
    run = experiment.run
    try:
        config = read_yaml(experiment.directory / "config.yaml")
        there = settings_of(config)
        epochs = float(str(there["epochs"]))
    except (OSError, ValueError, AttributeError, KeyError):
        return None
    same = identity_of({**there, "epochs": run.epochs}) == identity_of(experiment.settings)
    if run.resume == "never" or config.get("format") != FORMAT or not same or epochs >= run.epochs:
        return None
    if (reason := obstacle(experiment, there)) is not None:
        raise ConfigError(
            "epochs",
            f"the run in {experiment.directory} has {epochs:g} and cannot be extended: {reason}; "
            "choose another name, or replace that run with resume=never.",
        )
    return there


def obstacle(experiment: Experiment, there: Settings) -> str | None:
    """Return why the run with the settings ``there`` cannot be extended; None if it can."""
    run = experiment.run
    if run.network.clock != "simulated":
        return "only simulated runs can be"
    if not run.model.trains:
        return "it is a timing study"
    if ends_with_run(run.optim.schedule):
        return "its optim.schedule depends on the number of epochs"
    names = (digest_of(there), experiment.digest)  # the second after an interrupted extension
    if not any(extendable(experiment.checkpoints, name) for name in names):
        return "it has kept no checkpoint (checkpoint.keep_last=true keeps one)"
    return None


def extend(experiment: Experiment, there: Settings) -> None:
    """Make ``experiment`` resume from the checkpoints of the shorter run."""
    adopt(experiment.checkpoints, digest_of(there), experiment.digest)
    before, now = there["epochs"], experiment.run.epochs
    logger.info(f"Extending the run from {counted(number(before) or 0.0, 'epoch')} to {now:g}.")

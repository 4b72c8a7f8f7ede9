"""``sgp-run doctor [KEY=VALUE ...]``: explain why several nodes are slower than one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sgp_runner.cli.argparser import put
from sgp_runner.plan.diagnosis import diagnose, text_lines
from sgp_runner.plan.observation import KEYS, read_observation
from sgp_runner.plan.words import help_lines
from sgp_runner.utils.errors import ConfigError

WIDTH = 80
CLAIMED = ("bandwidth", "latency", "window", "connections")  # keys of --measure besides settings
HELP = f"""usage: sgp-run doctor [KEY=VALUE ...] [RUN ...]
       sgp-run doctor --measure [SETTING ...]

Infers the rate that the network achieved from the times of a step on one node and on
several, and lists the causes that explain it, each with the observation that would
confirm it. RUN is the folder of a finished real run of algo=ar_sgd. --measure observes
these machines, in less than two minutes: a step alone and together, all-reduces, one
and eight connections, and loading, with the settings of a run.

  sgp-run doctor one_node=0.5s two_nodes=4s parameters=110M devices=4 bandwidth=40Gbit/s
  sgp-run doctor samples.1=1523 samples.2=1529 batch=64 devices=8 model=resnet101
  sgp-run doctor results/runs/NAME
  srun --nodes 4 --ntasks 4 sgp-run doctor --measure nodes=4 model=resnet20 network=gloo

keys; one_node= is step.1=, two_nodes= is step.2=
{help_lines(KEYS)}"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    if "--measure" in argv:
        return measured([word for word in argv if word != "--measure"])
    put("\n".join(map(folded, text_lines(diagnose(read_observation(argv))))))
    return 0


def measured(argv: Sequence[str]) -> int:
    """Measure with the ranks of a run, and print the diagnosis."""
    from sgp_runner.calibration.symptoms import (
        SYMPTOMS,
        Symptoms,
        all_reduce_text,
        diagnosing,
        observed_words,
    )
    from sgp_runner.cli.calibrate import measure, prepared

    claimed = [word for word in argv if word.partition("=")[0] in CLAIMED]
    experiment = prepared([word for word in argv if word not in claimed])
    if experiment.run.network.clock != "wall":
        raise ConfigError("network", "a simulation has no machines: use network=gloo or nccl.")
    if not measure(experiment, "symptom_process", diagnosing):
        return 0
    symptoms = Symptoms.from_json((experiment.directory / SYMPTOMS).read_text(encoding="utf-8"))
    observation = [*observed_words(symptoms), *claimed]
    lines = [
        *text_lines(diagnose(read_observation(observation))),
        "",
        all_reduce_text(symptoms),
        "",
        f"The same from these numbers: sgp-run doctor {' '.join(observation)}",
    ]
    put("\n".join(map(folded, lines)))
    return 0


def folded(text: str) -> str:
    """Return a paragraph wrapped at 80 columns; list items get a hanging indent."""
    indent = "  " if text.startswith(("- ", "  ")) else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )

"""``sgp-run doctor [KEY=VALUE ...]``: explain why several nodes are slower than one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sgp_runner.cli.argparser import put
from sgp_runner.plan.diagnosis import diagnose, text_lines
from sgp_runner.plan.observation import KEYS, read_observation
from sgp_runner.plan.words import described

WIDTH = 80
USAGE = """usage: sgp-run doctor [KEY=VALUE ...] [RUN ...]

Infers the rate that the network carried from the times of a step on one node and on
several, and lists the causes that explain it, each with the observation that would
confirm it. RUN is the folder of a finished real run of algo=ar_sgd.

  sgp-run doctor one_node=0.5s two_nodes=4s parameters=110M devices=4 bandwidth=40Gbit/s
  sgp-run doctor samples.1=1523 samples.2=1529 batch=64 devices=8 model=resnet101
  sgp-run doctor results/runs/NAME

keys; one_node= is step.1=, two_nodes= is step.2=
{keys}"""


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after its name and return the exit code."""
    if "--help" in argv or "-h" in argv:
        put(USAGE.format(keys=described(KEYS)))
        return 0
    put("\n".join(map(folded, text_lines(diagnose(read_observation(argv))))))
    return 0


def folded(text: str) -> str:
    """Return a paragraph in lines of 80 columns, indented below its first word."""
    indent = "  " if text.startswith(("- ", "  ")) else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )

#!/usr/bin/env python
"""Write ``docs/compression.md`` from the runs of ``experiment=compression_compare``.

scripts/compression.py            writes the page from results/compression/times.json
scripts/compression.py FOLDER     before that, trains in FOLDER, re-times and writes times.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sgp_runner.config.experiment import Experiment, load_experiment
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.replay.retiming import retime_all
from sgp_runner.utils.units import bit_rate, duration, num_bytes

ROOT = Path(__file__).parent.parent
TIMES = ROOT / "results" / "compression" / "times.json"
PAGE = ROOT / "docs" / "compression.md"
RATES = (100e6, 300e6, 1e9, 3e9, 10e9, 30e9, 100e9)  # bit/s
PLAIN = "AR-SGD"


@dataclass(frozen=True)
class Arm:
    """A run at one rate.

    coding: whether coding takes time
    step_bytes, step_coding_s: bytes that a node sends and seconds that it codes in a step
    curve: simulated seconds and loss of each evaluation
    """

    name: str
    rate: float
    coding: bool
    time_s: float
    step_bytes: float
    step_coding_s: float
    curve: Sequence[tuple[float, float]]

    def seconds_to(self, loss: float) -> float:
        """Return the time of the first evaluation with at most this ``loss``; infinity if none."""
        return next((time for time, reached in self.curve if reached <= loss), inf)


def name_of(experiment: Experiment) -> str:
    algo: Any = experiment.run.algo
    codec = getattr(algo, "codec", None)
    if codec is None:
        return f"{algo.title}, rank {algo.rank}"
    return algo.title if codec.name == "none" else f"{algo.title}, {codec.name}"


def arm_of(folder: Path) -> Arm:
    """Return the arm of a run folder."""
    experiment = load_experiment(folder / "config.yaml", None)
    summary: Any = read_summary(folder)
    cluster, steps = experiment.run.cluster, summary["steps"]
    evaluations = [each for each in read_metrics(folder) if each["kind"] == "average"]
    return Arm(
        name_of(experiment),
        cluster.links.rate,
        bool(cluster.codecs.encode_seconds),
        summary["time_s"],
        summary["bytes_per_node"] / steps,
        summary.get("coding_s", 0.0) / steps,
        [(each["time_s"], each["loss"]) for each in evaluations],
    )


def measure(folder: Path) -> list[Arm]:
    """Train all runs in ``folder``, unless they are there, and re-time them at every rate."""
    words = ["experiment=compression_compare", f"results={folder}"]
    subprocess.run([sys.executable, "-m", "sgp_runner", *words], cwd=ROOT, check=True)
    rates = f"cluster.links.bandwidth={','.join(map(str, RATES))}"
    with TemporaryDirectory() as scratch:
        folders = [
            *retime_all([folder / "runs"], [rates], Path(scratch) / "coding"),
            *retime_all([folder / "runs"], [rates, "cluster.codecs={}"], Path(scratch) / "free"),
        ]
        return [arm_of(each) for each in folders]


def read() -> list[Arm]:
    return [Arm(**each) for each in json.loads(TIMES.read_text(encoding="utf-8"))]


def at(arms: Sequence[Arm], rate: float, coding: bool) -> Mapping[str, Arm]:
    """Return the arms of one rate, by name."""
    found = (arm for arm in arms if (arm.rate, arm.coding) == (rate, coding))
    return {arm.name: arm for arm in sorted(found, key=lambda arm: arm.name)}


def target(arms: Sequence[Arm]) -> float:
    """Return the lowest loss that at least half of the arms reach."""
    best = sorted(min(loss for _, loss in arm.curve) for arm in at(arms, RATES[0], True).values())
    return best[len(best) // 2]


def fastest(arms: Sequence[Arm], rate: float, coding: bool) -> str:
    """Return the name of the arm that reaches the target first."""
    loss = target(arms)
    own = at(arms, rate, coding)
    return min(own, key=lambda name: own[name].seconds_to(loss))


def break_even(arm: Arm, plain: Arm) -> float:
    """Return the rate (bit/s) below which an arm's saved bits take longer than its coding."""
    return 8 * (plain.step_bytes - arm.step_bytes) / arm.step_coding_s


def crossing(arms: Sequence[Arm], name: str) -> str:
    """Describe between which rates the runs of an arm stop being faster than AR-SGD."""
    faster = [
        rate
        for rate in RATES
        if at(arms, rate, True)[name].time_s < at(arms, rate, True)[PLAIN].time_s
    ]
    if not faster:
        return f"below {bit_rate(RATES[0])}"
    later = [rate for rate in RATES if rate > faster[-1]]
    if not later:
        return f"above {bit_rate(RATES[-1])}"
    return f"{bit_rate(faster[-1])} to {bit_rate(later[0])}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs(arms: Sequence[Arm]) -> str:
    own = at(arms, RATES[0], True)
    plain = own[PLAIN]
    rows = [
        [
            arm.name,
            num_bytes(arm.step_bytes),
            duration(arm.step_coding_s) if arm.step_coding_s else "",
            bit_rate(break_even(arm, plain)) if arm.step_coding_s else "",
            crossing(arms, arm.name) if arm.step_coding_s else "",
        ]
        for arm in own.values()
    ]
    return table(("", "sent", "coding", "breaks even at", "in the runs"), rows)


def times(arms: Sequence[Arm], coding: bool) -> str:
    loss, names = target(arms), list(at(arms, RATES[0], coding))
    rows = [
        [
            f"**{text}**" if name == fastest(arms, rate, coding) else text
            for rate in RATES
            for seconds in [at(arms, rate, coding)[name].seconds_to(loss)]
            for text in ["never" if seconds == inf else duration(seconds)]
        ]
        for name in names
    ]
    named = [[name, *row] for name, row in zip(names, rows, strict=True)]
    return table(("", *map(bit_rate, RATES)), named)


def page(arms: Sequence[Arm]) -> str:
    """Return the text of the page."""
    slow, fast = (fastest(arms, rate, True) for rate in (RATES[0], RATES[-1]))
    return TEXT.format(
        costs=costs(arms),
        charged=times(arms, True),
        free=times(arms, False),
        loss=f"{target(arms):.3f}",
        slow=slow,
        fast=fast,
        low=bit_rate(RATES[0]),
        high=bit_rate(RATES[-1]),
    )


TEXT = """\
<!-- Generated by scripts/compression.py. -->
# What compression costs

<!-- commands: long -->

    sgp-run experiment=compression_compare
    sgp-report results/runs/* --retime cluster.bandwidth=100Mbit/s,10Gbit/s,100Gbit/s

A codec sends fewer bits and takes time to encode and decode. It pays on links that are slower than
its break-even rate:

    break-even rate = saved bits / coding seconds

This page compares both. AR-SGD, AR-SGD with codecs and PowerSGD train a small GPT on 4 simulated
nodes, once each, and are re-timed at every rate. A node is one processor core
(`cluster=cpu_nodes`). The times of its gradients and codecs were measured **on a CPU**, by
`sgp-run calibrate`, while other programs used the machine. A GPU computes and codes faster, so its
break-even rates differ: measure them, or set `cluster.codecs`.

## Bytes, coding and break-even rates

The table has the bytes that a node sends and the seconds that it codes, in a step. AR-SGD without a
codec all-reduces. With a codec, a node encodes its gradient, sends the message to all other nodes,
and decodes the messages of all nodes and, for error feedback, its own: one encoding and five
decodings with four nodes. So coding takes longer with more nodes. PowerSGD all-reduces two thin
factors, encodes once and multiplies factors twice, whatever the number of nodes. The last column
has the rates between which AR-SGD without a codec becomes the faster one, by the times of the runs.

{costs}

## Time to a loss

The tables have the simulated time to a loss of {loss}, the lowest that at least half of the runs
reach in 200 steps. The shortest time at a rate is bold.
At {low}, {slow} is the fastest; at {high}, {fast} is.

{charged}

The same runs as if coding took no time:

{free}

Coding that takes no time makes codecs look faster than they are at every rate. On GPUs, Agarwal et
al. ([2021](https://arxiv.org/abs/2103.00543)) measured that compression is faster in 6 of more than
200 set-ups.
"""


def main(words: Sequence[str]) -> int:
    """Write the page; fail unless compression pays on the slowest links alone."""
    if words:
        content = [asdict(arm) for arm in measure(Path(words[0]))]
        TIMES.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    arms = read()
    PAGE.write_text(page(arms), encoding="utf-8")
    pays = [fastest(arms, rate, True) != PLAIN for rate in (RATES[0], RATES[-1])]
    return 0 if pays == [True, False] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

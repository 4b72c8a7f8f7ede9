"""Single published rows of jobs on several GPUs (``results/validation/scaling.csv``).

Fitted: the all-reduce of BERT-Large on 2 x 4 GPUs, ResNet-50 on 2 x 8 GPUs (constants of the
profiles ``bert_40g`` and ``p3_16xlarge_25g``), and the period of torchft at 100 Mbit/s, whose time
besides the all-reduce is the same at every rate. Predicted: the same jobs at another scale, model
or rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.cluster.hardware import Cluster
from validation.aws import changed, profile
from validation.cells import Cell
from validation.diloco import lines
from validation.tcp import achieved

BERT = "BERT-Large all-reduce, {nodes} x {gpus_per_node}"
TORCHFT_DELAY = 0.01  # s, one way: half of the round trip
TORCHFT = {"100 Mbit/s": 100e6, "1 Gbit/s": 1e9, "50 Mbit/s": 50e6}


def rows(source: str) -> list[Mapping[str, str]]:
    return [line for line in lines("scaling.csv") if source in line["source"]]


def profile_over(name: str, over: str) -> Cluster:
    """Return a profile with a ring over ``nodes`` or ``devices``."""
    return changed(profile(name), collectives={"ring_over": over})


def bert(over: str = "devices") -> list[Cell]:
    """Return the all-reduces of BERT-Large on 2 and 8 machines, of a ring over devices or nodes.

    The rate of a ring over nodes is fitted to the same row.
    """
    cluster, found = profile_over("bert_40g", over), []
    for row in rows("2102.02888"):
        nodes, size = int(row["nodes"]), 1e6 * float(row["gradient_megabytes"])
        if row["quantity"] != "all-reduce" or "Ethernet" not in row["network"] or nodes == 1:
            continue
        real = float(row["value"]) / 1000
        if nodes == 2:
            bits = 8 * cluster.all_reduce_bytes(nodes, size)
            cluster = changed(cluster, collectives={"all_reduce_bandwidth": bits / real})
        words = (BERT.format(**row),)
        found.append(Cell(words, real, cluster.all_reduce_seconds(nodes, size), fitted=nodes == 2))
    return found


def resnet(over: str = "devices") -> list[Cell]:
    """Return the iterations of ResNet-50 and ResNet-101 on 2 machines, from those on one."""
    cluster, found = profile_over("p3_16xlarge_25g", over), []
    images: dict[str, dict[str, float]] = {}
    sizes = {}
    for row in rows("issue 396"):
        model = row["model"].partition(",")[0]
        images.setdefault(model, {})[f"{row['nodes']} x {row['gpus_per_node']}"] = float(
            row["value"]
        )
        sizes[model] = 1e6 * float(row["gradient_megabytes"])
    for model in ("ResNet-50", "ResNet-101"):
        step, real = 512 / images[model]["1 x 8"], 1024 / images[model]["2 x 8"]
        if model == "ResNet-50":
            bits = 8 * cluster.all_reduce_bytes(2, sizes[model])
            rate = bits / (real - step)
            cluster = changed(cluster, collectives={"all_reduce_bandwidth": rate})
        seconds = step + cluster.all_reduce_seconds(2, sizes[model])
        words = (f"{model}, 2 x 8, iteration",)
        found.append(Cell(words, real, seconds, fitted=model == "ResNet-50"))
    return found


def torchft(old: bool = False) -> list[Cell]:
    """Return the periods of torchft at three rates; ``old``: a ring with a latency per round."""
    periods = {
        row["network"].partition(",")[0]: row
        for row in rows("ft-diloco")
        if row["quantity"] == "outer period, H = 1"
    }
    rest, found = None, []
    for name, rate in TORCHFT.items():
        real = float(periods[name]["value"])
        size = 1e6 * float(periods[name]["gradient_megabytes"])
        seconds = torchft_cluster(rate, old).all_reduce_seconds(2, size)
        fitted = rest is None
        rest = real - seconds if rest is None else rest
        found.append(Cell((f"torchft, {name}, period",), real, rest + seconds, fitted))
    return found


def torchft_cluster(rate: float, old: bool) -> Cluster:
    """Return two replicas on a link of ``rate``; Gloo's constants are those of AWS's machines."""
    known = profile("aws_p3_10g_gloo")
    bits = achieved(rate)
    cluster = changed(
        known,
        links={"bandwidth": bits, "latency_seconds": TORCHFT_DELAY},
        collectives={"all_reduce_bandwidth": bits},
    )
    law = {"collectives": {"library": None}, "hosts": {"host_seconds_per_byte": 0.0}}
    return changed(cluster, **law) if old else cluster


def cells() -> list[Cell]:
    return [*bert(), *resnet(), *torchft()]


def old_cells() -> list[Cell]:
    """Return the same cells by rings over nodes with a latency per round."""
    return [*bert("nodes"), *resnet("nodes"), *torchft(old=True)]

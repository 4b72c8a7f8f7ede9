"""Observed step times on one and on several nodes, and the rates that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from sgp_runner.cluster.collectives import Collectives
from sgp_runner.cluster.compute_variation import ConstantTime
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.links import Links
from sgp_runner.cluster.nodes import StepTimes
from sgp_runner.plan.models import known_size
from sgp_runner.plan.words import Key, PlanSettings, read_settings
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import read_json, read_yaml

# Sizes of the traffic of a step relative to an all-reduce of the gradient. ZeRO-3 gathers the
# parameters twice and scatters the gradient (Rajbhandari et al. 2020, section 7.2).
TRAFFIC = {"all_reduce": 1.0, "zero3": 1.5}
LATENCY = 50e-6  # s, one way, if it is not given: kernel TCP in one data centre
SLOWEST, FASTEST = 1e3, 1e15  # bit/s; rates are searched between them
MAX_NODES = 10**6
KEYS: Mapping[str, Key] = {
    "step.N": Key("seconds", "time of a step on N nodes; step.1 is needed, and one more"),
    "samples.N": Key("number", "instead of step.N: samples per second of all N nodes"),
    "batch": Key("count", "samples per device and step, with samples.N; default 32"),
    "model": Key("text", "a model of known size"),
    "parameters": Key("count", "number of parameters"),
    "bytes_per_parameter": Key("number", "bytes of a parameter of the gradient; default 4"),
    "devices": Key("count", "devices of a node, default 1"),
    "bandwidth": Key("rate", "claimed rate of a node's interface"),
    "latency": Key("seconds", "one way, half of a ping", zero=True),
    "window": Key("bytes", "largest window of a connection"),
    "connections": Key("count", "connections between two nodes, default 1"),
    "traffic": Key("text", "all_reduce (default), or zero3: gathers parameters twice"),
    "streams.N": Key("rate", "total rate of N TCP connections between two nodes (iperf3 -P N)"),
    "loading": Key("seconds", "time to load a batch while all nodes load"),
    "slowest": Key("number", "step of the slowest node alone, relative to the mean; at least 1"),
    "small": Key("number", "size of a smaller model relative to this one, such as 0.5"),
    "small_gap": Key("seconds", "extra time of its step on several nodes compared with one"),
}
ALIASES = {
    "one_node": "step.1",
    "two_nodes": "step.2",
    "gpus_per_node": "devices",
    "num_parameters": "parameters",
}


@dataclass(frozen=True)
class Observation:
    """Step times, and the machines on which they were observed.

    alone: seconds per step on one node. together: seconds per step by number of nodes
    num_bytes: size of the all-reduce that causes the same traffic as a step
    streams: bit/s that TCP carries between two nodes, by number of connections
    loading: seconds to load a batch; None: not observed
    slowest: step time of the slowest node alone, relative to the mean; None: not observed
    small: size of a smaller model relative to this one, and the extra seconds per step on several
        nodes; None: not observed
    model: arguments of ``sgp-run plan`` that describe the model; empty if unknown
    assumed: sentences about values that were not given
    """

    alone: float
    together: Mapping[int, float]
    num_bytes: float
    devices: int = 1
    bandwidth: float | None = None
    latency: float = LATENCY
    window: int | None = None
    connections: int = 1
    streams: Mapping[int, float] = field(default_factory=dict)
    loading: float | None = None
    slowest: float | None = None
    small: tuple[float, float] | None = None
    model: str = ""
    assumed: tuple[str, ...] = ()

    def gap(self, nodes: int) -> float:
        """Return the extra seconds per step on ``nodes`` nodes compared with one node."""
        return self.together[nodes] - self.alone

    def cluster(self, rate: float, hidden: bool = False, over: str = "devices") -> Cluster:
        """Return the cluster with interfaces of ``rate`` bit/s.

        hidden: whether the all-reduce overlaps with the whole gradient, or not at all
        over: what the ring connects: ``devices`` or ``nodes``
        """
        return Cluster(
            ConstantTime(),
            StepTimes({"default": self.alone}),
            Links(rate, self.latency),
            Collectives(
                library="nccl",
                ring_over="devices" if over == "devices" else "nodes",
                overlap=1 - 1e-12 if hidden else 0.0,
                bucket_bytes=1,
            ),
            devices_per_node=self.devices,
        )

    def all_reduce_seconds(self, nodes: int, rate: float, over: str = "devices") -> float:
        return self.cluster(rate, over=over).all_reduce_seconds(nodes, self.num_bytes)

    def rate_for(self, nodes: int, seconds: float) -> float:
        """Return the bit/s at which an all-reduce takes ``seconds``; inf if latency is longer."""
        if seconds <= 0 or self.all_reduce_seconds(nodes, FASTEST) >= seconds:
            return inf
        low, high = SLOWEST, FASTEST
        for _ in range(100):
            middle = (low * high) ** 0.5
            slow = self.all_reduce_seconds(nodes, middle) > seconds
            low, high = (middle, high) if slow else (low, middle)
        return high

    def rates(self, nodes: int) -> tuple[float, float]:
        """Return the rates that explain a step with the all-reduce fully hidden, and not at all."""
        return self.rate_for(nodes, self.together[nodes]), self.rate_for(nodes, self.gap(nodes))


def read_observation(arguments: Sequence[str]) -> Observation:
    """Return the observation of a command line: settings, or folders of runs."""
    runs = [of_run(Path(word)) for word in arguments if "=" not in word]
    from_runs: dict[str, float | int | str] = {}
    for _, values in sorted(runs, key=lambda run: -run[0]):  # one node last: it replaces estimates
        from_runs |= values
    settings = read_settings(
        [word for word in arguments if "=" in word], keys_for(arguments), ALIASES
    )
    return observation_of(PlanSettings({**from_runs, **settings.values}))


def keys_for(arguments: Sequence[str]) -> Mapping[str, Key]:
    """Return the keys, including ``step.N`` etc. for each N on the command line."""
    names = (
        word.partition("=")[0] for word in [*arguments, *(f"{key}=" for key in ALIASES.values())]
    )
    numbered = {
        name: KEYS[f"{match[1]}.N"]
        for name in names
        if (match := re.fullmatch(r"(step|samples|streams)\.[1-9]\d{0,5}", name))
    }
    return {**KEYS, **numbered}


def observation_of(settings: PlanSettings) -> Observation:
    """Return the observation of ``settings``. Raises ConfigError if a setting is missing."""
    assumed: list[str] = []
    devices = settings.count("devices")
    if devices is None and "bytes" not in settings.values:
        assumed.append("A node has one device (devices=).")
    devices = devices or 1
    steps = steps_of(settings, devices, assumed)
    if 1 not in steps:
        raise ConfigError(
            "one_node", "the time of a step on one node is missing: write one_node=0.5s."
        )
    if len(steps) < 2:
        raise ConfigError(
            "two_nodes",
            "the time of a step on several nodes is missing: write two_nodes=4s, or step.8=4s for "
            "eight.",
        )
    latency = settings.number("latency")
    if latency is None:
        assumed.append("The latency is 50 us, one way (latency=).")
        latency = LATENCY
    size, model = traffic_bytes(settings, assumed)
    return Observation(
        steps.pop(1),
        steps,
        size,
        devices,
        settings.number("bandwidth"),
        latency,
        settings.count("window"),
        settings.count("connections") or 1,
        numbered(settings, "streams"),
        settings.number("loading"),
        settings.number("slowest"),
        smaller(settings),
        model,
        tuple(assumed),
    )


def steps_of(settings: PlanSettings, devices: int, assumed: list[str]) -> dict[int, float]:
    """Return the seconds per step by number of nodes; append to ``assumed``."""
    steps, rates = numbered(settings, "step"), numbered(settings, "samples")
    batch = settings.count("batch")
    if rates and batch is None:
        assumed.append(
            "A device has 32 samples per step (batch=); with twice as many, the rate is half."
        )
    batch = batch or 32
    return {**{n: batch * devices * n / rate for n, rate in rates.items()}, **steps}


def numbered(settings: PlanSettings, name: str) -> dict[int, float]:
    """Return the values of the keys ``name.N``, by N."""
    return {
        int(number): float(value)
        for key, value in settings.values.items()
        for prefix, _, number in [key.partition(".")]
        if prefix == name and number
    }


def traffic_bytes(settings: PlanSettings, assumed: list[str]) -> tuple[float, str]:
    """Return the all-reduce size with a step's traffic, and arguments that describe the model.

    Appends to ``assumed``.
    """
    if (size := settings.number("bytes")) is not None:  # of a run
        return size, ""
    parameters = settings.count("parameters")
    if parameters is None:
        parameters, source = known_size(settings.text("model"))
        assumed.append(f"{settings.text('model')} has {parameters:,} parameters ({source}).")
    per_parameter = settings.number("bytes_per_parameter")
    if per_parameter is None:
        assumed.append(
            "The gradient has 4 bytes per parameter (bytes_per_parameter=); with 2, the rate is "
            "half."
        )
    traffic = settings.text("traffic") or "all_reduce"
    if traffic not in TRAFFIC:
        raise ConfigError("traffic", f"'{traffic}' is not one of {', '.join(TRAFFIC)}.")
    per_parameter = per_parameter or 4.0
    model = f"parameters={parameters} bytes_per_parameter={per_parameter:g}"
    return parameters * per_parameter * TRAFFIC[traffic], model


def smaller(settings: PlanSettings) -> tuple[float, float] | None:
    """Return the relative size and the gap of a smaller model; None if not observed."""
    share, gap = settings.number("small"), settings.number("small_gap")
    if share is None and gap is None:
        return None
    if share is None or gap is None:
        missing, example = (
            ("small", "small=0.5") if share is None else ("small_gap", "small_gap=1s")
        )
        raise ConfigError(missing, f"a smaller model needs its size and its gap: write {example}.")
    if share >= 1:
        raise ConfigError("small", f"{share:g} must be less than 1: the smaller model's size.")
    return share, gap


def of_run(folder: Path) -> tuple[int, dict[str, float | int | str]]:
    """Return the number of nodes of a finished real AR-SGD run, and the observed values.

    From a run on several nodes, the time of a step without waiting is known too.
    """
    try:
        summary = dict(read_json(folder / "summary.json"))
        algo = read_yaml(folder / "config.yaml")["algo"]["name"]
        nodes, steps, seconds = (summary[key] for key in ("nodes", "steps", "time_s"))
        sent, waiting = summary["bytes_per_node"], summary.get("waiting_share")
        whole = 1 <= nodes < MAX_NODES and steps >= 1 and seconds > 0 and sent >= 0
        whole = whole and (waiting is None or 0 <= waiting < 1)
    except (OSError, ValueError, LookupError, TypeError):
        whole = False
    if not whole:
        raise ConfigError(str(folder), "this is not the folder of a finished run.")
    if summary.get("clock") != "wall":
        raise ConfigError(
            str(folder), "the run is simulated, so its network is known: give a real run."
        )
    if algo != "ar_sgd":
        raise ConfigError(
            str(folder), "give a run of algo=ar_sgd, which all-reduces in every step."
        )
    nodes, step = int(nodes), seconds / steps
    values: dict[str, float | int | str] = {f"step.{nodes}": step}
    if nodes > 1:
        values["bytes"] = sent / steps * nodes / (2 * (nodes - 1))
        if waiting is not None:
            values["step.1"] = step * (1 - waiting)
    return nodes, values

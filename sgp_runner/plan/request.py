"""The request of a plan: model, machines, budget and prices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sgp_runner.cluster.connection_laws import connection_rate
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.regions import Region
from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.config.overrides import experiment_of
from sgp_runner.plan.device_memory import DeviceMemory
from sgp_runner.plan.keys import ALIASES, BUDGETS, KEYS, NEEDED
from sgp_runner.plan.methods import Method, chosen
from sgp_runner.plan.models import known_size
from sgp_runner.plan.study_quality import StudyQuality, read_quality
from sgp_runner.plan.words import PlanSettings, read_settings
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import bit_rate, counted, duration, num_bytes

# Floating-point operations of a gradient per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER_AND_TOKEN = 6
BASE = "ethernet_10g"  # the profile of machines that are described by their rate alone
LAW = "cluster.collectives.algorithm="
# Bytes in flight between nodes of two sites, on all their connections: the median of seven regions
# (cluster=aws_10_regions).
SITE_WINDOW = 10.5e6
GROUPS = ("cluster", "faults", "optim")


@dataclass(frozen=True)
class TrainingBudget:
    """The training that a plan is for.

    steps: steps per node; None: no budget, so only a single step is planned
    """

    steps: int | None = None
    price_per_hour: float | None = None
    watts: float | None = None
    kwh_price: float | None = None


@dataclass(frozen=True)
class Request:
    """A plan's request, resolved to known machines and a known model.

    overrides: settings of the timing studies, as arguments of ``sgp-run``
    assumed: sentences about values that were not given
    quality: losses measured by a study; None: no study was given
    memory: limit and layout of a device's memory
    """

    nodes: int
    devices: int
    sites: int
    parameters: int
    cluster: Cluster
    overrides: tuple[str, ...]
    budget: TrainingBudget = field(default_factory=TrainingBudget)
    methods: tuple[Method, ...] = ()
    assumed: tuple[str, ...] = ()
    quality: StudyQuality | None = None
    memory: DeviceMemory = field(default_factory=DeviceMemory)

    @property
    def traffic_has_price(self) -> bool:
        """Whether the bytes that leave sites are part of the cost."""
        return any(region.price_per_gb is not None for region in self.cluster.links.regions)


def read_request(arguments: Sequence[str], search: Sequence[str] = ()) -> Request:
    """Return the request of a command line. Raises ConfigError if it cannot be planned.

    search: overrides that add folders of presets
    """
    settings = read_settings(arguments, KEYS, ALIASES, GROUPS)
    check_needed(settings)
    nodes, sites = settings.count("nodes") or 2, settings.count("sites") or 1
    if nodes < 2:
        raise ConfigError("nodes", "a single node sends no messages: use nodes=2 or more.")
    if sites > nodes:
        raise ConfigError(
            "sites", f"{counted(nodes, 'node')} cannot be in {sites} sites: use sites={nodes}."
        )
    methods = tuple(chosen(settings.text("methods"), settings.text("periods")))
    machines, assumed = machine_overrides(settings, nodes)
    machines = [*search, *machines]
    cluster = experiment_of(["model=timing_only", *machines]).run.cluster
    if sites > 1:
        regions, notes = regions_of(settings, nodes, sites, cluster.links.connections)
        machines.append(regions_word(regions))
        assumed += notes
        cluster = replace(cluster, links=replace(cluster.links, regions=regions))
    laws, sites = cluster.collectives, max(sites, len(cluster.links.regions))
    chosen_law = any(word.startswith(LAW) for word in settings.passed)
    if cluster.links.regions and laws.algorithm == "ring" and not chosen_law:
        machines.append(f"{LAW}hierarchical")
        laws = replace(laws, algorithm="hierarchical")
        cluster = replace(cluster, collectives=laws)
        assumed.append(
            "Between sites, all-reduces and all-gathers are hierarchical: inside each site, then "
            "between sites, then inside, one after the other (an upper bound)."
        )
    model, parameters, notes = model_overrides(settings, cluster)
    study, budget = settings.text("quality"), steps_of_budget(settings, nodes)
    prices = (settings.number(key) for key in ("price_per_hour", "watts", "kwh_price"))
    names = {key: text for key in ("precision", "shard") if (text := settings.text(key))}
    return Request(
        nodes,
        cluster.devices_per_node,
        sites,
        parameters,
        cluster,
        ("model=timing_only", *machines, *model),
        TrainingBudget(budget, *prices),
        methods,
        (*assumed, *notes),
        None if study is None else read_quality(Path(study)),
        DeviceMemory(limit=settings.number("device_memory"), **names),
    )


def check_needed(settings: PlanSettings) -> None:
    """Raise ConfigError if the model is missing or a key has no effect."""
    if "parameters" not in settings.values:
        known_size(settings.text("model"))
    for key, others in NEEDED.items():
        if key in settings.values and not any(other in settings.values for other in others):
            listed = " or ".join(f"{other}=" for other in others)
            raise ConfigError(key, f"has no effect without {listed}.")


def machine_overrides(settings: PlanSettings, nodes: int) -> tuple[list[str], list[str]]:
    """Return the settings of the machines, and the assumptions."""
    named = any(word.startswith("cluster=") for word in settings.passed)
    overrides, assumed = [f"nodes={nodes}"], []
    if not any(word.startswith("optim=") for word in settings.passed):
        overrides.append("optim=adamw")
        assumed.append("The optimizer is AdamW (optim=).")
    rate, latency = settings.number("bandwidth"), settings.number("latency")
    if not named:
        if rate is None:
            raise ConfigError(
                "bandwidth",
                "the rate of a node's interface is missing: write bandwidth=10Gbit/s, or "
                "cluster= with a profile.",
            )
        overrides += [
            f"cluster={BASE}",
            "cluster.compute_time=constant",
            "cluster.collectives.library=nccl",
            f"cluster.devices_per_node={settings.count('devices') or 1}",
        ]
        if not any("ring_over" in word for word in settings.passed):
            assumed.append(
                "All-reduces are rings of NCCL over nodes, whose devices reduce first "
                "(cluster.collectives.ring_over=nodes)."
            )
        if latency is None:
            assumed.append("The latency is 50 us, one way (latency=).")
    elif (devices := settings.count("devices")) is not None:
        overrides.append(f"cluster.devices_per_node={devices}")
    overrides += settings.passed
    if rate is not None:  # also instead of rates that were measured at another one
        overrides += [
            f"cluster.links.bandwidth={rate}bit/s",
            "cluster.collectives.all_reduce_bandwidth=null",
        ]
    if latency is not None:
        overrides.append(f"cluster.links.latency_seconds={latency}s")
    return overrides, assumed


def regions_of(
    settings: PlanSettings, nodes: int, sites: int, connections: int
) -> tuple[tuple[Region, ...], list[str]]:
    """Return ``sites`` sites of nearly equal size, and the assumptions.

    connections: number of connections per message, which share the window
    """
    rate, latency = settings.number("site_bandwidth"), settings.number("site_latency")
    if rate is None or latency is None:
        key = "site_bandwidth" if rate is None else "site_latency"
        example = "site_bandwidth=1Gbit/s" if rate is None else "site_latency=30ms"
        raise ConfigError(key, f"missing for {sites} sites; for example, write {example}.")
    window, assumed = settings.number("site_window"), []
    if window is None:
        window = SITE_WINDOW
        carried = bit_rate(connection_rate(rate, 2 * latency, window))
        assumed.append(
            f"Connections from a node to another site have {num_bytes(window)} in flight and carry "
            f"{carried} (site_window=)."
        )
    sizes = (nodes // sites + (site < nodes % sites) for site in range(sites))
    share = round(window / connections)
    price = settings.number("site_price_per_gb")
    return tuple(Region(size, rate, rate, latency, share, price) for size in sizes), assumed


def regions_word(regions: Sequence[Region]) -> str:
    """Return ``regions`` as an argument of ``sgp-run``."""
    written = (
        ",".join(f"{key}:{value}" for key, value in asdict(region).items() if value is not None)
        for region in regions
    )
    return f"cluster.links.regions=[{','.join(f'{{{region}}}' for region in written)}]"


def model_overrides(settings: PlanSettings, cluster: Cluster) -> tuple[list[str], int, list[str]]:
    """Return the settings of the model, its number of parameters, and the assumptions."""
    name, assumed = settings.text("model"), []
    parameters = settings.count("parameters")
    if parameters is None:
        parameters, source = known_size(name)
        assumed.append(f"{name} has {parameters:,} parameters ({source}).")
    name = name or "planned"
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ConfigError("model", f"'{name}' is not a valid name: use letters, digits and _.")
    seconds = settings.number("step") or from_flops(settings, cluster, parameters)
    if seconds is not None:
        overrides = [f"cluster.compute.step_seconds.{name}={seconds}"]
        overrides += (
            [f"cluster.compute.step_batch.{name}=1"] if name in cluster.compute.step_batch else []
        )
        overrides += ["timed_as.batch_size=1"]
    elif name in cluster.compute.step_seconds and name != "default":
        batch = settings.count("batch") or cluster.compute.step_batch.get(name, 1)
        overrides = [f"timed_as.batch_size={batch}"]
        time = duration(cluster.compute.mean_step(name, batch, None))
        assumed.append(f"A step takes {time}, as in cluster={cluster.name} (step=).")
    elif name in LANGUAGE_MODELS:
        overrides = ["timed_as.batch_size=1"]
        time = duration(LANGUAGE_MODELS[name].step_seconds)
        assumed.append(f"A step takes {time} (Douillard et al. 2025, Table 4; step=).")
    else:
        raise ConfigError(
            "step",
            f"the time of a gradient of {name} on one node is not known: write step=0.4s, or "
            "device_flops=50e12 with step_flops= or batch_tokens=.",
        )
    if name not in LANGUAGE_MODELS or settings.count("parameters") is not None:
        overrides.append(f"timed_as.num_parameters={parameters}")
    per_parameter = settings.number("bytes_per_parameter")
    if per_parameter is None:
        assumed.append("Messages have 4 bytes per parameter (bytes_per_parameter=).")
    overrides += [f"timed_as.bytes_per_parameter={per_parameter or 4}", f"timed_as.model={name}"]
    return overrides, parameters, assumed


def from_flops(settings: PlanSettings, cluster: Cluster, parameters: int) -> float | None:
    """Return the seconds per step from its operations; None if no device rate is given."""
    rate, flops = settings.number("device_flops"), settings.number("step_flops")
    if rate is None:
        return None
    if flops is None:
        tokens = settings.count("batch_tokens")
        if tokens is None:
            raise ConfigError(
                "device_flops", "needs the FLOPs of a step: write batch_tokens= or step_flops=."
            )
        flops = float(FLOPS_PER_PARAMETER_AND_TOKEN) * parameters * tokens
    return flops / (rate * cluster.devices_per_node)


def steps_of_budget(settings: PlanSettings, nodes: int) -> int | None:
    """Return the steps per node; None without a budget."""
    budgets = [key for key in BUDGETS if key in settings.values]
    if len(budgets) > 1:
        raise ConfigError(budgets[1], f"the budget is given twice: leave out {budgets[0]}=.")
    if not budgets:
        return None
    if budgets == ["steps"]:
        return settings.count("steps")
    batch = "batch_tokens" if budgets == ["tokens"] else "batch"
    for key in [batch] if budgets == ["tokens"] else [batch, "samples"]:
        if key not in settings.values:
            raise ConfigError(key, f"{budgets[0]}= needs it: {KEYS[key].text}.")
    total = settings.number("tokens") or (settings.number("epochs") or 0) * (
        settings.count("samples") or 0
    )
    return max(1, round(total / ((settings.count(batch) or 1) * nodes)))


def machines(request: Request) -> str:
    """Return a short description of the machines."""
    links = request.cluster.links
    text = counted(request.nodes, "node")
    if request.devices > 1:
        text += f" of {request.devices} devices"
    if request.sites > 1:
        slowest = min(rate for _, rate, _ in links.crossings())
        return f"{text} in {request.sites} sites, {bit_rate(slowest)} between sites"
    return f"{text}, {bit_rate(links.rate)}"

"""Corrections that changed results, and the results version of a run.

The results version is the number of the latest correction that affects a run, or 0 if no correction
does. It is part of a run's identity: names, checkpoints, recordings and the groups of a report
depend on it. Therefore the corrected code never resumes an affected run from before the correction,
and reports never mix the two. Runs that a correction does not affect keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgp_runner.utils.errors import ConfigError

KEY = "results_version"  # in a stored configuration; absent for 0
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Correction:
    """One correction of the code.

    what: a sentence without a full stop
    affects: whether the correction changes the results of a configuration
    """

    what: str
    affects: Callable[[Config], bool]


def parts(config: object, *names: str) -> Iterator[Config]:
    """Yield each part of a stored configuration that has one of ``names`` as its ``name``."""
    if isinstance(config, Mapping):
        if config.get("name") in names:
            yield config
        for value in config.values():
            yield from parts(value, *names)


def runs(*algorithms: str) -> Callable[[Config], bool]:
    """Return a predicate: whether a run uses one of ``algorithms``, on its own or as a part."""
    return lambda config: any(parts(config["algo"], *algorithms))


def gap_without_momentum(config: Config) -> bool:
    algo = config["algo"]
    return (algo.get("name"), algo.get("penalty"), config["optim"].get("momentum")) == (
        "gap_aware",
        "gap",
        0,
    )


def looks_ahead_twice(config: Config) -> bool:
    nesterov = config["optim"].get("momentum") and config["optim"].get("nesterov")
    return (
        bool(nesterov)
        and config["algo"].get("name") == "gap_aware"
        and config["algo"].get("momentum") == "dana"
    )


def trains_one_bit(config: Config) -> bool:
    one_bit = any(parts(config["algo"], "onebit_adam", "zero_one_adam"))
    return one_bit and config["model"].get("name") != "timing_only"


def slow_link(config: Config) -> bool:
    faults = config["faults"]
    return bool(faults.get("slow_links")) or any(
        event["what"] == "slow_link" for event in faults.get("events", ())
    )


def has_batch_norm(config: Config) -> bool:
    return config["model"].get("name") in ("resnet8", "resnet18", "resnet20", "resnet50")


def random_k_with_feedback(config: Config) -> bool:
    algo = config["algo"]
    return algo.get("name") in ("ar_sgd", "choco_sgd", "sparseloco") and any(
        parts(algo.get("codec"), "random_k")
    )


def is_real(config: Config) -> bool:
    network: Config = config["network"]
    return network.get("name") != "sim"


def streams_on_real_machines(config: Config) -> bool:
    algo = config["algo"]
    streams: bool = algo.get("then", algo).get("name") == "streaming_diloco"
    return streams and is_real(config)


def batches_of_three(config: Config) -> bool:
    """Return whether a server of Async DiLoCo may batch three outer gradients or more.

    Without ``grace``, simulated messages arrive one by one.
    """
    algo = config["algo"]
    if algo.get("name") != "async_diloco" or config["nodes"] < 3:
        return False
    return bool(algo.get("grace")) or is_real(config)


def decays_in_demo(config: Config) -> bool:
    return bool(config["optim"].get("weight_decay")) and any(parts(config["algo"], "demo"))


def sends_weights_in_a_study(config: Config) -> bool:
    weighted = runs("sgp", "osgp", "slowmo", "hybrid", "async_diloco")
    return config["model"].get("name") == "timing_only" and weighted(config)


def codes_signs(config: Config) -> bool:
    codecs = config.get("cluster", {}).get("codecs", {})
    timed = any("sign" in codecs.get(key, {}) for key in ("encode_seconds", "decode_seconds"))
    return timed and runs("onebit_adam", "zero_one_adam")(config)


def reads_a_file_of_tokens(config: Config) -> bool:
    data = config.get("data", {})
    return data.get("name") == "text" and str(data.get("path")).endswith((".bin", ".npy"))


def pads_shortcuts(config: Config) -> bool:
    return config["model"].get("name") in ("resnet8", "resnet20")


def convolves_few_samples(config: Config) -> bool:
    few: bool = config.get("batch_size", 0) < 16
    return few and config["model"].get("name") == "resnet50"


def gathers_between_regions(config: Config) -> bool:
    cluster, algo = config.get("cluster", {}), config["algo"]
    codec = algo.get("then", algo).get("codec") or {}
    hierarchical: bool = cluster.get("collectives", {}).get("algorithm") == "hierarchical"
    regions = cluster.get("links", {}).get("regions")
    return (
        hierarchical
        and bool(regions)
        and not is_real(config)
        and codec.get("name", "none") != "none"
    )


def sends_shapes_of_a_timed_model(config: Config) -> bool:
    """Return whether messages follow the shapes of ResNet-50 or of a timed language model."""
    timed, trains = config.get("timed_as", {}), config["model"].get("name") != "timing_only"
    name, parameters = timed.get("model"), timed.get("num_parameters")
    is_resnet50 = name in (None, "resnet50") and (
        parameters == 25_557_032 or not (trains or parameters)
    )
    algorithms = ("powersgd", "acp_sgd", "demo", *(() if trains else ("streaming_diloco",)))
    codecs = ("bf16", "truncate16", "low_rank", "int8", "quantize8", "fp4", "two_bit", "sign")
    follows_shapes = any(parts(config["algo"], *algorithms, *codecs, "cosine_top_k", "top_k"))
    is_known = is_resnet50 or (trains and str(name).startswith("llama_"))
    return follows_shapes and is_known and not is_real(config)


def rings_of_gloo(config: Config) -> bool:
    cluster = config.get("cluster", {})
    gloo: bool = cluster.get("collectives", {}).get("library") == "gloo"
    return gloo and not is_real(config)


#: Numbered by position, from 1; append new ones at the end.
CORRECTIONS = (
    Correction("SlowMo takes no slow step after an incomplete last period", runs("slowmo")),
    Correction(
        "exact averages of SlowMo and hybrids weigh models by their push-sum weights",
        runs("slowmo", "hybrid"),
    ),
    Correction(
        "Gap-Aware without momentum averages the squares of gradients as they came in",
        gap_without_momentum,
    ),
    Correction("DANA no longer looks ahead twice", looks_ahead_twice),
    Correction("a slow link holds up its own messages alone", slow_link),
    Correction(
        "AD-PSGD averages once per gradient of any worker, or as often as is set", runs("ad_psgd")
    ),
    Correction(
        "BatchNorm statistics of averaged models are re-estimated on 5,000 training samples, "
        "not 512",
        has_batch_norm,
    ),
    Correction(
        "random_k takes numbers as they are where the rest is sent later, not scaled up",
        random_k_with_feedback,
    ),
    Correction(
        "on real machines the averaged model and the consensus distance of Streaming DiLoCo are "
        "those of its outer parameters",
        streams_on_real_machines,
    ),
    Correction(
        "Async DiLoCo applies the outer gradients of a batch in the order of arrival",
        batches_of_three,
    ),
    Correction("DeMo's weight decay acts on the parameters, not on the momentum", decays_in_demo),
    Correction(
        "in a timing study a push-sum weight counts as one number, not as a 2048th of a model",
        sends_weights_in_a_study,
    ),
    Correction("DeMo takes no signs of rounding errors in chunks with an odd factor", runs("demo")),
    Correction("coded means of signs and majority votes take time to code", codes_signs),
    Correction("a .bin or .npy file has tokens and not bytes of text", reads_a_file_of_tokens),
    Correction(
        "all channels of ResNet-8 and ResNet-20 learn; those that a shortcut adds stayed zero",
        pads_shortcuts,
    ),
    Correction("1-bit Adam and 0/1 Adam have a floor below a stale variance", trains_one_bit),
    Correction(
        "a CPU computes ResNet-50 on few samples channels-last, in less time and with other "
        "rounding",
        convolves_few_samples,
    ),
    Correction(
        "AD-PSGD, A2CiD2 and SwarmSGD end with one goodbye of each worker, passed on by rank 0",
        runs("ad_psgd", "a2cid2", "swarm_sgd"),
    ),
    Correction(
        "hierarchical all-gathers gather in each region first and cross regions once",
        gathers_between_regions,
    ),
    Correction(
        "messages whose length depends on the shapes of tensors have those of the timed model, if "
        "it is ResNet-50 or a language model",
        sends_shapes_of_a_timed_model,
    ),
    Correction(
        "a pair of segments in a ring of Gloo takes 3.5 % of a latency more than its round trip",
        rings_of_gloo,
    ),
)


def results_version(config: Config) -> int:
    """Return the results version of a run that this version of the code makes."""
    return max(
        (
            number
            for number, correction in enumerate(CORRECTIONS, start=1)
            if correction.affects(config)
        ),
        default=0,
    )


def since(config: Config) -> list[Correction]:
    """Return the corrections that affect a stored run and are newer than its results version."""
    stored = config.get(KEY, 0)
    return [
        correction
        for number, correction in enumerate(CORRECTIONS, start=1)
        if number > stored and correction.affects(config)
    ]


def refuse_outdated(config: Config, path: Path) -> None:
    """Raise ConfigError if a later correction affects a stored run."""
    if later := since(config):
        what = "; ".join(correction.what for correction in later)
        raise ConfigError(
            str(path), f"its results are from before a correction ({what}): run it again."
        )

"""Corrections that changed results. A run's results version is the number of the latest one that affects it, 0 if none does.

The version is part of a run's identity: its name, checkpoints and recordings, and what is taken for the same setting in reports. So a run
from before a correction is neither resumed nor taken for one of the corrected code, and runs that are not affected keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgp_runner.errors import ConfigError

KEY = "results_version"  # in a stored configuration; absent for 0
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Correction:
    """what: in a sentence without a full stop. affects: whether it changes results of a run with this configuration."""

    what: str
    affects: Callable[[Config], bool]


def parts(config: object, *classes: str) -> Iterator[Config]:
    """The parts of a configuration, which may be an old one, that stand for one of these classes."""
    if isinstance(config, Mapping):
        if str(config.get("_target_")).rpartition(".")[2] in classes:
            yield config
        for value in config.values():
            yield from parts(value, *classes)


def has(*classes: str) -> Callable[[Config], bool]:
    return lambda config: any(parts(config, *classes))


def gap_without_momentum(config: Config) -> bool:
    return config["optim"].get("momentum") == 0 and any(part.get("penalty") == "gap" for part in parts(config, "GapAware"))


def looks_ahead_twice(config: Config) -> bool:
    optim = config["optim"]
    return bool(optim.get("momentum") and optim.get("nesterov")) and any(
        part.get("momentum") == "dana" for part in parts(config, "GapAware")
    )


def slow_link(config: Config) -> bool:
    faults = config["faults"]
    return bool(faults.get("slow_links")) or any(event["what"] == "slow_link" for event in faults.get("events", ()))


#: Their numbers are their places, from 1; new ones come last.
CORRECTIONS = (
    Correction("SlowMo takes no slow step after an incomplete last period", has("SlowMo")),
    Correction("exact averages of SlowMo and hybrids weigh models by their push-sum weights", has("SlowMo", "Hybrid")),
    Correction("Gap-Aware without momentum averages the squares of gradients as they came in", gap_without_momentum),
    Correction("DANA no longer looks ahead twice", looks_ahead_twice),
    Correction("a slow link holds up its own messages alone", slow_link),
    Correction("AD-PSGD averages once per gradient of any worker, or as often as is set", has("ADPSGD")),
    Correction(
        "BatchNorm statistics of averaged models are re-estimated on 5,000 training samples, not 512",
        has("ResNet8", "ResNet18", "ResNet20", "ResNet50"),
    ),
)


def results_version(config: Config) -> int:
    """Of a run with this configuration, made by this code."""
    return max((number for number, correction in enumerate(CORRECTIONS, start=1) if correction.affects(config)), default=0)


def since(config: Config) -> list[Correction]:
    """The corrections that affect the run of a stored configuration and came after it."""
    stored = config.get(KEY, 0)
    return [correction for number, correction in enumerate(CORRECTIONS, start=1) if number > stored and correction.affects(config)]


def refuse_outdated(config: Config, path: Path) -> None:
    """Raises ConfigError for a stored run that this code would not repeat."""
    if later := since(config):
        what = "; ".join(correction.what for correction in later)
        raise ConfigError(str(path), f"its results are from before a correction ({what}): run it again.")

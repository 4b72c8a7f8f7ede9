"""A run with its configuration, its identity, and its place on disk."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sgp_runner.config.plugins.from_python import InMemory
from sgp_runner.config.plugins.loading import Plugin
from sgp_runner.config.run import Run

# Keys that do not change the result of a run, and so not its name.
NOT_IN_NAME = (
    *("logger", "results", "resume", "name", "checkpoint", "record", "on_failure"),
    *("data.root", "data.workers", "format", "cluster.validated"),
    *("network.timeout_seconds", "network.start_timeout_seconds"),
    *("network.vote_seconds", "network.silence_seconds", "network.shared_memory"),
)

# Keys that came later -> what stands for the time before them. They are no part of identity then.
LATER: Mapping[str, object] = {
    "codec": {"name": "none"},
    "churn_per_hour": 0.0,
    "absence_seconds": 600.0,
    "weights": "uniform",
    "bytes_per_parameter": None,
    "tokens": None,
}


def settings_of(config: Mapping[str, object]) -> dict[str, object]:
    """The part of a configuration that changes the result."""

    def kept(node: Mapping[str, object], parent: str) -> dict[str, object]:
        inner = {
            key: kept(value, f"{parent}{key}.") if isinstance(value, Mapping) else value
            for key, value in node.items()
        }
        return {key: value for key, value in inner.items() if f"{parent}{key}" not in NOT_IN_NAME}

    return kept(config, "")


def flat(node: Mapping[str, object], parent: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys and values of a configuration."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}", value


def identity_of(settings: Mapping[str, object]) -> dict[str, object]:
    """``settings`` without those that came later, as long as they have no effect."""
    return {
        key: identity_of(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in LATER or value != LATER[key]
    }


def digest_of(settings: Mapping[str, object]) -> str:
    """A hash that a setting which came later does not change, as long as it has no effect."""
    settings = identity_of(settings)
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Experiment:
    """A run with the resolved configuration that describes it, and its place on disk.

    group: the sweep it belongs to. started: `time.monotonic` when its command, or its turn in a
        sweep, began. plugins: those that it uses. command: how it was started; empty: as this
        process was.
    """

    run: Run
    config: Mapping[str, object]
    group: str | None = None
    started: float = field(default_factory=time.monotonic, compare=False)
    plugins: Sequence[Plugin | InMemory] = field(default=(), compare=False)
    command: Sequence[str] = field(default=(), compare=False)

    @property
    def settings(self) -> dict[str, object]:
        """The settings that change the result."""
        return settings_of(self.config)

    @property
    def digest(self) -> str:
        """A hash of the settings: equal exactly for equal settings."""
        return digest_of(self.settings)

    @property
    def name(self) -> str:
        """The user's name, or readable parts of the settings and the start of their digest."""
        run = self.run
        if run.name is not None:
            return run.name
        words = [
            run.algo.title,
            run.model.name,
            run.data.name,
            f"n{run.nodes}",
            run.network.name,
            f"s{run.seed}",
        ]
        return (
            "-".join(re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in words)
            + f"-{self.digest[:8]}"
        )

    @property
    def directory(self) -> Path:
        return Path(self.run.results) / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def facts(self) -> dict[str, object]:
        """Columns that describe the run in tables, besides its results."""
        run = self.run
        return {
            "name": self.name,
            "algorithm": run.algo.title,
            "model": run.model.name,
            "data": run.data.name,
            "nodes": run.nodes,
            "network": run.network.name,
            "seed": run.seed,
            "epochs": run.epochs,
            "row": run.row,
            "fitted": run.row in run.cluster.fitted_on,
            "label": run.label,
            "clock": run.network.clock,
            "server": run.algo.servers > 0,
            "run_dir": str(self.directory),
        }

    @property
    def tags(self) -> list[str]:
        run = self.run
        return [run.algo.title, run.model.name, f"nodes={run.nodes}", run.network.name]

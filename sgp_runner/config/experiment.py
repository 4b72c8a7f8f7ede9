"""A run with its configuration, its identity and its folder."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sgp_runner.cluster.validated import LIMITS
from sgp_runner.config.check import CheckedPart, build, check_tree, plain
from sgp_runner.config.choices import EXTENSIONS, group_of
from sgp_runner.config.old_names import KEY as CLUSTER
from sgp_runner.config.old_names import flattened
from sgp_runner.config.plugins.from_python import InMemory
from sgp_runner.config.plugins.loading import KEY as KEY_OF_PLUGINS
from sgp_runner.config.plugins.loading import Plugin, check_stored, named
from sgp_runner.config.run import Run
from sgp_runner.config.schema import IDENTITY, RESIZED, Tree, join
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import read_yaml
from sgp_runner.utils.secrets import refuse_secrets

FORMAT = 4  # of a stored configuration; higher in each results version
VERSIONS = {3: "0.2", FORMAT: "0.3"}  # of results, by format
# Keys that do not change the result of a run, and so not its name.
NOT_IN_NAME = (
    *("logger", "results", "resume", "name", "checkpoint", "record", "on_failure", "trace_steps"),
    *("data.root", "data.workers", "format", *(f"cluster.validated.{key}" for key in LIMITS)),
    *(f"{data}.path" for data in ("fashion_mnist", "mnist", "gutenberg", "help_en_de")),
    *("network.timeout_seconds", "network.start_timeout_seconds"),
    *("network.vote_seconds", "network.silence_seconds"),
    *("network.shared_memory", "network.shard"),
)

# Keys added later, or keys of one choice -> the value that is equivalent to their absence and not
# part of identity.
DEFAULTS_OF_NEW_KEYS: Mapping[str, object] = {
    "device": "cpu",
    "deterministic": True,
    "micro_batch": None,
    "pretrain": {"steps": 0, "lr": 0.001},
    "checkpoint_blocks": False,
    "sim.autocast": "none",
    "sim.channels_last": False,
    "gloo.all_reduce": "ring",
    "codec": {"name": "none"},
    "churn_per_hour": 0.0,
    "absence_seconds": 600.0,
    "trace": None,
    "trace_sha256": None,
    "weights": "uniform",
    "bytes_per_parameter": None,
    "tokens": None,
    "library": None,
    "ring_over": "nodes",
    "connections": 1,
    "window_bytes": 0,
    "first_window_bytes": 0,
    "protocol": "eager",
    "device_bandwidth": None,
    "timing_only.periods": False,
    "grammar.holdout": 0.0,
    "cifar10.holdout": 0.0,
    "cifar100.holdout": 0.0,
}


def settings_of(config: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration without the settings that do not change the result."""

    def relevant(node: Mapping[str, object], parent: str) -> dict[str, object]:
        inner = {
            key: relevant(value, f"{parent}{key}.") if isinstance(value, Mapping) else value
            for key, value in node.items()
        }
        return {
            key: value
            for key, value in inner.items()
            if f"{parent}{key}" not in NOT_IN_NAME
            and f"{node.get('name')}.{key}" not in NOT_IN_NAME  # a key of one choice
            and (value != {} or node[key] == {})
        }

    return relevant(config, "")


def flat(node: Mapping[str, object], parent: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of each setting of a configuration."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}", value


def identity_of(settings: Mapping[str, object]) -> dict[str, object]:
    """Return ``settings`` without those keys of `DEFAULTS_OF_NEW_KEYS` whose value has no effect.

    Of a device only the kind is included: ``cuda`` for ``cuda:1``.
    """
    choice = settings.get("name")
    return {
        key: identity_of(value)
        if isinstance(value, Mapping)
        else str(value).partition(":")[0]
        if key == "device"
        else value
        for key, value in settings.items()
        if all(
            name not in DEFAULTS_OF_NEW_KEYS or value != DEFAULTS_OF_NEW_KEYS[name]
            for name in (key, f"{choice}.{key}")
        )
    }


def digest_of(settings: Mapping[str, object]) -> str:
    """Return a hash of the `identity_of` ``settings``."""
    settings = identity_of(settings)
    if isinstance(cluster := settings.get(CLUSTER), Mapping):
        settings[CLUSTER] = flattened(cluster)
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Origin:
    """Checkpoint of a run with a different number of nodes, from which a run continues.

    run, digest: name and digest of the former run
    steps: number in the name of the checkpoint
    nodes: number of nodes of the former run
    """

    run: str
    digest: str
    steps: int
    nodes: int


@dataclass(frozen=True)
class Experiment:
    """Run with its resolved configuration and its folder.

    group: the sweep that contains the run
    started: `time.monotonic` at the start of the run's command or, in a sweep, of the run itself
    plugins: the plug-ins that the run uses
    command: the command line of the run; empty: the command line of this process
    """

    run: Run
    config: Mapping[str, object]
    group: str | None = None
    started: float = field(default_factory=time.monotonic, compare=False)
    plugins: Sequence[Plugin | InMemory] = field(default=(), compare=False)
    command: Sequence[str] = field(default=(), compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings and the paths of plug-ins; another process reloads the plug-ins."""
        sources = [plugin.where for plugin in self.plugins]
        if EXTENSIONS:
            return unpickled, (dict(self.config), self.group, sources, self.command)
        return Experiment, (self.run, self.config, self.group, self.started, (), self.command)

    def with_values(self, **values: object) -> Experiment:
        """Return the experiment with new values of settings that are not parts, such as the seed.

        Raises ConfigError for an invalid value.
        """
        run: Run = replace(self.run, **values)  # type: ignore[arg-type]
        return replace(self, run=run, config={**self.config, **values})

    @property
    def settings(self) -> dict[str, object]:
        """The settings that change the result."""
        return settings_of(self.config)

    @cached_property
    def digest(self) -> str:
        """A hash of the settings that change the result."""
        return digest_of(self.settings)

    @property
    def name(self) -> str:
        """The user's choice or, by default, the main settings and the start of the digest."""
        run = self.run
        if run.name is not None:
            return run.name
        parts = [
            run.algo.title,
            run.model.name,
            run.data.name,
            f"n{run.nodes}",
            run.network.name,
            f"s{run.seed}",
        ]
        return (
            "-".join(re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts)
            + f"-{self.digest[:8]}"
        )

    @property
    def directory(self) -> Path:
        return Path(self.run.results) / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def origin(self) -> Origin | None:
        """The checkpoint of another run from which this run continues, if any (resume=resize)."""
        origin: Any = self.config.get(RESIZED)
        return None if origin is None else Origin(**origin)

    @property
    def facts(self) -> dict[str, object]:
        """Table columns that describe the run; other columns contain the results."""
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
            "fitted": run.row in run.cluster.validated.fitted_on,
            "label": run.label,
            "clock": run.network.clock,
            "server": run.algo.servers > 0,
            "run_dir": str(self.directory),
        }

    @property
    def tags(self) -> list[str]:
        run = self.run
        return [run.algo.title, run.model.name, f"nodes={run.nodes}", run.network.name]


def make_experiment(tree: Tree, group: str | None = None) -> Experiment:
    """Create the experiment for a resolved configuration; ``group`` is the sweep that contains it.

    Raises ConfigError for an unknown key, a value of the wrong type, a missing value, or
    conflicting settings.
    """
    refuse_secrets(tree, "")
    check_stored(tree.get(KEY_OF_PLUGINS, {}))
    part = check_tree({key: value for key, value in tree.items() if key not in IDENTITY})
    run = build(part, "")
    assert isinstance(run, Run)
    config = plain(part, run)
    used = [(key, plugin) for key, plugin in extensions_in(part, "") if plugin.hash is not None]
    hashes = {plugin.name: plugin.hash for key, plugin in used if key not in NOT_IN_NAME}
    digests = {name: hashes[name] for name in sorted(hashes)}
    identity = {KEY_OF_PLUGINS: digests, RESIZED: tree.get(RESIZED)}
    config |= {key: value for key, value in identity.items() if value}
    return Experiment(run, config, group, plugins=list(dict.fromkeys(plugin for _, plugin in used)))


def unpickled(
    config: Tree, group: str | None, sources: Sequence[str], command: Sequence[str]
) -> Experiment:
    """Load the plug-ins in the files and folders ``sources``, and create the experiment."""
    named([], sources)
    return replace(make_experiment(config, group), command=command)


def extensions_in(part: CheckedPart, key: str) -> Iterator[tuple[str, Plugin | InMemory]]:
    """Yield the key and the extension of each part whose class comes from an extension."""
    extension = EXTENSIONS.get((group_of(key) or "", part.name or ""))
    if isinstance(extension, Plugin | InMemory):
        yield key, extension
    for name, value in part.values.items():
        if isinstance(value, CheckedPart):
            yield from extensions_in(value, join(key, name))


def load_experiment(path: Path, group: str | None) -> Experiment:
    """Load the experiment in a config.yaml at ``path``; it has the name of the original run."""
    try:
        tree = read_yaml(path)
    except (OSError, ValueError):
        tree = None
    if not path.parent.is_dir():
        raise ConfigError(str(path.parent), "there is no such folder.")
    if not isinstance(tree, dict):
        raise ConfigError("config.yaml", f"{path} is not a run configuration.")
    return from_stored(tree, path, group)


def from_stored(tree: Tree, path: Path, group: str | None = None) -> Experiment:
    """Create the experiment for the stored configuration ``tree``, read from ``path``.

    Raises ConfigError if ``tree`` has a different format.
    """
    if tree.get("format") != FORMAT:
        raise ConfigError("config.yaml", f"{path} is {other_version(tree)}: run it again.")
    return make_experiment({key: tree[key] for key in tree if key != "format"}, group)


def version_of(config: Mapping[str, object]) -> str | None:
    """Return the results version of a stored configuration; None if its format is not known."""
    formats = (number for number in VERSIONS if number == config.get("format"))
    return next(map(VERSIONS.__getitem__, formats), None)


def other_version(config: Mapping[str, object]) -> str:
    """Return a phrase that describes a stored configuration whose format is not `FORMAT`."""
    if (version := version_of(config)) is None:
        return "of another version of sgp-run, which this version cannot read"
    return f"of version {version}, neither comparable with this version nor resumable"


def stored(experiment: Experiment) -> dict[str, object]:
    """Return the configuration in the format that `from_stored` reads."""
    return {"format": FORMAT, **experiment.config}

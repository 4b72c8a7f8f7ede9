"""Networks: ``sim`` in simulated time; ``gloo``, ``nccl`` and ``mpi`` between real processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Protocol, runtime_checkable

from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.checks import check_positive
from sgp_runner.config.run import Network, Run
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.optim import Muon
from sgp_runner.core.parts import Cut
from sgp_runner.distributed.world import World
from sgp_runner.utils.devices import check_device, device_of
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import Launched


@runtime_checkable
class RealNetwork(Network, Protocol):
    """A network between real processes."""

    @property
    def start_timeout_seconds(self) -> float: ...  # longest wait for a rank at the start
    def world(self, run: Run, process: Launched) -> World: ...


def check_real(run: Run) -> None:
    """Raise ConfigError for simulation-only features and for an invalid time-out."""
    if run.network.timeout_seconds <= 0:
        raise ConfigError(
            "network.timeout_seconds", f"{run.network.timeout_seconds} must be positive."
        )
    assert isinstance(run.network, RealNetwork)
    check_positive("network.start_timeout_seconds", run.network.start_timeout_seconds)
    if not run.model.trains:
        raise ConfigError(
            "network", f"model={run.model.name} only runs in simulated time: use network=sim."
        )
    run.faults.check(run.nodes, run.algo.servers)
    run.faults.check_real(run.nodes)
    if run.record:
        check_recorded(run)


def check_recorded(run: Run) -> None:
    """Raise ConfigError for a real run that cannot be recorded."""
    if device_of(run.network) != "cpu":
        raise ConfigError(
            "record",
            "a GPU's results cannot be repeated to the last bit: "
            "use network=gloo or mpi on CPUs, or record=false.",
        )
    if run.gpus_per_node > 1:
        raise ConfigError(
            "record",
            "nodes of several devices cannot be recorded: use gpus_per_node=1, or record=false.",
        )
    if run.algo.reads_clock:
        raise ConfigError(
            "record",
            f"the steps of {run.algo.title} depend on the time of events, which a replay cannot "
            "repeat to the last bit: use record=false.",
        )
    if run.on_failure == "continue":
        raise ConfigError(
            "on_failure",
            "a run that continues without lost ranks cannot be recorded: "
            "use on_failure=stop, or record=false.",
        )
    if run.checkpoint.every_steps is not None:
        raise ConfigError(
            "checkpoint.every_steps",
            "a recorded run cannot save checkpoints: use checkpoint.every_steps=null.",
        )


def check_devices(run: Run, gossip: str, autocast: str) -> None:
    """Raise ConfigError for invalid settings of devices per node or precision."""
    if run.batch_size % run.gpus_per_node:
        nearby = run.batch_size // run.gpus_per_node * run.gpus_per_node or run.gpus_per_node
        parts = f"{run.batch_size} samples per node do not divide among {run.gpus_per_node} devices"
        raise ConfigError(
            "batch_size", f"{parts}: use batch_size={nearby}, or another multiple of gpus_per_node."
        )
    if gossip == "shards" and run.gpus_per_node > 1 and leader_mode(run, "auto"):
        what = "has a server" if run.algo.servers else "is asynchronous"
        raise ConfigError(
            "network.gossip",
            f"{run.algo.title} {what}, so one device must communicate for its node: "
            "use network.gossip=leader.",
        )
    check_device(device_of(run.network), autocast, run.dtype)


def check_shard(run: Run, shard: str, gossip: str) -> None:
    """Raise ConfigError for a run whose state cannot be divided among the devices of a node."""
    if shard == "none":
        return
    key, way_out, algo = "network.shard", "use network.shard=none.", run.algo
    if run.gpus_per_node == 1:
        raise ConfigError(
            key, f"one device cannot divide its state: use gpus_per_node=2 or more, or {way_out}"
        )
    if leader_mode(run, gossip):
        what = "has a server" if algo.servers else "is asynchronous"
        if not (algo.servers or algo.asynchronous):
            what = "has network.gossip=leader"
        raise ConfigError(
            key, f"{algo.title} {what}, so one device holds all the state of its node: {way_out}"
        )
    check_divisible([*components(algo), run.optim], key, way_out)


def check_divisible(parts: Iterable[object], key: str, way_out: str) -> None:
    """Raise ConfigError for a component of a run that computes on whole vectors."""
    for part in parts:
        if not type(part).__module__.startswith("sgp_runner."):
            raise ConfigError(
                key, f"{part_title(part)} is a plug-in, which may need whole vectors: {way_out}"
            )
        if isinstance(part, Codec) and part.cut is None:
            raise ConfigError(key, f"algo.codec={part_title(part)} codes whole vectors: {way_out}")
        if getattr(part, "message_layout", "model") == "factors":
            raise ConfigError(key, f"{part_title(part)} factorizes whole vectors: {way_out}")
        if getattr(part, "compression", "none") != "none":
            raise ConfigError(
                key,
                "algo.compression codes chunks of whole vectors: use algo.compression=none, or "
                f"{way_out}",
            )


def components(part: object) -> Iterator[object]:
    """Yield an algorithm and its codecs, then its inner algorithms and their codecs."""
    yield part
    for field in fields(part):  # type: ignore[arg-type]
        if isinstance(inner := getattr(part, field.name), Algorithm | Codec):
            yield from components(inner)


def part_title(part: object) -> str:
    return str(getattr(part, "title", getattr(part, "name", type(part).__name__)))


def cut_of(run: Run, shard: str) -> Cut | None:
    """Return where to split a node's state: between tensors if any are needed whole."""
    if shard == "none":
        return None
    whole = isinstance(run.optim, Muon) or needs_tensors(run.algo)
    return "tensors" if whole else "elements"


def needs_tensors(algo: Algorithm) -> bool:
    """Return whether an algorithm or one of its codecs computes on whole tensors."""
    return any(
        getattr(part, "message_layout", "model") == "chunks"
        or (isinstance(part, Codec) and part.cut == "tensors")
        for part in components(algo)
    )


def leader_mode(run: Run, gossip: str) -> bool:
    """Return whether the first device of a node runs the algorithm alone.

    Asynchronous algorithms and algorithms with a server require this mode.
    """
    return gossip == "leader" or (
        gossip == "auto" and (run.algo.asynchronous or run.algo.servers > 0)
    )

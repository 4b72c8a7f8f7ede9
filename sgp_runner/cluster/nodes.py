"""Compute times of nodes, and the processors that the ranks of a host share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgp_runner.cluster.checks import check_each_not_negative, check_positive, check_power
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import Seconds


@dataclass(frozen=True)
class StepTimes:
    """The mean times of gradients.

    step_seconds: mean time of one gradient of one node, by model name; ``default`` applies to
        models that are not listed
    step_batch: samples per node that the time in step_seconds applies to, by model name; time is
        proportional to the batch, and constant for models that are not listed
    input_seconds: time at the start of a gradient for loading and copying the batch; it overlaps
        waiting for messages, but not for an all-reduce
    node_factors: slow-down of individual nodes by rank, e.g. ``{3: 2.0}``: node 3 computes half as
        fast
    heterogeneity: coefficient of variation of the nodes' random factors, drawn once per node from a
        Gamma distribution; 0 for equal nodes
    """

    step_seconds: Mapping[str, Seconds]
    step_batch: Mapping[str, int] = field(default_factory=dict)
    input_seconds: Seconds = 0.0
    node_factors: Mapping[int, float] = field(default_factory=dict)
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        for key in ("step_batch", "step_seconds", "node_factors"):
            for name, value in getattr(self, key).items():
                check_positive(f"cluster.compute.{key}.{name}", value)
        check_each_not_negative(self, "cluster.compute", "input_seconds", "heterogeneity")
        if self.heterogeneity:
            check_power("cluster.compute.heterogeneity", self.heterogeneity, -2)

    def mean_step(self, model: str, batch_size: int, unlisted: float | None = None) -> float:
        """Return the mean seconds of a gradient of ``model`` on ``batch_size`` samples per node.

        unlisted: seconds if step_seconds does not list the model; None: the default in step_seconds
        """
        default = self.step_seconds.get("default") if unlisted is None else unlisted
        seconds = self.step_seconds.get(model, default)
        if seconds is None:
            raise ConfigError(
                f"cluster.compute.step_seconds.{model}",
                "no compute time for this model; add it, or a default.",
            )
        seconds *= batch_size / self.step_batch.get(model, batch_size)
        if seconds < self.input_seconds:
            raise ConfigError(
                "cluster.compute.input_seconds",
                f"{self.input_seconds} is more than the {seconds:.3g} s of a gradient of {model}.",
            )
        return seconds


@dataclass(frozen=True)
class Hosts:
    """The processors of hosts and their work for messages.

    cores_per_host: cores that the ranks of one host share, one for each gradient; step_seconds
        apply to a gradient that runs alone. null: every rank has its own cores
    ranks_per_host: number of consecutive ranks on one host; null: all ranks, including servers
    passing_seconds_per_byte: core time for each byte that a rank sends or receives
    mixing_seconds_per_byte: core time to prepare a message and to add a received message, for each
        byte received, before the message counts as received
    serving_seconds_per_byte: time that a parameter server takes to answer a gradient, per byte of
        the gradient, while other gradients arrive; it applies to Gap-Aware ASGD and is an upper
        limit for other algorithms. The server answers one gradient at a time
    host_seconds_per_byte: time that the processor takes to add up or copy one byte of a message, if
        the network stack is on the host: once for the bytes that each round of an all-reduce adds,
        and for each gradient of an asynchronous algorithm, whose model stays on the host, 3 times
    """

    cores_per_host: float | None = None
    ranks_per_host: int | None = None
    passing_seconds_per_byte: float = 0.0
    mixing_seconds_per_byte: float = 0.0
    serving_seconds_per_byte: float = 0.0
    host_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        shared = ("ranks_per_host", "passing_seconds_per_byte", "mixing_seconds_per_byte")
        for key in shared if self.cores_per_host is None else ():
            if getattr(self, key):
                raise ConfigError(
                    f"cluster.hosts.{key}",
                    "it has no effect unless ranks share cores: also set "
                    "cluster.hosts.cores_per_host.",
                )
        for key in ("cores_per_host", "ranks_per_host"):
            if (number := getattr(self, key)) is not None:
                check_positive(f"cluster.hosts.{key}", number)
        costs = ("passing", "mixing", "serving", "host")
        check_each_not_negative(
            self, "cluster.hosts", *(f"{cost}_seconds_per_byte" for cost in costs)
        )

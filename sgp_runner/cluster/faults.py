"""The faults of a run, as data in ``configs/faults``.

Faults are slow nodes and links, pauses, crashes, partitions, churn, and late or lost messages. They
depend only on the settings and the seed. The delay and loss of a message are functions of the seed
and of the message's sender, receiver and number. Neither other events nor resuming the run changes
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.cluster.checks import check_not_negative, check_positive, check_power, check_ranks
from sgp_runner.cluster.spot_trace import SpotTrace, read_trace
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import Seconds

if TYPE_CHECKING:
    from numpy.random import Generator

REAL = ("slow_node", "pause")  # faults that a real run can inject


@dataclass(frozen=True)
class Event:
    """A fault of some ranks for a limited or unlimited time.

    A slow_node takes ``factor`` times longer for gradients. A slow_link has its bandwidth divided
    by ``factor``. During a pause the ranks do nothing; their interfaces still receive messages,
    which the ranks read afterwards. During a crash the interfaces stop as well: queued messages do
    not leave, messages to the ranks wait in the network, and afterwards the ranks resume from their
    state. During a partition, messages between the ranks and all other ranks wait in the network.

    what: slow_node | slow_link | pause | crash | partition
    ranks: affected ranks
    start: seconds of the run's clock
    end: seconds of the run's clock; null: never
    factor: slow-down of a slow_node or slow_link
    """

    what: Literal["slow_node", "slow_link", "pause", "crash", "partition"]
    ranks: Sequence[int]
    start: Seconds = 0.0
    end: Seconds | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ConfigError("faults.events.ranks", f"a {self.what} needs ranks, such as [0].")
        check_not_negative("faults.events.start", self.start)
        if not self.start < self.stop:
            raise ConfigError(
                "faults.events.end",
                f"{self.end} must be after the start, {self.start}; null: never.",
            )
        if self.what.startswith("slow") == (self.factor is None):
            need = f"a {self.what} needs one" if self.factor is None else f"a {self.what} has none"
            raise ConfigError(
                "faults.events.factor", f"{need}; slow_node and slow_link have a factor."
            )
        if self.factor is not None:
            check_factor("faults.events.factor", self.factor)

    @property
    def stop(self) -> float:
        return inf if self.end is None else self.end

    def parts(self, src: int, dst: int) -> bool:
        """Return whether the event holds back messages from ``src`` to ``dst``."""
        if self.what == "partition":
            return (src in self.ranks) != (dst in self.ranks)
        return self.what == "crash" and dst in self.ranks


@dataclass(frozen=True)
class Faults:
    """The faults of a run.

    slow_nodes: {rank: factor}: gradients of the rank take factor times longer during the whole run
    slow_links: {rank: factor}: bandwidth of the rank is divided by factor during the whole run
    events: faults with a start and an end, each {what: ..., ranks: [...], start: s, end: s or null,
        factor: ...}; what is one of slow_node (gradients take factor times longer), slow_link
        (messages take factor times longer), pause (the ranks compute, send and read nothing), crash
        (a pause in which nothing leaves or enters the ranks' interfaces) and partition (messages
        between the ranks and all other ranks wait)
    churn_per_hour: mean number of crashes of a node per hour of presence, at exponentially
        distributed intervals; a parameter server never leaves
    absence_seconds: s; mean time until a node returns, exponentially distributed
    trace: path of a file of lines ``milliseconds,add|remove,node``, relative to the working
        directory; a node is in a crash until it joins and after it leaves
    trace_sha256: required checksum of the file; null: any checksum; config.yaml records it
    delay_seconds: s; mean extra travel time of a message. Messages from one sender to one receiver
        stay in order
    delay_law: constant | exponential | uniform (from 0 to twice the mean)
    drop_probability: probability that a message is lost
    resend_seconds: s until a lost message is sent again (0.2: the minimum of TCP on Linux),
        possibly more than once; null: never, which requires a run without losses
    """

    slow_nodes: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[int, float] = field(default_factory=dict)
    events: Sequence[Event] = ()
    delay_seconds: Seconds = 0.0
    delay_law: Literal["constant", "exponential", "uniform"] = "constant"
    drop_probability: float = 0.0
    resend_seconds: Seconds | None = 0.2
    churn_per_hour: float = 0.0
    absence_seconds: Seconds = 600.0
    trace: str | None = None
    trace_sha256: str | None = None
    read: ClassVar[SpotTrace | None] = None  # of the file

    def __post_init__(self) -> None:
        if self.trace is not None:
            trace = read_trace(self.trace, self.trace_sha256)
            vars(self).update(read=trace, trace_sha256=trace.sha256)
        for key, factors in (("slow_nodes", self.slow_nodes), ("slow_links", self.slow_links)):
            for rank, factor in factors.items():
                check_factor(f"faults.{key}.{rank}", factor)
        for key in ("delay_seconds", "churn_per_hour"):
            check_not_negative(f"faults.{key}", getattr(self, key))
        check_positive("faults.absence_seconds", self.absence_seconds)
        if self.churn_per_hour:
            check_power("faults.churn_per_hour", self.churn_per_hour, -2)
        if not 0 <= self.drop_probability < 1:
            raise ConfigError(
                "faults.drop_probability", f"{self.drop_probability} must be in [0, 1)."
            )
        if self.resend_seconds is not None:
            check_positive("faults.resend_seconds", self.resend_seconds)
        elif self.drop_probability:
            raise ConfigError(
                "faults.resend_seconds",
                "no algorithm tolerates a message that is lost permanently: all wait for it, "
                "and push-sum would lose mass; use a time, such as 0.2.",
            )

    def subset(self, new: Mapping[int, int]) -> Faults:
        """Return the faults restricted to the ranks in ``new``, a map from old to new ranks."""
        events = [
            replace(event, ranks=[new[rank] for rank in event.ranks if rank in new])
            for event in self.timed
            if {*event.ranks} & {*new}
        ]
        return replace(
            self,
            slow_nodes={
                new[rank]: factor for rank, factor in self.slow_nodes.items() if rank in new
            },
            slow_links={
                new[rank]: factor for rank, factor in self.slow_links.items() if rank in new
            },
            events=[
                event
                for event in events
                if event.what != "partition" or len(event.ranks) < len(new)
            ],
            trace=None,
            trace_sha256=None,
        )

    def check(self, nodes: int, servers: int) -> None:
        """Raise ConfigError for ranks that the run does not have.

        A parameter server has a link but computes no gradients.
        """
        ranks, trace = nodes + servers, self.read
        if trace is not None and trace.most != nodes:
            raise ConfigError(
                "faults.trace",
                f"{trace.line}: {trace.most} nodes are present, the most in the trace, and the run "
                f"has {nodes}: use nodes={trace.most}.",
            )
        check_ranks("faults.slow_nodes", self.slow_nodes, nodes)
        check_ranks("faults.slow_links", self.slow_links, ranks)
        for i, event in enumerate(self.events):
            key, most = f"faults.events[{i}].ranks", nodes if event.what == "slow_node" else ranks
            if strangers := [rank for rank in event.ranks if not 0 <= rank < most]:
                raise ConfigError(key, f"the run has no rank {strangers[0]}; use 0 to {most - 1}.")
            if event.what == "partition" and len(set(event.ranks)) == ranks:
                raise ConfigError(key, "a partition has two sides; list the ranks of only one.")

    def check_real(self, nodes: int) -> None:
        """Raise ConfigError for faults that only the simulator supports."""
        others = {
            "slow_link": self.slow_links,
            "delay_seconds": self.delay_seconds,
            "drop_probability": self.drop_probability,
            "churn_per_hour": self.churn_per_hour,
        }
        names = [name for name, value in others.items() if value] + [
            event.what for event in self.timed if event.what not in REAL
        ]
        if names:
            raise ConfigError(
                "faults",
                f"only the simulator supports {names[0]}: use network=sim; "
                "real runs support slow_node and pause.",
            )
        for i, event in enumerate(self.events):
            if event.what == "pause" and (event.end is None or max(event.ranks) >= nodes):
                what = "of a server" if event.end is not None else "that never ends"
                raise ConfigError(
                    f"faults.events[{i}]",
                    f"only the simulator supports a pause {what}: use network=sim.",
                )

    @property
    def any(self) -> bool:
        return bool(self.all_events or self.disturbs_messages or self.churn_per_hour)

    @property
    def timed(self) -> tuple[Event, ...]:
        """The events and the crashes of the trace."""
        absences = self.read.absences if self.read is not None else ()
        return *self.events, *(
            Event("crash", (rank,), leaves, None if back == inf else back)
            for rank, leaves, back in absences
        )

    @property
    def disturbs_messages(self) -> bool:
        return self.delay_seconds > 0 or self.drop_probability > 0

    @property
    def all_events(self) -> tuple[Event, ...]:
        nodes = [
            Event("slow_node", (rank,), factor=factor) for rank, factor in self.slow_nodes.items()
        ]
        links = [
            Event("slow_link", (rank,), factor=factor) for rank, factor in self.slow_links.items()
        ]
        return *nodes, *links, *self.timed

    @property
    def deaths(self) -> list[Event]:
        """The crashes that never end."""
        return [event for event in self.timed if event.what == "crash" and event.end is None]

    @property
    def for_good(self) -> list[str]:
        """Descriptions of the faults that never end and may cause a deadlock."""
        phrases = {
            "pause": "are paused",
            "crash": "are down",
            "partition": "are cut off from the others",
        }
        lasting = [event for event in self.timed if event.end is None and event.what in phrases]
        return [
            f"ranks {list(event.ranks)} {phrases[event.what]} permanently, from {event.start} s on"
            for event in lasting
        ]

    def extra_seconds(self, random: Generator, shape: tuple[int, ...] = ()) -> Any:
        """Draw the extra delays of messages in seconds: float64 of ``shape``."""
        match self.delay_law:
            case "constant":
                delay: Any = self.delay_seconds
            case "exponential":
                delay = random.exponential(self.delay_seconds, shape)
            case "uniform":
                delay = 2 * random.uniform(0, self.delay_seconds, shape)
        losses = random.geometric(1 - self.drop_probability, shape) - 1
        return delay + losses * (self.resend_seconds or 0.0)


def check_factor(key: str, factor: float) -> None:
    if not 1 <= factor < inf:
        raise ConfigError(key, f"{factor} must be at least 1 and finite.")

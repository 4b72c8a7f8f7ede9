"""Simulation of another algorithm with the recorded times of a real run.

The k-th gradient of a node takes as long as the node's k-th recorded gradient; after the last, the
recorded durations repeat. The messages on a link take the recorded delays of the closest size on
this link, in order; for a link without recorded messages, the delays of all other links are used.
All-reduces follow the formulas of the settings' ``cluster.collectives`` (``algorithm``,
``overlap``, ``bucket_bytes``), with the bandwidth of the recorded messages. Everything else takes
no time, as in all simulations. Queueing is not simulated, because recorded delays include it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from sgp_runner.assembly.build import timing_problem
from sgp_runner.assembly.networks.sim import Sim
from sgp_runner.assembly.simulated.times import simulate_times
from sgp_runner.cluster.collectives import Collectives
from sgp_runner.cluster.compute_variation import ConstantTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.links import Links
from sgp_runner.cluster.nodes import StepTimes
from sgp_runner.cluster.timed_as import TimedAs
from sgp_runner.config.experiment import load_experiment, make_experiment
from sgp_runner.config.plugins.loading import KEY
from sgp_runner.config.run import Run
from sgp_runner.core.timing_study import Study
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.recording.trace import Recording, read_recordings
from sgp_runner.simulator.machine_model import GivenTimes
from sgp_runner.utils.errors import ConfigError

MAY_CHANGE = (
    "algo",
    "optim",
    "epochs",
    "cluster.collectives.algorithm",
    "cluster.collectives.overlap",
    "cluster.collectives.bucket_bytes",
)
# (src, dst) -> (bytes, seconds) of its messages, in their order
Delays = Mapping[tuple[int, int], Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Retimed:
    """Times of the simulated run and the recorded run.

    time_s: simulated seconds
    recorded_s: wall-clock seconds of the recorded run, without evaluation
    """

    algorithm: str
    recorded_algorithm: str
    steps: int
    time_s: float
    recorded_s: float

    @property
    def facts(self) -> dict[str, object]:
        return {
            **vars(self),
            "clock": "simulated",
            "label": "time simulated on recorded compute times and message delays",
        }


def retime(directory: Path, argv: Sequence[str] = ()) -> Retimed:
    """Simulate the run in ``directory`` with the settings ``argv``, for example ``algo=sgp``.

    Raises ConfigError if the recording does not determine the time.
    """
    experiment = load_experiment(directory / "config.yaml", None)
    recordings = read_recordings(directory, experiment)
    run = make_experiment(changed(experiment.config, argv)).run
    if not all(recording.footer.ended for recording in recordings):
        raise ConfigError(
            "record", "the recorded run failed before its end, so there is no time to compare with."
        )
    recorded_s = max(recording.footer.time for recording in recordings)
    steps, time_s = simulated_time(run, recordings)
    return Retimed(run.algo.title, experiment.run.algo.title, steps, time_s, recorded_s)


def changed(config: Mapping[str, object], argv: Sequence[str]) -> dict[str, Any]:
    """Return a recorded configuration with overrides applied; the new run is not recorded."""
    from sgp_runner.config.command_line import parse
    from sgp_runner.config.overrides import compose, configs

    with configs():
        settings = parse(argv)
        for setting in settings:
            if setting.swept:
                raise ConfigError(setting.name, "a sweep cannot be timed; give one value.")
            if not any(f"{setting.name}.".startswith(f"{key}.") for key in MAY_CHANGE):
                others = f"{', '.join(MAY_CHANGE[:-1])} and {MAY_CHANGE[-1]}"
                raise ConfigError(
                    setting.name,
                    f"the recorded times hold for its recorded value; only {others} may change.",
                )
        composed = compose(settings)
    tree = {**config, "record": False}
    tree.pop(KEY, None)  # the new settings may use other plug-ins
    return with_settings_of(composed, [setting.name for setting in settings], tree)


def with_settings_of(
    source: Mapping[str, Any], keys: Sequence[str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``config`` with ``keys``, such as ``cluster.hosts``, copied from ``source``."""
    tree = deepcopy(dict(config))
    for key in keys:
        *parents, name = key.split(".")
        target, values = tree, source
        for parent in parents:
            target, values = target.setdefault(parent, {}), values[parent]
        if name in values:
            target[name] = values[name]
        else:  # an empty group is not stored
            target.pop(name, None)
    return tree


def simulated_time(run: Run, recordings: Sequence[Recording]) -> tuple[int, float]:
    """Return the number of steps per node, and the simulated seconds."""
    header, delays = recordings[0].header, delays_of(recordings)
    if not delays and run.ranks > 1:
        raise ConfigError(
            "record",
            "the recorded run sent no messages, so there are no delays to time others by.",
        )
    steps = max(1, round(run.epochs * header.steps_per_epoch))
    run = replace(
        run,
        model=TimingOnly(grain=min(2048, header.parameters), sample_steps=None),
        network=Sim(),
        cluster=machines(run.cluster, delays)
        if delays
        else replace(run.cluster, hosts=replace(run.cluster.hosts, serving_seconds_per_byte=0.0)),
        faults=Faults(),
        timed_as=TimedAs(num_parameters=max(1, header.num_bytes // 4)),
        dtype="float32",
    )
    problem = timing_problem(run, Study(None, steps))
    message_seconds = RecordedDelays(delays) if delays else None
    times = GivenTimes(1.0, recorded_gradients(recordings[: run.nodes]), message_seconds)
    simulation, _ = simulate_times(run, problem, times)
    simulation.run()
    return steps, simulation.clock.now


def recorded_gradients(recordings: Sequence[Recording]) -> Callable[[int], float]:
    """Return a function that returns the recorded duration of a rank's next gradient.

    The durations of a rank follow their recorded order and then repeat."""
    by_rank = [
        [event.seconds for event in recording.events if event.kind == "gradient"]
        for recording in recordings
    ]
    together = [seconds for durations in by_rank for seconds in durations]
    # A node may have drawn no step from a shared budget.
    seconds = [cycle(durations or together) for durations in by_rank]
    return lambda rank: next(seconds[rank])


class RecordedDelays:
    """Recorded message delays; a call returns the delay of the next message.

    The delay is one from ``src`` to ``dst``, recorded at the size closest to ``num_bytes``."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays
        self.everywhere = [message for pair in sorted(delays) for message in delays[pair]]
        self.chosen: dict[tuple[int, int, float], Iterator[float]] = {}

    def __call__(self, src: int, dst: int, num_bytes: float) -> float:
        key = src, dst, num_bytes
        if key not in self.chosen:
            recorded = self.delays.get((src, dst), self.everywhere)
            closest = min(
                (size for size, _ in recorded), key=lambda size: (abs(size - num_bytes), size)
            )
            self.chosen[key] = cycle([seconds for size, seconds in recorded if size == closest])
        return next(self.chosen[key])


def delays_of(recordings: Sequence[Recording]) -> Delays:
    """Return the delay of each message, after synchronizing the clocks of different machines.

    For each sender, receiver and tag, the n-th received message is the n-th sent message. If the
    ranks of two machines sent in both directions, the clocks are shifted so that the fastest
    messages in both directions took equally long (as in NTP). Negative delays become 0.
    """
    arrived: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for recording in recordings:
        for event in recording.events:
            if event.kind == "message":
                arrived[event.src, recording.header.rank, event.tag].append(event.arrived)
    seen: dict[tuple[int, int, int], int] = defaultdict(int)
    out: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for recording in recordings:
        src = recording.header.rank
        for send in recording.sends:
            channel = src, send.dst, send.tag
            number = seen[channel]
            seen[channel] += 1
            if number < len(arrived[channel]):
                out[src, send.dst].append((send.num_bytes, arrived[channel][number] - send.sent))
    hosts = [recording.header.host for recording in recordings]
    fastest = {pair: min(seconds for _, seconds in messages) for pair, messages in out.items()}

    def ahead(src: int, dst: int) -> float:
        """Return the seconds by which the clock of ``dst`` is ahead of the clock of ``src``."""
        if hosts[src] == hosts[dst] or (dst, src) not in fastest:
            return 0.0
        return (fastest[src, dst] - fastest[dst, src]) / 2

    return {
        (src, dst): [(size, max(0.0, seconds - ahead(src, dst))) for size, seconds in messages]
        for (src, dst), messages in sorted(out.items())
    }


def machines(cluster: Cluster, delays: Delays) -> Cluster:
    """Return a cluster that determines the times of all-reduces.

    The bandwidth is derived from the largest messages. The latency is derived from the smallest
    messages if they are over 100 times smaller, and is 0 otherwise.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for messages in delays.values():
        for size, seconds in messages:
            by_size[size].append(seconds)
    small, large = min(by_size), max(by_size)
    latency = median(by_size[small]) if 100 * small < large else 0.0
    bandwidth = 8 * max(1, large) / max(median(by_size[large]) - latency, 1e-9)
    collectives = cluster.collectives
    return Cluster(
        ConstantTime(),
        StepTimes({"default": 1.0}),
        Links(bandwidth, latency),
        Collectives(
            collectives.algorithm,
            overlap=collectives.overlap,
            bucket_bytes=collectives.bucket_bytes,
        ),
        name="recorded",
    )

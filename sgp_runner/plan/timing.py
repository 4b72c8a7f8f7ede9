"""Times, messages and memory of a method, from the simulator.

A plan simulates at least one full cycle of the algorithm's communication, with the same code as a
timing study. It has no timing model of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from sgp_runner.cluster.compute_variation import ConstantTime
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.regions import as_list
from sgp_runner.config.run import Run
from sgp_runner.core.comm import Transport
from sgp_runner.core.scheduler import Future
from sgp_runner.core.timing_study import Study
from sgp_runner.core.worker import Worker
from sgp_runner.plan.device_memory import STATE
from sgp_runner.plan.methods import SAVES
from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    from torch import Tensor

# Least number of simulated steps of which the mean is taken, if compute times are constant or vary.
LEAST_STEPS, LEAST_VARYING_STEPS = 8, 128
LEAST_OF_PHASES = 40  # if the messages change with the epoch, as after a warm-up
# Steps of a run of an asynchronous algorithm, whose whole time counts.
ASYNCHRONOUS_STEPS = 200
TAIL = 2  # further steps, so that the end of a run is not part of the mean
SLOWEST, FASTEST = 1e5, 1e13  # bit/s; break-even rates are searched between them
HALVINGS = 3  # of the bracket of a rate, a factor of 8, before interpolation: to a few percent
HIDDEN = 1 + 1e-9  # times of steps in which nothing but the gradient takes time, relative to it


@dataclass(frozen=True)
class Timing:
    """The costs of a node's mean step.

    seconds: simulated time. compute: time for the gradient. num_bytes: bytes that a node sends.
    coding: time for encoding and decoding
    traffic_price: price of the bytes, of all nodes, that leave their region
    vectors: number of model-sized vectors that a worker holds, by category: state of its optimizer
        and of the algorithm, and the copy that is exchanged
    whole: simulated time of all steps
    """

    seconds: float
    compute: float
    num_bytes: float
    coding: float
    traffic_price: float
    vectors: Mapping[str, float]
    whole: float

    @property
    def computing(self) -> float:
        """The fraction of the time that a node spends computing."""
        return min(1.0, self.compute / self.seconds)


class Ends:
    """Listener that records times at the ends of steps, with the bytes and price of the traffic."""

    def __init__(self, nodes: int, warm_up: int, measured: int) -> None:
        self.marks = {warm_up * nodes, (warm_up + measured) * nodes}
        self.ended = 0
        self.workers: dict[int, Worker] = {}
        self.readings: list[tuple[float, float, float]] = []
        self.traffic_price: Callable[[], float] = lambda: 0.0

    def start_of_step(self, worker: Worker) -> None:
        self.workers[worker.rank] = worker

    def end_of_step(self, worker: Worker) -> None:
        self.ended += 1
        if self.ended in self.marks:
            self.readings.append((worker.now, self.num_bytes, self.traffic_price()))

    @property
    def num_bytes(self) -> float:
        """The bytes that all workers have sent."""
        return sum(worker.comm.num_bytes_sent for worker in self.workers.values())


def time_steps(run: Run) -> Timing:
    """Return the timing of the mean step of ``run``, a timing study, after its first period."""
    from sgp_runner.assembly.build import timing_problem
    from sgp_runner.assembly.simulated.times import simulate_times

    problem = timing_problem(run, Study(None, sum(steps := steps_of(run)) + TAIL))
    ends = Ends(run.nodes, *steps)
    largest = [0]
    simulation, workers = simulate_times(
        run, problem, wrap=lambda transport: Noting(transport, largest), listener=ends
    )
    ends.traffic_price = lambda: simulation.fabric.traffic_price
    simulation.run()
    if run.algo.asynchronous:  # messages may fall ever further behind the gradients
        whole = simulation.now(), ends.num_bytes, ends.traffic_price()
        ends.readings = [(0.0, 0.0, 0.0), whole]
    (begin, before, free), (end, after, price) = ends.readings
    counted = sum(steps) + TAIL if run.algo.asynchronous else steps[1]
    return Timing(
        (end - begin) / counted,
        run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size),
        (after - before) / counted / run.nodes,
        sum_in_order(simulation.coding_seconds[: run.nodes]) / run.nodes / (sum(steps) + TAIL),
        (price - free) / counted,
        vectors_of(workers[0], largest[0]),
        simulation.now(),
    )


def steps_of(run: Run) -> tuple[int, int]:
    """Return the number of warm-up steps, and the number of steps to average over."""
    algo, nodes = run.algo, run.nodes
    if algo.asynchronous:
        return 0, ASYNCHRONOUS_STEPS - TAIL
    constant = isinstance(run.cluster.compute_time, ConstantTime)
    least = LEAST_STEPS if constant else LEAST_VARYING_STEPS
    cycle = algo.cycle(nodes)
    if cycle is None:  # random peers, for example
        cycle = getattr(algo, "period", 1)
        least = max(least, LEAST_OF_PHASES if len(algo.phases(nodes)) > 1 else LEAST_VARYING_STEPS)
        return cycle, cycle * ceil(least / cycle)
    return max(steps for _, steps in algo.phases(nodes)), cycle * ceil(least / cycle)


class Noting(Transport):
    """Transport that records the size in bytes of the largest vector sent at once."""

    def __init__(self, base: Transport, largest: list[int]) -> None:
        self.base, self.largest = base, largest

    def noted(self, tensor: Tensor) -> Tensor:
        self.largest[0] = max(self.largest[0], tensor.nbytes)
        return tensor

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        return self.base.send(dst, tag, self.noted(message))

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.base.all_reduce(number, self.noted(tensor))

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.base.all_gather(number, self.noted(tensor))


def vectors_of(worker: Worker, copy: float) -> dict[str, float]:
    """Return the vectors that ``worker`` holds, by category, in multiples of its parameters.

    copy: bytes of the largest vector that workers exchange at once
    """
    total = worker.params.numel()
    vectors = {"optimizer": sum(entries(worker.buffers)) / total}
    for name, value in worker.state.items():
        part = STATE.get(name, "other")
        vectors[part] = vectors.get(part, 0.0) + sum(entries(value)) / total
    vectors["averaged copy"] = copy / worker.params.nbytes
    return vectors


def entries(value: Any) -> Iterator[int]:
    """Yield the number of entries of each vector in a worker's state, excluding counters."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from entries(item)
    elif hasattr(value, "numel") and value.numel() > 1:
        yield value.numel()


def with_rate(cluster: Cluster, rate: float) -> Cluster:
    """Return a cluster with interfaces of ``rate`` bit/s; all its rates are scaled accordingly.

    The rates of links between sites, which do not depend on an interface, stay the same.
    """
    links, laws = cluster.links, cluster.collectives
    factor = rate / links.rate

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    links = replace(
        links,
        bandwidth=rate,
        bandwidth_up=scaled(links.bandwidth_up),
        bandwidth_down=scaled(links.bandwidth_down),
        node_bandwidth_up={
            rank: node_rate * factor for rank, node_rate in links.node_bandwidth_up.items()
        },
        node_bandwidth_down={
            rank: node_rate * factor for rank, node_rate in links.node_bandwidth_down.items()
        },
    )
    laws = replace(laws, all_reduce_bandwidth=scaled(laws.all_reduce_bandwidth))
    return replace(cluster, links=links, collectives=laws)


def with_site_rate(cluster: Cluster, rate: float) -> Cluster:
    """Return the cluster with ``rate`` bit/s on the slowest link between sites.

    All links between sites are scaled by the same factor.
    """
    factor = rate / min(site_rate for _, site_rate, _ in cluster.links.crossings())
    regions = tuple(
        replace(
            region,
            bandwidth_up=[site_rate * factor for site_rate in as_list(region.bandwidth_up)],
            bandwidth_down=region.bandwidth_down * factor,
        )
        for region in cluster.links.regions
    )
    return replace(cluster, links=replace(cluster.links, regions=regions))


def with_latency(cluster: Cluster, seconds: float) -> Cluster:
    """Return a cluster with a latency of ``seconds`` between sites, or without sites everywhere.

    If links between sites differ in latency, the longest becomes ``seconds`` and all are scaled.
    """
    links, laws = cluster.links, cluster.collectives
    if not links.crossings():
        measured = laws.all_reduce_latency_seconds
        if measured is not None:
            measured += seconds - links.latency_seconds
            laws = replace(laws, all_reduce_latency_seconds=max(0.0, measured))
        return replace(cluster, links=replace(links, latency_seconds=seconds), collectives=laws)
    longest = latency_of(cluster)

    def scaled(value: float) -> float:
        return value / longest * seconds if longest else seconds

    regions = tuple(
        replace(region, latency_seconds=[*map(scaled, as_list(region.latency_seconds))])
        for region in links.regions
    )
    return replace(cluster, links=replace(links, regions=regions))


def latency_of(cluster: Cluster) -> float:
    """Return the latency that `with_latency` sets, in seconds."""
    links = cluster.links
    return max(
        (latency - links.message_overhead_seconds for latency, *_ in links.crossings()),
        default=links.latency_seconds,
    )


def at_rate(run: Run, rate: float) -> Run:
    """Return ``run`` with its slow links, between sites or else the interfaces, at ``rate``."""
    change = with_site_rate if run.cluster.links.crossings() else with_rate
    return replace(run, cluster=change(run.cluster, rate))


class TimesByRate:
    """Step times of a run by the rate of its slow links, each simulated once.

    If the gradient hides all communication at one rate, it does so at higher rates too.
    """

    def __init__(self, run: Run, seconds: float) -> None:
        """Start with the known ``seconds`` per step at the current rate."""
        self.run = run
        self.compute = run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
        self.seconds = {rate_of(run): seconds}

    def at(self, rate: float) -> float:
        """Return the seconds per step at ``rate``."""
        if rate not in self.seconds:
            hidden = any(
                other <= rate and seconds <= HIDDEN * self.compute
                for other, seconds in self.seconds.items()
            )
            self.seconds[rate] = (
                self.compute if hidden else time_steps(at_rate(self.run, rate)).seconds
            )
        return self.seconds[rate]

    def bounds(self, rate: float) -> tuple[float, float]:
        """Return a lower and an upper bound on the seconds per step at ``rate``.

        A step takes no longer at a higher rate, and is never shorter than its gradient.
        """
        if rate in self.seconds or self.run.algo.asynchronous:
            return self.at(rate), self.at(rate)
        slower = (seconds for other, seconds in self.seconds.items() if other < rate)
        faster = (seconds for other, seconds in self.seconds.items() if other > rate)
        return max(self.compute, *faster, 0.0), min(slower, default=inf)


def highest_rate(
    gain: Callable[[float], float], start: float, pays: Callable[[float], bool] | None = None
) -> float:
    """Return the highest rate at which ``gain`` is positive; 0 or inf beyond the range.

    pays: returns whether the gain is positive; default: evaluate ``gain``

    ``gain`` has one change of sign. The search begins at ``start``, brackets the rate by factors of
    8, and halves the bracket in the logarithm of the rate, so that searches from the same rate try
    the same rates. Finally it interpolates linearly in 1 / rate, as times are nearly linear in it.
    """
    pays = pays or (lambda rate: gain(rate) > 0)
    here = pays(start)
    end, factor = (FASTEST, 8.0) if here else (SLOWEST, 1 / 8)
    if pays(end) == here:
        return inf if here else 0.0
    rate = start
    while pays(rate * factor) == here:
        rate *= factor
    low, high = sorted([rate, rate * factor])
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) else (low, middle)
    share = gain(low) / (gain(low) - gain(high))
    return 1 / ((1 - share) / low + share / high)


def rate_of(run: Run) -> float:
    """Return the rate of the slow links of ``run`` (see `at_rate`)."""
    links = run.cluster.links
    return min((rate for _, rate, _ in links.crossings()), default=links.rate)


def half_computing_rate(times: TimesByRate) -> float:
    """Return the rate below which a node computes less than half of the time."""
    return highest_rate(lambda rate: times.at(rate) - 2 * times.compute, rate_of(times.run))


def break_even(times: TimesByRate, data_parallel: TimesByRate) -> float:
    """Return the rate below which a run saves `SAVES` of the time of ``data_parallel``."""

    def gain(rate: float) -> float:
        return (1 - SAVES) * data_parallel.at(rate) - times.at(rate)

    def pays(rate: float) -> bool:
        """Return whether there is a gain, without simulating if the bounds suffice."""
        least, most = times.bounds(rate)
        goal = (1 - SAVES) * data_parallel.at(rate)
        return most < goal or (least < goal and gain(rate) > 0)

    return highest_rate(gain, rate_of(times.run), pays)

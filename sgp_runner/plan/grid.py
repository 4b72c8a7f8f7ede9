"""The grid of timing studies behind the explorer, over rates, latencies, nodes and H."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log
from typing import Any

from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.plan.comparison import PlannedMethods
from sgp_runner.plan.known_quality import all_known, is_near, near_until, without_period
from sgp_runner.plan.methods import DATA_PARALLEL, Method, method
from sgp_runner.plan.request import Request, machines, read_request
from sgp_runner.plan.timing import HIDDEN, at_rate, latency_of, rate_of, time_steps, with_latency
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.messages import logger

# Axes of the grid; the nearest value of each is replaced by that of the request.
RATES = (1e8, 3e8, 1e9, 3e9, 1e10, 3e10, 1e11, 3e11)  # bit/s
LATENCIES = (50e-6, 1e-3, 10e-3, 100e-3)  # s
NODES = (2, 4, 8, 16, 32)
PERIODS = (10, 30, 50, 100, 200, 500)  # H
START = 100  # H at which the explorer begins
# Methods from the simplest on: of those that are nearly as fast as the fastest, the first counts.
# DiLoCo and Streaming DiLoCo have the H of the grid.
EXPLORED = (
    DATA_PARALLEL,
    method("DiLoCo", "diloco"),
    method("Streaming DiLoCo, FP4", "streaming_diloco", "codec=fp4"),
    method("PowerSGD, rank 2", "powersgd", "rank=2"),
    method("SGP", "sgp"),
    method("OSGP, tau 1", "osgp", "tau=1"),
)
PERIODIC = ("diloco", "streaming_diloco")
LEAST_LATENCY = 1e-6  # s; a shorter one is as far on a logarithmic axis


@dataclass(frozen=True)
class Axes:
    """The values of a grid, each in increasing order."""

    rates: Sequence[float]
    latencies: Sequence[float]
    nodes: Sequence[int]
    periods: Sequence[int]


def axes_of(arguments: Sequence[str], search: Sequence[str], request: Request) -> Axes:
    """Return the axes of a grid for ``request``, which was read from ``arguments``.

    A profile with regions supports only one number of nodes.
    """
    run = experiment_of([*request.overrides, *DATA_PARALLEL.overrides]).run
    rates = including(RATES, rate_of(run))
    latencies = including(LATENCIES, latency_of(run.cluster))
    nodes = [
        count
        for count in including(NODES, request.nodes)
        if count == request.nodes or can_plan([*arguments, f"nodes={count}"], search)
    ]
    return Axes(rates, latencies, list(map(round, nodes)), PERIODS)


def including(values: Sequence[float], point: float) -> list[float]:
    """Return ``values`` with the one nearest to ``point`` on a log scale replaced by it."""

    def distance(value: float) -> float:
        return abs(log(max(value, LEAST_LATENCY) / max(point, LEAST_LATENCY)))

    return sorted({point, *values} - ({min(values, key=distance)} - {point}))


def can_plan(arguments: Sequence[str], search: Sequence[str]) -> bool:
    try:
        read_request(arguments, search)
    except ConfigError:
        return False
    return True


def simulated_grid(
    arguments: Sequence[str],
    search: Sequence[str] = (),
    axes: Axes | None = None,
    plan: PlannedMethods | None = None,
) -> dict[str, Any]:
    """Simulate a grid of timing studies and return it as plain data.

    The times of a method are in one list, in the order of nodes, latency, rate and, if the method
    has it, H. A time is None if the method cannot run.

    arguments, search: as for `read_request`
    axes: default: the axes from `axes_of`
    plan: plan of the request; the page initially shows its answer and the answer's H, and never
        suggests methods that do not fit
    """
    request = read_request(arguments, search)
    best = None if plan is None else plan.best
    period = START if best is None else without_period(best.method.overrides)[1] or START
    rows = () if plan is None else plan.rows
    too_large = [without_period(row.method.overrides)[0] for row in rows if not row.fits]
    axes = axes or axes_of(arguments, search, request)
    run = experiment_of([*request.overrides, *DATA_PARALLEL.overrides]).run
    wanted = {method.algorithm for method in request.methods}
    explored = [method for method in EXPLORED if method.algorithm in wanted]
    budget = request.budget
    return {
        "machines": machines(request),
        "parameters": request.parameters,
        "sites": request.sites,
        "rates": list(axes.rates),
        "latencies": list(axes.latencies),
        "nodes": list(axes.nodes),
        "periods": list(axes.periods),
        "start": {
            "rate": rate_of(run),
            "latency": latency_of(run.cluster),
            "nodes": request.nodes,
            "period": min(axes.periods, key=lambda other: abs(other - period)),
        },
        "answer": None if plan is None else plan.answer,
        "compute": run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size),
        "budget": {
            "steps": budget.steps,
            "divided": not any(word.startswith("steps=") for word in arguments),
            "price_per_hour": budget.price_per_hour,
            "watts": budget.watts,
            "kwh_price": budget.kwh_price,
        },
        "assumed": list(request.assumed),
        "methods": [
            grid_entry(
                method,
                list(times(announced(method, number, len(explored)), arguments, search, axes)),
                without_period(method.overrides)[0] not in too_large,
            )
            for number, method in enumerate(explored, start=1)
        ],
    }


def announced(method: Method, number: int, count: int) -> Method:
    """Log that a method is simulated next, and return it."""
    logger.info(f"explorer: {method.title} ({number} of {count} methods)")
    return method


def near_of(method: Method, fits: bool) -> bool | int:
    """Return whether a method may be the answer; for methods with H, the largest such H."""
    if method.algorithm in PERIODIC:
        return near_until(method) if fits else 0
    return fits and (method is DATA_PARALLEL or is_near(method))


def grid_entry(method: Method, seconds: list[float | None], fits: bool) -> dict[str, Any]:
    """Return the entry of a method in the grid, as plain data."""
    return {
        "title": method.title,
        "periodic": method.algorithm in PERIODIC,
        "near": near_of(method, fits),
        "quality": [
            f"{' '.join(overrides.split()[1:])}: {figure.text}".removeprefix(": ")
            for overrides, figures in all_known().items()
            if overrides.split()[0] == method.overrides[0]
            for figure in figures
        ],
        "seconds": seconds,
    }


def times(
    method: Method, arguments: Sequence[str], search: Sequence[str], axes: Axes
) -> Iterator[float | None]:
    """Yield a method's seconds per step, in the order of `simulated_grid`."""
    for nodes in axes.nodes:
        request = read_request([*arguments, f"nodes={nodes}"], search)
        seconds: dict[tuple[float, float, int], float | None] = {}
        try:
            run = experiment_of([*request.overrides, *method.overrides]).run
            seconds = simulated(run, axes, axes.periods if method.algorithm in PERIODIC else (0,))
        except (ConfigError, RankFailed):
            pass
        for latency, rate in product(axes.latencies, axes.rates):
            for period in axes.periods if method.algorithm in PERIODIC else (0,):
                yield seconds.get((latency, rate, period))


def simulated(
    run: Run, axes: Axes, periods: Sequence[int]
) -> dict[tuple[float, float, int], float | None]:
    """Return the seconds per step by latency, rate and H.

    If communication is hidden behind the gradient even at a longer latency, a lower rate and a
    smaller H, it is hidden here too, and nothing is simulated.

    periods: values of H; (0,) if the algorithm has none
    """
    seconds: dict[tuple[float, float, int], float | None] = {}
    hidden: list[tuple[float, float, int]] = []
    for latency, rate, period in product(reversed(axes.latencies), axes.rates, periods):
        here = latency, rate, period
        worse = [
            point
            for point in hidden
            if point[0] >= latency and point[1] <= rate and point[2] <= period
        ]
        if worse:
            seconds[here] = seconds[worse[0]]
            continue
        at = at_rate(replace(run, cluster=with_latency(run.cluster, latency)), rate)
        if period:
            algo: Any = at.algo
            at = replace(at, algo=replace(algo, period=period))
        timing = time_steps(at)
        seconds[here] = float(f"{timing.seconds:.6g}")
        if timing.seconds <= HIDDEN * timing.compute < inf:
            hidden.append(here)
    return seconds

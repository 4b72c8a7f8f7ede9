"""The comparison of methods on the machines of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite

from sgp_runner.config.overrides import experiment_of, prepare_algorithms
from sgp_runner.plan.fault_costs import FaultCosts, fault_costs
from sgp_runner.plan.known_quality import NEAR, is_near, known_quality
from sgp_runner.plan.methods import DATA_PARALLEL, Method
from sgp_runner.plan.request import Request
from sgp_runner.plan.timing import (
    SAVES,
    TimesByRate,
    Timing,
    break_even,
    half_computing_rate,
    time_steps,
)
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.units import bit_rate

STATE_BYTES = 4  # of a number of parameters, gradients and state: float32


@dataclass(frozen=True)
class MethodCost:
    """A method on the machines of a request.

    pays_below: bit/s of the slow links below which the method saves `SAVES` of the time of data
        parallel; None for data parallel itself
    hours, kwh, cost: of the budget, for all nodes; None without a budget or a price
    memory: bytes of a device for parameters, gradient, optimizer and method
    faults: costs of faults; None: not known
    """

    method: Method
    timing: Timing
    pays_below: float | None
    hours: float | None
    kwh: float | None
    cost: float | None
    memory: Mapping[str, float]
    faults: FaultCosts | None = None

    @property
    def time(self) -> str:
        """The time of the budget, or of a step without one."""
        if self.hours is None:
            return f"{self.timing.seconds:.3g} s per step"
        return f"{self.hours:,.3g} h" if self.hours < 1000 else f"{self.hours:,.0f} h"


@dataclass(frozen=True)
class PlannedMethods:
    """A compared request.

    rows: fastest first
    half_rate: bit/s below which data parallel computes less than half of the time
    left_out: methods that cannot run on these machines -> reason
    without_overlap: seconds of a step of data parallel if nothing hides its all-reduce
    outside: a sentence if the machines are outside the range in which their times were validated
    """

    request: Request
    rows: tuple[MethodCost, ...]
    half_rate: float
    without_overlap: float
    left_out: dict[str, str]
    outside: str | None

    @property
    def data_parallel(self) -> MethodCost:
        return next(row for row in self.rows if row.method is DATA_PARALLEL)

    @property
    def best(self) -> MethodCost:
        """The fastest method of known quality near that of data parallel, if it pays."""
        base = self.data_parallel
        near = [row for row in self.rows if is_near(row.method)]
        pays = [row for row in near if row.timing.seconds < (1 - SAVES) * base.timing.seconds]
        return pays[0] if pays else base

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        best, base = self.best, self.data_parallel
        where = " between sites" if self.request.sites > 1 else ""
        less = "data parallel computes less than half of the time"
        half = f"below {bit_rate(self.half_rate)}{where} {less}"
        if self.half_rate in (0, inf):
            half = f"{less} at {'any' if self.half_rate else 'no'} rate{where}"
        instead = "" if best is base else f" instead of {base.time}"
        return f"{best.method.title}: {best.time}{instead}; {half}."

    @property
    def fastest(self) -> str | None:
        """A sentence about the fastest method, if it saves `SAVES` of the time of the answer."""
        first = self.rows[0]
        if first.timing.seconds >= (1 - SAVES) * self.best.timing.seconds:
            return None
        return (
            f"Faster, but not known to be within {100 * NEAR:.0f} % of the quality of data "
            f"parallel: {first.method.title}, {first.time}."
        )


def compare(request: Request, rates: bool = True) -> PlannedMethods:
    """Simulate every method on the machines of ``request``.

    rates: whether to search the rates below which methods pay, and to simulate faults
    """
    prepare_algorithms(
        request.overrides, [method.overrides for method in (DATA_PARALLEL, *request.methods)]
    )
    base = experiment_of([*request.overrides, *DATA_PARALLEL.overrides]).run
    left_out: dict[str, str] = {}
    timing = time_steps(base)
    times = TimesByRate(base, timing)
    rows = [priced(request, DATA_PARALLEL, timing, None, fault_costs(base, timing))]
    for method in request.methods:
        if method is DATA_PARALLEL:
            continue
        try:
            run = experiment_of([*request.overrides, *method.overrides]).run
            timing = time_steps(run)
            costs = fault_costs(run, timing) if rates else None
        except (ConfigError, RankFailed) as error:
            reason = error.sentence if isinstance(error, ConfigError) else str(error)
            left_out[method.title] = reason.rstrip(".")
            continue
        rate = break_even(TimesByRate(run, timing), times) if rates else None
        rows.append(priced(request, method, timing, rate, costs))
    rows.sort(key=lambda row: row.timing.seconds)
    size = base.timed_as.bytes_per_parameter or STATE_BYTES
    cluster = request.cluster
    outside = cluster.validated.beyond(
        cluster.name, cluster.links, request.nodes, size * request.parameters
    )
    laws = replace(cluster.collectives, overlap=0.0)
    bare = replace(base, cluster=replace(base.cluster, collectives=laws))
    return PlannedMethods(
        request,
        tuple(rows),
        half_computing_rate(times),
        time_steps(bare).seconds,
        left_out,
        outside,
    )


def priced(
    request: Request,
    method: Method,
    timing: Timing,
    rate: float | None,
    faults: FaultCosts | None = None,
) -> MethodCost:
    """Return the row of a method: its time, energy and cost for the budget."""
    budget, hours, kwh, cost = request.budget, None, None, None
    if budget.steps is not None:
        hours = timing.seconds * budget.steps / 3600
        node_hours = hours * request.nodes
        if budget.watts is not None:
            kwh = node_hours * budget.watts / 1000
        if budget.price_per_hour is not None:
            cost = node_hours * budget.price_per_hour
        if kwh is not None and budget.kwh_price is not None:
            cost = (cost or 0.0) + kwh * budget.kwh_price
    vectors = {
        "parameters": 1.0,
        "gradient": 1.0,
        "optimizer": timing.optimizer,
        "method": timing.method,
    }
    memory = {name: STATE_BYTES * request.parameters * count for name, count in vectors.items()}
    return MethodCost(method, timing, rate, hours, kwh, cost, memory, faults)


def as_json(plan: PlannedMethods) -> dict[str, object]:
    """Return a plan as plain data; times are in seconds, rates in bit/s."""
    return {
        "answer": plan.answer,
        "fastest": plan.fastest,
        "clock": "simulated",
        "nodes": plan.request.nodes,
        "devices": plan.request.devices,
        "sites": plan.request.sites,
        "parameters": plan.request.parameters,
        "steps": plan.request.budget.steps,
        "half_computing_rate": finite(plan.half_rate),
        "assumed": list(plan.request.assumed),
        "outside": plan.outside,
        "left_out": plan.left_out,
        "study": None if plan.request.quality is None else asdict(plan.request.quality),
        "methods": list(map(row_as_json, plan.rows, [plan.request] * len(plan.rows))),
    }


def row_as_json(row: MethodCost, request: Request) -> dict[str, object]:
    rest = {} if row.pays_below is None else {"pays_below": finite(row.pays_below)}
    return {
        "method": row.method.title,
        "command": " ".join(["sgp-run", *request.overrides, *row.method.overrides]),
        "seconds_per_step": row.timing.seconds,
        "computing": row.timing.computing,
        "bytes_per_node_and_step": row.timing.num_bytes,
        "coding_seconds_per_step": row.timing.coding,
        "hours": row.hours,
        "kwh": row.kwh,
        "cost": row.cost,
        "memory_bytes_per_device": dict(row.memory),
        "quality": [figure.text for figure in known_quality(row.method)],
        "faults": None if row.faults is None else asdict(row.faults),
        **rest,
    }


def finite(rate: float) -> float | str:
    """Return a rate, or ``any`` if it is infinite."""
    return rate if isfinite(rate) else "any"

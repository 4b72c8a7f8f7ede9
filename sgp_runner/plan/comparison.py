"""Comparison of methods on the machines of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite

from sgp_runner.config.overrides import experiment_of, prepare_algorithms
from sgp_runner.config.run import Run
from sgp_runner.plan.fault_costs import FaultCosts, fault_costs
from sgp_runner.plan.known_quality import NEAR, extrapolated, is_near, known_quality
from sgp_runner.plan.methods import DATA_PARALLEL, SAVES, Method, simplest
from sgp_runner.plan.request import Request
from sgp_runner.plan.site_replicas import SiteReplicas, site_replicas
from sgp_runner.plan.timing import (
    TimesByRate,
    Timing,
    break_even,
    half_computing_rate,
    time_steps,
)
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.units import bit_rate, num_bytes

MESSAGE_BYTES = 4  # of a parameter in a message, unless the request has another number
TOP = 10  # rows of a table, beside data parallel and the answer


@dataclass(frozen=True)
class MethodCost:
    """The time, cost and memory of a method on the machines of a request.

    run, overrides: the simulated run, and its overrides for ``sgp-run``
    replicas: number of copies of the model that may differ
    per_site: whether a replica is a site instead of a node
    hours, kwh, cost: for the whole budget and all nodes; None without a budget or a price
    memory: bytes on a device, by category. fits: whether they fit on a device
    extrapolated: model size and replicas from which its quality is extrapolated; empty: none
    pays_below: bit/s of the slow links below which the method saves `SAVES` of the time of data
        parallel; None for data parallel itself, or if it was not searched for
    faults: costs of faults; None: unknown
    """

    method: Method
    run: Run
    overrides: tuple[str, ...]
    replicas: int
    per_site: bool
    timing: Timing
    hours: float | None
    kwh: float | None
    cost: float | None
    memory: Mapping[str, float]
    fits: bool
    extrapolated: str
    pays_below: float | None = None
    faults: FaultCosts | None = None

    @property
    def title(self) -> str:
        return f"{self.method.title}, per site" if self.per_site else self.method.title

    @property
    def time(self) -> str:
        """The time for the budget, or the time per step if there is no budget."""
        if self.hours is None:
            return f"{self.timing.seconds:.3g} s per step"
        return f"{self.hours:,.3g} h" if self.hours < 1000 else f"{self.hours:,.0f} h"


@dataclass(frozen=True)
class PlannedMethods:
    """The methods of a request, compared.

    rows: fastest first
    half_rate: bit/s below which data parallel computes less than half of the time
    left_out: methods that cannot run on these machines -> reason
    without_overlap: seconds per step of data parallel if its all-reduce is not overlapped
    outside: a warning if the machines are outside the validated range of the times; else None
    """

    request: Request
    rows: tuple[MethodCost, ...]
    half_rate: float
    left_out: dict[str, str]
    without_overlap: float = 0.0
    outside: str | None = None

    @property
    def data_parallel(self) -> MethodCost:
        return next(row for row in self.rows if row.method is DATA_PARALLEL)

    @property
    def best(self) -> MethodCost | None:
        """The simplest of the fastest methods that fit, with a known quality near data parallel's.

        Methods with quality that is not extrapolated are preferred. None if no such method fits.
        """
        order = [method.title for method in self.request.methods]
        near = [
            row
            for row in self.rows
            if row.fits and (row.method is DATA_PARALLEL or is_near(row.method))
        ]
        near.sort(
            key=lambda row: (bool(row.extrapolated), order.index(row.method.title), row.per_site)
        )
        return near[simplest([row.timing.seconds for row in near])] if near else None

    def shown(self, every: bool = False) -> Sequence[MethodCost]:
        """Return the first rows plus data parallel and the answer, or all rows."""
        kept = (*self.rows[:TOP], self.data_parallel, self.best)
        return [row for row in self.rows if every or any(row is other for other in kept)]

    @property
    def answer(self) -> str:
        """The answer in one or two sentences."""
        best, base = self.best, self.data_parallel
        where = " between sites" if self.request.sites > 1 else ""
        less = "data parallel computes less than half of the time"
        half = f"below {bit_rate(self.half_rate)}{where} {less}"
        if self.half_rate in (0, inf):
            half = f"{less} at {'any' if self.half_rate else 'no'} rate{where}"
        if best is None:
            limit = num_bytes(self.request.memory.limit or inf)
            needed = num_bytes(sum(base.memory.values()))
            return (
                f"No method of known quality fits into {limit}: data parallel needs {needed} "
                f"(precision=mixed, shard=state or shard=all need less); {half}."
            )
        instead = "" if best is base else f" instead of {base.time}"
        if not base.fits:
            instead += " of data parallel, which does not fit" if instead else ""
        source = f" Its quality is extrapolated from {best.extrapolated}."
        return f"{best.title}: {best.time}{instead}; {half}.{source if best.extrapolated else ''}"

    @property
    def fastest(self) -> str | None:
        """The fastest method that fits, as a sentence, if it saves `SAVES` of the answer's time."""
        first = next((row for row in self.rows if row.fits), None)
        if first is None or self.best is None:
            return None
        if first.timing.seconds >= (1 - SAVES) * self.best.timing.seconds:
            return None
        return (
            f"Faster, but not known to be within {100 * NEAR:.0f} % of the quality of data "
            f"parallel: {first.title}, {first.time}."
        )


def compare(request: Request, rates: bool = True, every: bool = False) -> PlannedMethods:
    """Simulate every method on the machines of ``request``.

    rates: whether to search for the break-even rates of the shown methods, and simulate faults
    every: whether all rows are shown
    """
    prepare_algorithms(
        request.overrides, [method.overrides for method in (DATA_PARALLEL, *request.methods)]
    )
    base = experiment_of([*request.overrides, *DATA_PARALLEL.overrides]).run
    left_out: dict[str, str] = {}
    rows = [priced(request, DATA_PARALLEL, base, time_steps(base), None)]
    rows += timed(request, None, left_out)
    if (sites := site_replicas(request)) is not None:
        rows += timed(request, sites, left_out)
    times = TimesByRate(base, rows[0].timing.seconds)
    rows.sort(key=lambda row: row.timing.seconds)
    plan = PlannedMethods(request, tuple(rows), half_computing_rate(times), left_out)
    if rates:
        shown = [row.title for row in plan.shown(every)]
        rows = [detailed(row, times) if row.title in shown else row for row in rows]
    size = base.timed_as.bytes_per_parameter or MESSAGE_BYTES
    cluster = request.cluster
    laws = replace(cluster.collectives, overlap=0.0)
    bare = replace(base, cluster=replace(base.cluster, collectives=laws))
    return replace(
        plan,
        rows=tuple(rows),
        without_overlap=time_steps(bare).seconds if laws != cluster.collectives else 0.0,
        outside=cluster.validated.beyond(
            cluster.name, cluster.links, request.nodes, size * request.parameters
        ),
    )


def timed(
    request: Request, sites: SiteReplicas | None, left_out: dict[str, str]
) -> Iterator[MethodCost]:
    """Yield the rows of all methods except data parallel; record the methods left out.

    sites: machines with one replica per site; None: one replica per node
    """
    overrides = request.overrides if sites is None else sites.overrides
    for method in request.methods:
        if method is DATA_PARALLEL:
            continue
        try:
            run = experiment_of([*overrides, *method.overrides]).run
            yield priced(request, method, run, time_steps(run), sites)
        except (ConfigError, RankFailed) as error:
            reason = error.sentence if isinstance(error, ConfigError) else str(error)
            left_out.setdefault(method.title, reason.rstrip("."))


def detailed(row: MethodCost, data_parallel: TimesByRate) -> MethodCost:
    """Return a row with its break-even rate and costs of faults added."""
    rate = None
    if row.method is not DATA_PARALLEL:
        rate = break_even(TimesByRate(row.run, row.timing.seconds), data_parallel)
    return replace(row, pays_below=rate, faults=fault_costs(row.run, row.timing))


def priced(
    request: Request, method: Method, run: Run, timing: Timing, sites: SiteReplicas | None
) -> MethodCost:
    """Return the row of a method: time, energy, cost and memory for the budget."""
    overrides = request.overrides if sites is None else sites.overrides
    timing = timing if sites is None else sites.timing(timing)
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
        if request.traffic_has_price:
            cost = (cost or 0.0) + timing.traffic_price * budget.steps
    memory = request.memory.parts(request.parameters, timing.vectors, request.devices)
    return MethodCost(
        method,
        run,
        (*overrides, *method.overrides),
        run.nodes,
        sites is not None,
        timing,
        hours,
        kwh,
        cost,
        memory,
        request.memory.fits(memory),
        extrapolated(method, request.parameters, run.nodes),
    )


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
        "methods": list(map(row_as_json, plan.rows)),
    }


def row_as_json(row: MethodCost) -> dict[str, object]:
    rest = {} if row.pays_below is None else {"pays_below": finite(row.pays_below)}
    return {
        "method": row.title,
        "command": " ".join(["sgp-run", *row.overrides]),
        "replicas": row.replicas,
        "seconds_per_step": row.timing.seconds,
        "computing": row.timing.computing,
        "bytes_per_node_and_step": row.timing.num_bytes,
        "coding_seconds_per_step": row.timing.coding,
        "hours": row.hours,
        "kwh": row.kwh,
        "cost": row.cost,
        "traffic_price_per_step": row.timing.traffic_price,
        "memory_bytes_per_device": dict(row.memory),
        "fits": row.fits,
        "quality": [figure.text for figure in known_quality(row.method)],
        "extrapolated_from": row.extrapolated or None,
        "faults": None if row.faults is None else asdict(row.faults),
        **rest,
    }


def finite(rate: float) -> float | str:
    """Return a rate, or ``any`` if it is infinite."""
    return rate if isfinite(rate) else "any"

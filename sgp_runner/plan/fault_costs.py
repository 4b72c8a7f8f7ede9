"""Costs of faults for each method: a slow node, and a node that is away for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.config.run import Run
from sgp_runner.core.timing_study import Study
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.plan.timing import TAIL, Timing, steps_of
from sgp_runner.utils.errors import ConfigError, RankFailed

SLOWER = 2.0  # times that a gradient of the slow node takes
AWAY_STEPS = 20  # gradients, during which a node is away
RANK = 1  # the node with the fault


@dataclass(frozen=True)
class FaultCosts:
    """The costs of faults that affect one node.

    slow_node: time of a run in which the node is `SLOWER` times slower, relative to a run without
        faults
    absence: extra time of the whole run, relative to the duration of the node's absence
    """

    slow_node: float
    absence: float


def fault_costs(run: Run, timing: Timing) -> FaultCosts | None:
    """Return the costs of faults for ``run``; None if it already has faults or fails with these.

    timing: mean step of ``run`` without faults
    """
    if run.faults.any:
        return None
    if isinstance(run.model, TimingOnly):  # its steps are simulated as they are, not as a sample
        run = replace(run, model=replace(run.model, sample_steps=None))
    slow = replace(run, faults=Faults(slow_nodes={RANK: SLOWER}))
    whole, away = timing.whole, AWAY_STEPS * timing.compute
    gone = Event("crash", (RANK,), whole / 4, whole / 4 + away)
    try:
        absent = whole_seconds(replace(run, faults=Faults(events=(gone,))))
        slower = whole_seconds(slow) / whole
    except (ConfigError, RankFailed):
        return None
    return FaultCosts(slower, max(0.0, absent - whole) / away)


def whole_seconds(run: Run) -> float:
    """Return the simulated time of all steps, as many as `time_steps` simulates."""
    from sgp_runner.assembly.build import timing_problem
    from sgp_runner.assembly.simulated.times import simulate_times

    simulation, _ = simulate_times(run, timing_problem(run, Study(None, sum(steps_of(run)) + TAIL)))
    simulation.run()
    return float(simulation.now())

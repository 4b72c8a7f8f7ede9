"""``network=sim``: all nodes in this process, on a virtual clock."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.cluster import ASYNC_HOST_PASSES, check_ranks
from sgp_runner.errors import ConfigError, Lost
from sgp_runner.launchers import launched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sgp_runner.crew import Crew
    from sgp_runner.engine import Engine
    from sgp_runner.problem import Problem
    from sgp_runner.run import Experiment, Run
    from sgp_runner.simulation import Simulation
    from sgp_runner.worker import Worker


@dataclass(frozen=True)
class Sim:
    """All nodes in one process, on a virtual clock.

    engine: how gradients are computed: loop (one by one), vmap (many at once), or auto, which follows from the model: vmap for small ones
        without BatchNorm
    vmap_width: most nodes per call of vmap; smaller numbers are tried as the run begins; results do not depend on it
    """

    engine: Literal["auto", "loop", "vmap"] = "auto"
    vmap_width: int = 32
    timeout_seconds: ClassVar[float] = float("inf")  # a deadlock is found at once
    name: ClassVar[str] = "sim"
    clock: ClassVar[Literal["simulated", "wall"]] = "simulated"

    def __post_init__(self) -> None:
        if self.vmap_width < 1:
            raise ConfigError("network.vmap_width", f"{self.vmap_width} must be at least 1.")

    def check(self, run: Run) -> None:
        run.faults.check(run.nodes, run.algo.servers)
        if run.record:
            raise ConfigError("record", "a simulation needs no recording: the same command repeats it. Use record=false, or network=gloo.")
        check_ranks("cluster.node_factors", run.cluster.node_factors, run.nodes)
        if run.faults.events and not run.model.trains and run.study.real != run.study.simulated:
            every = "a timing study repeats its sample of the schedule, and events have a time"
            raise ConfigError("faults.events", f"{every}: use model.sample_steps=null, or faults that last for the whole run.")
        run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
        if self.engine == "vmap" and not run.model.vectorizes:
            raise ConfigError("network.engine", f"vmap cannot run model={run.model.name}; use network.engine=loop.")

    def execute(self, experiment: Experiment) -> dict[str, object]:
        if (process := launched()) and process.size > 1:
            several = f"{process.launcher} has started {process.size}"
            raise ConfigError("network", f"the simulator is one process, but {several}; start one, or choose network=gloo.")
        from sgp_runner.checkpoint import going_on, read
        from sgp_runner.crew import crew_of, whole_crew
        from sgp_runner.engine import choose_threads
        from sgp_runner.observer import Observer, recording
        from sgp_runner.push_sum import check_mass
        from sgp_runner.snapshot import Saver, restore

        run = experiment.run
        found = experiment.latest_checkpoint()
        saved = read(found / "run.pt") if found is not None else None
        crew = crew_of(run, saved["names"]) if saved else whole_crew(run)
        problem = crew.run.make_problem()
        choose_threads(problem)
        total, begun = run.budget(problem).total, 0
        simulation, workers = self.machines(crew, problem, run.on_failure == "continue")
        with closing(problem), recording(experiment, 0, total, saved["metrics_bytes"] if saved else 0) as recorder:
            observer = Observer(run, problem, recorder, simulation.model_buffers, crew=crew, started=experiment.started)
            if saved and found:
                print(going_on(found, observer.gone), flush=True)
                restore(simulation, workers, run.algo, (read(found / f"rank{worker.rank}.pt") for worker in workers), saved)
                observer.restore(saved)
                begun = saved["begun"]
            else:
                for worker in workers:
                    simulation.start(worker, run.algo.run(worker))
            while True:
                saver = Saver(experiment, simulation, workers, begun, observer.save)
                simulation.start_of_step_hook = saver.start_of_step
                simulation.end_of_step_hook = observer.end_of_step
                try:
                    with saver.trigger.listening():
                        simulation.run()
                    break
                except Lost as lost:
                    before, crew, begun = simulation, crew.without(lost.ranks), saver.begun
                    problem = crew.run.share(problem)
                    simulation, survivors = self.machines(crew, problem, True)
                    epoch = hand_over(before, workers, lost.ranks, simulation, survivors, crew)
                    workers = survivors
                    observer.follow(crew, problem, simulation.model_buffers, simulation.clock.now, epoch)
            check_mass(fmean(float(worker.push_sum[-1]) for worker in workers[: crew.run.nodes]))
            summary = {**experiment.facts, **observer.conclude(workers), **observer.lost}
            recorder.finish(summary)
        return summary

    def machines(self, crew: Crew, problem: Problem, may_die: bool) -> tuple[Simulation, list[Worker]]:
        """The simulated cluster and its workers, which have not started."""
        from sgp_runner.engine import make_engine

        simulation, workers = simulate(crew.run, problem, make_engine(problem, self.engine, self.vmap_width), crew.names)
        if may_die:
            simulation.expect_deaths()
        return simulation, workers


def hand_over(
    before: Simulation, workers: Sequence[Worker], gone: Sequence[int], after: Simulation, survivors: Sequence[Worker], crew: Crew
) -> float:
    """Start ``survivors``, which replace those ``workers`` that are not ``gone``; the epoch from which they go on."""
    from sgp_runner.crew import common_epoch, take_over

    assert before.rests is not None
    left = [worker for worker in workers if worker.rank not in gone]
    rests = [before.rests[worker.rank] for worker in left]
    dropped = sum(worker.steps_taken - rest.steps_taken for worker, rest in zip(left, rests, strict=True))
    per_epoch = left[0].steps_per_epoch
    epoch = common_epoch(crew.run, [rest.taken / per_epoch for rest in rests], (left[0].budget.taken - dropped) / per_epoch)
    after.clock.now = before.clock.now
    after.free_at[:] = [before.clock.now] * len(after.free_at)
    for old, new, rest in zip(left, survivors, rests, strict=True):
        take_over(new, rest, after.model_buffers[new.rank], epoch)
        new.comm.num_bytes_sent = old.comm.num_bytes_sent
    for new in survivors:
        if crew.run.algo.servers:
            new.params.copy_(survivors[-1].params)
        after.start(new, crew.run.algo.run(new))
    return epoch


def simulate(run: Run, problem: Problem, engine: Engine, names: Sequence[int] | None = None) -> tuple[Simulation, list[Worker]]:
    """The machines of ``run`` and its workers, servers last; none of them has started. ``names``: as in `Crew`."""
    from sgp_runner.simulation import Simulation

    start = problem.start()
    wire_scale = run.timed_as.wire_scale(start)
    seconds = run.timed_as.step_seconds(run.cluster, run.model.name, run.batch_size)
    if run.algo.asynchronous:
        num_bytes = start.numel() * start.element_size() * wire_scale
        seconds += ASYNC_HOST_PASSES * num_bytes * run.cluster.host_seconds_per_byte
    simulation = Simulation(
        run.cluster,
        run.faults,
        engine,
        size=run.nodes,
        servers=run.algo.servers,
        seed=run.seed,
        step_seconds=seconds,
        wire_scale=wire_scale,
        names=names,
    )
    workers: list[Worker] = []
    for rank, budget in enumerate(run.budgets(problem)):
        workers.append(run.make_worker(problem, rank, simulation.comms[rank], budget, simulation))
        simulation.model_buffers[rank] = problem.flat.fresh_buffers()
    return simulation, workers
